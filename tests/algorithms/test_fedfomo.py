"""FedFomo: gains by loss and distance, a mixture of better models, and whose models are sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import (
    QUICK,
    Turns,
    digits,
    keep_order,
    memory,
    model,
    played,
    replies,
    same,
)
from heterophony.algorithms.fedfomo import FedFomo
from heterophony.algorithms.parts.clusters import hold_out_examples
from heterophony.algorithms.parts.mixing import choose_downloads
from heterophony.core.algorithm import Reply, Server
from heterophony.core.randomness import seeded
from heterophony.core.tensors import load_into_net
from heterophony.jobs.plan import Job

WHOLE = {"participation": 1.0}
EYE = torch.eye(4)


def client_after(result: hp.Result, id: str) -> hp.Client:
    """A client as it is before the round that would follow."""
    sent = result.plan.algorithm.send(result._server, id)
    job = Job(kind="train", t=result.summary.rounds, client=id, tensors=sent)
    return result.plan.build_client(job, memory(result, id), result._run_folder.client_store)


# An implementation of its own: the authors' rule in plain torch, for clients who all take part
class Plain:
    """A client: what it began its last round with, and what it trained."""

    def __init__(self, net, data, l1: bool) -> None:
        self.net, self.l1 = net, l1
        rows = torch.arange(len(data))
        held = rows % 5 == 4
        self.train, self.held = data.batch(rows[~held]), data.batch(rows[held])
        self.before = self.model = dict(sorted(hp.weights(net).items()))

    @torch.no_grad()
    def loss(self, w) -> torch.Tensor:
        x, y = self.held
        return cross_entropy(functional_call(self.net, w, (x,)), y) * len(y) / len(y)

    def distance(self, w) -> torch.Tensor:
        away = [v - self.before[k] for k, v in w.items()]
        return (
            sum(d.abs().sum() for d in away) if self.l1 else sum((d * d).sum() for d in away).sqrt()
        )

    def mix(self, others) -> None:
        """The own trained model is a candidate; all are compared with that before training."""
        candidates, start = [self.model, *others], self.loss(self.before)
        gains = [(start - self.loss(w)) / self.distance(w) for w in candidates]
        good = [(max(g, 0 * g), w) for g, w in zip(gains, candidates, strict=True)]
        total = torch.stack([g for g, _ in good]).sum()
        if total > 0:
            used = [(g / total, w) for g, w in good if g > 0]
            self.before = {k: sum(g * w[k] for g, w in used) for k in self.before}
        self.model = self.before

    def step(self, how) -> None:
        live = {k: v.clone().requires_grad_() for k, v in self.before.items()}
        optimiser = torch.optim.SGD(live.values(), how.lr, how.momentum, fused=True)
        for _ in range(how.epochs):
            for x, y in zip(*(v.split(how.batch) for v in self.train), strict=True):
                optimiser.zero_grad()
                cross_entropy(functional_call(self.net, live, (x,)), y).backward()
                optimiser.step()
        self.model = {k: v.detach() for k, v in live.items()}


def run_plain(result: hp.Result, rounds: int, l1: bool) -> list[Plain]:
    federation, how = result.plan.federation, result.plan.training
    plain = [Plain(result.plan.template, federation.data(c).train, l1) for c in federation.clients]
    for t in range(rounds):
        sent = [c.model for c in plain]
        for i, client in enumerate(plain):
            if t > 0:  # in the first round all train, and nothing is mixed
                client.mix(sent[:i] + sent[i + 1 :])
            client.step(how)
    return plain


@pytest.mark.parametrize(("clients", "norm"), [(2, "l2"), (2, "l1"), (4, "l2"), (4, "l1")])
def test_it_is_the_authors_rule_in_plain_torch(monkeypatch, clients, norm):
    """With two clients to the bit; with more, sums are in another order."""
    keep_order(monkeypatch)
    how = replace(QUICK, epochs=2, momentum_state="reset")
    federation = digits(clients=clients, examples=160, alpha=2.0)
    result = played(FedFomo(norm=norm), federation, rounds=4, training=how, **WHOLE)
    plain = run_plain(result, 4, norm == "l1")
    for c, client in zip(federation.clients, plain, strict=True):
        kept, sent = memory(result, c)["before"], result._server.memory[f"model/{c}"]
        for ours, theirs in ((kept, client.before), (sent, client.model)):
            if clients == 2:
                assert same(ours, hp.Tensors(theirs))
            assert all(torch.allclose(v, theirs[k], atol=1e-5) for k, v in ours.items())


def test_own_training_stays_in_the_mixture_where_another_model_is_better_still():
    result = played(FedFomo(downloads=1), digits(alpha=100.0), rounds=1, **WHOLE)
    client, starts = client_after(result, "1"), []
    own, other = hp.weights(client.net), client.received.below("other/0/")
    client.fit = lambda data: starts.append(hp.weights(client.net))
    up = result.plan.algorithm.local(client)
    assert up["fomo/gains"] > 0  # the other is better than the initial model, and so is the own
    name = "head.weight" if "head.weight" in own else next(iter(own))
    share = (starts[0] - other)[name].norm() / (own - other)[name].norm()
    assert 0.05 < share < 0.95
    assert same(client.memory["before"], starts[0])


def test_where_no_model_is_better_it_goes_back_to_the_one_before_training():
    result = played(FedFomo(downloads=2), rounds=1, **WHOLE)
    client, starts = client_after(result, "0"), []
    before = client.memory["before"]
    load_into_net(client.net, 100 * client.shared())
    worse = {k: 100 * torch.ones_like(v) for k, v in client.received.items() if "/" in k}
    client.received = client.received | worse
    client.fit = lambda data: starts.append(hp.weights(client.net))
    gains = result.plan.algorithm.local(client)["fomo/gains"]
    assert (gains < 0).all()
    assert same(starts[0], before)


def test_held_out_examples_are_spread_the_same_in_every_round_and_not_trained_on():
    data = digits().data("0").train
    kept, held = hold_out_examples(data, 0.2)
    assert len(held) == len(data) // 5
    assert torch.equal(held.rows, data.rows[4::5])
    assert set(kept.rows.tolist()) | set(held.rows.tolist()) == set(data.rows.tolist())
    assert not set(kept.rows.tolist()) & set(held.rows.tolist())
    whole, same_again = hold_out_examples(data, 0.0)
    assert whole is same_again is data
    two = data.select_examples(torch.arange(2))
    assert [len(s) for s in hold_out_examples(two, 0.2)] == [1, 1]
    one = data.select_examples(torch.arange(1))
    assert [len(s) for s in hold_out_examples(one, 0.2)] == [1, 1]


def test_liking_adds_up_and_only_of_those_who_took_part():
    how = FedFomo(downloads=2, explore=0.0)
    server = Server(0, dict.fromkeys("abc", 1), hp.Tensors({"w": torch.zeros(1)}))

    def said(client, **gains):
        told = torch.tensor([gains.get(other, 0.0) for other in how.list_downloads(server, client)])
        return Reply(client, "train", hp.Tensors({"w": torch.ones(1), "fomo/gains": told}), 1, 1)

    def chosen():
        return {c: "".join(how.list_downloads(server, c)) for c in "abc"}

    server = how.merge(server, [said(c) for c in "abc"])
    assert {c: "".join(sorted(others)) for c, others in chosen().items()} == {
        "a": "bc",
        "b": "ac",
        "c": "ab",
    }
    server = how.merge(server, [said("a", b=-1.0, c=3.0), said("c", a=0.5, b=0.25)])
    assert server.memory["liking"]["P"].tolist() == [[1, -1, 3], [0, 1, 0], [0.5, 0.25, 1]]
    assert (chosen()["a"], chosen()["c"]) == ("cb", "ab")
    server = how.merge(server, [said("a", b=3.0, c=-1.0)])
    assert server.memory["liking"]["P"][0].tolist() == [1, 2, 2]  # gains are in the order sent


def test_of_clients_liked_alike_a_random_one_is_chosen():
    """At first nobody is known better: the first clients must not be everybody's."""
    with seeded("alike"):
        found = [choose_downloads(torch.zeros(5, 5), [True] * 5, 1, 0.0)[0, 0] for _ in range(60)]
    assert {int(i) for i in found} == {1, 2, 3, 4}
    liked = torch.tensor([[0.0, 1.0, 2.0, 2.0, 1.0]] * 5)
    with seeded("alike"):
        rows = [choose_downloads(liked, [True] * 5, 3, 0.0)[0].tolist() for _ in range(60)]
    assert {frozenset(row[:2]) for row in rows} == {frozenset({2, 3})}
    assert {row[2] for row in rows} == {1, 4}


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_nobody_receives_its_own_model_or_one_that_does_not_exist(chance):
    with seeded("chosen"):
        chosen = choose_downloads(EYE, [True, False, True, True], 3, chance)
    assert [sorted(row) for row in chosen.tolist()] == [
        [-1, 2, 3],
        [0, 2, 3],
        [-1, 0, 3],
        [-1, 0, 2],
    ]


def test_up_goes_a_model_and_gains_and_down_the_own_one_and_the_chosen(monkeypatch):
    result, rounds = replies(
        monkeypatch, FedFomo(downloads=2), digits(clients=4), rounds=2, **WHOLE
    )
    size = 4 * sum(v.numel() for v in model(result).values())
    events = [e for e in result.events if e["event"] == "round"]
    assert [e["bytes_up"] for e in events] == [4 * (size + 8)] * 2
    assert [e["bytes_down"] for e in events] == [4 * size, 4 * 3 * size]
    assert all(not r.tensors["fomo/gains"].any() for r in rounds[0])


def test_p_is_of_the_model_trained_last_and_there_is_no_g():
    result = played(FedFomo(), participation=Turns([0, 1], [1, 2], [1, 2]))
    assert result.G is None
    for c in ("0", "1", "3"):
        own = result._server.memory.get(f"model/{c}", model(result))
        assert same(hp.weights(result.personal(c).net), own)
