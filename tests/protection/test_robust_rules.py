"""Robust rules and simulated attacks: bad replies do not leave the range of the honest ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import heterophony as hp
from helpers.support import digits, played, replies, same, untimed
from heterophony.core.algorithm import Reply, mean
from heterophony.core.errors import ConfigError
from heterophony.core.tensors import Tensors
from heterophony.protection.base import Gathering

RECEIVED = Tensors({"w": torch.zeros(30)})
RULES = [hp.TrimmedMean(f=2), hp.Median(f=2), hp.Krum(f=2), hp.Krum(f=2, m=1), hp.NormBound()]


def reply(client: int, size: float = 1.0) -> Reply:
    draw = torch.Generator().manual_seed(client)
    up = Tensors({"w": size * torch.randn(30, generator=draw), "x/count": torch.tensor(client)})
    return Reply(str(client), "train", up, 1, 1.0)


def gathering(sent: list[Reply]) -> Gathering:
    return Gathering(t=0, received={r.client: RECEIVED for r in sent}, expected=None,
                     empty_reply=sent[0], secret=b"")  # fmt: skip


HONEST = [reply(i) for i in range(5)]
BAD = [reply(i, 1e6) for i in (5, 6)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_absurd_replies_stay_in_the_range_of_the_honest(rule):
    gathered = rule.gather([*HONEST, *BAD], gathering([*HONEST, *BAD]))
    merged = mean(gathered.replies)["w"]
    rows = torch.stack([r.tensors["w"] for r in HONEST])
    if isinstance(rule, hp.NormBound):
        assert float(merged.norm()) <= float(rows.norm(dim=1).max())
        assert set(gathered.filtered) >= {"5", "6"}
        return
    assert bool((merged >= rows.min(0).values).all() and (merged <= rows.max(0).values).all())
    if isinstance(rule, hp.Krum):
        assert not {r.client for r in gathered.replies} & {"5", "6"}
        assert len(gathered.replies) == (rule.m or 5)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_order_of_replies_changes_nothing(rule):
    sent = [*HONEST, *BAD]
    results = []
    for order in itertools.islice(itertools.permutations(sent), 0, 5000, 997):
        # the same contents under other clients' names, in the order of the names
        swapped = [replace(r, client=s.client) for s, r in zip(sent, order, strict=True)]
        found = rule.gather(swapped, gathering(sent)).replies
        results.append(sorted(r.tensors["w"].tolist() for r in found))
    assert all(r == results[0] for r in results)


def test_the_median_of_counts_is_one_of_them():
    found = hp.Median(f=1).gather(HONEST[:4], gathering(HONEST)).replies
    assert [int(r.tensors["x/count"]) for r in found] == [1] * 4


def test_too_few_replies_void_a_round_and_are_refused_beforehand():
    assert not hp.Krum(f=2).gather(HONEST, gathering(HONEST)).replies
    with pytest.raises(
        ConfigError, match=r"krum: needs at least 2f \+ 3 = 7 replies, and a round has 3"
    ):
        played("fedavg", protection=[hp.Krum(f=2)])
    with pytest.raises(ConfigError, match=r"median: needs at least 2f \+ 1 = 5 replies"):
        played("fedavg", protection=[hp.Median(f=2)])


def test_rules_that_mix_replies_are_refused_where_merge_tells_clients_apart():
    with pytest.raises(ConfigError, match="median: the merge of FedAMP depends on which"):
        played("fedamp", protection=[hp.Median()])
    assert played("fedamp", protection=[hp.NormBound()], rounds=1).finished


@pytest.mark.parametrize("kind", ["sign_flip", "scaling", "noise", "little_is_enough"])
def test_bad_clients_falsify_what_they_send(kind, monkeypatch):
    attack = hp.Attack(kind=kind, f=2, scale=7.0)
    how = {"participation": 1.0, "rounds": 1, "evaluate_every": 9}
    honest, (sent,) = replies(monkeypatch, "fedavg", **how)
    result = played("fedavg", attack=attack, **how)
    bad = result.summary.bad_clients
    assert bad == attack.list_bad_clients(digits().clients, 0)
    assert result.model_sha256 != honest.model_sha256
    clients, received = digits().clients, {c: honest.plan.create_initial_server().model for c in digits().clients}  # fmt: skip
    found = attack.falsify_replies(sent, received, clients, 0, 0)
    for before, after in zip(sent, found, strict=True):
        assert same(before.tensors, after.tensors) == (before.client not in bad)
    if kind == "sign_flip":
        first = next(i for i, r in enumerate(sent) if r.client in bad)
        start, k = received[sent[first].client], "base.1.weight"
        there, back = (r[first].tensors[k].double() - start[k].double() for r in (sent, found))
        assert torch.allclose(there, -back, atol=1e-7)


def test_flipped_labels_change_only_the_training_of_bad_clients():
    attack = hp.Attack(kind="label_flip", f=1)
    plan = played("local", rounds=1, attack=attack).plan
    (bad,) = attack.list_bad_clients(plan.federation.clients, plan.seed)
    for client in plan.federation.clients:
        clean = plan.federation.data(client)
        data = attack.falsify_labels(clean, client, plan.federation.clients, plan.seed)
        assert torch.equal(data.train.labels, 9 - clean.train.labels) == (client == bad)
        assert data.test is clean.test


def test_a_rule_repairs_what_an_attack_breaks():
    how = {"participation": 1.0, "rounds": 3, "evaluate_every": 3}
    attack = hp.Attack(kind="noise", f=1, scale=100.0)
    plain, protected = (
        played("fedavg", attack=attack, protection=p, **how) for p in ([], [hp.TrimmedMean(f=1)])
    )
    assert plain.G.last < 0.2 < protected.G.last
    filtering = played("fedavg", attack=attack, protection=[hp.Krum(f=1)], **how)
    assert [e["filtered"] for e in untimed(filtering) if e["event"] == "round"] == [
        filtering.summary.bad_clients
    ] * 3


def test_bad_attacks_are_clear():
    with pytest.raises(
        ConfigError, match="f: set the number of malicious clients and what they do"
    ):
        hp.Attack(kind="noise")
    with pytest.raises(ConfigError, match=r"attack\.f: must be below the number of clients \(6\)"):
        played("fedavg", attack=hp.Attack(kind="noise", f=6))
