"""Client-level privacy: clipping, noise, secrets, accounting, targets and budgets."""

from __future__ import annotations

from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant

import heterophony as hp
from helpers.support import digits, played, replies, untimed
from heterophony.core import files as secret_file
from heterophony.core.algorithm import Reply, mean
from heterophony.core.errors import ConfigError
from heterophony.core.tensors import Tensors, compute_moves, compute_norm
from heterophony.protection.accounting import GRID, compute_epsilon, draw_normal_like, find_noise
from heterophony.protection.base import Departure, Gathering
from heterophony.studies.run import describe_large_delta

RECEIVED = Tensors({"a": torch.randn(40, 50), "b": torch.randn(100)})
SHORT = {"rounds": 2, "evaluate_every": 2, "weights": "uniform"}


def reply(client: int, size: float = 1.0) -> Reply:
    draw = torch.Generator().manual_seed(client)
    up = RECEIVED.map(lambda v: v + size * torch.randn(v.shape, generator=draw))
    return Reply(str(client), "train", up, 1, 1.0)


def gathering(t: int = 0, expected: float | None = None, secret: bytes = b"s") -> Gathering:
    known = dict.fromkeys(map(str, range(9)), RECEIVED)
    empty = Reply("", "train", RECEIVED, 0, 1.0)
    return Gathering(t=t, received=known, expected=expected, empty_reply=empty, secret=secret)


def merged(dp: hp.ClientDP, sent: list[Reply], how: Gathering) -> Tensors:
    """How far the mean of what is gathered moves the model."""
    return compute_moves(mean(dp.gather(sent, how).replies), RECEIVED)


def test_the_joint_norm_is_at_most_clip():
    dp = hp.ClientDP(clip=0.7, noise=0.0)
    for client, size in enumerate((1e-3, 1.0, 1e3)):
        leaving = Departure(client="0", t=0, received=RECEIVED, announced=Tensors(), weight=1.0,
                            seed=0, secret=b"")  # fmt: skip
        up = dp.leave(reply(client, size).tensors, Tensors(), leaving).tensors
        norm = compute_norm(compute_moves(up, RECEIVED))
        assert norm <= 0.7
        assert size < 1 or norm > 0.6999


def test_one_client_changes_the_sum_by_at_most_clip():
    dp = hp.ClientDP(clip=0.7, noise=0.0)
    sent = [reply(i, 1e3) for i in range(6)]  # a client that does not clip is clipped by the server
    with_all, without_one = (merged(dp, s, gathering(expected=4.0)) for s in (sent, sent[1:]))
    assert compute_norm(4.0 * (with_all - without_one)) <= 0.7 * (1 + 1e-6)


def test_the_noise_has_the_stated_variance():
    dp, n = hp.ClientDP(clip=0.5, noise=2.0), 2100
    for expected, divisor in ((None, 6), (4.0, 4)):
        sent = [reply(i) for i in range(6)]
        quiet = merged(replace(dp, noise=0.0), sent, gathering(expected=expected))
        noise = merged(dp, sent, gathering(expected=expected)) - quiet
        values = torch.cat([v.flatten() for v in noise.values()]) * divisor
        assert float(values.std()) == pytest.approx(2.0 * 0.5, rel=4 / np.sqrt(2 * n))
        assert abs(float(values.mean())) < 4 / np.sqrt(n)
    local = replace(dp, where="device")
    leaving = Departure(client="0", t=0, received=RECEIVED, announced=Tensors(), weight=1.0,
                        seed=0, secret=b"s")  # fmt: skip
    up = local.leave(RECEIVED, Tensors(), leaving).tensors
    values = torch.cat([v.flatten() for v in compute_moves(up, RECEIVED).values()])
    assert float(values.std()) == pytest.approx(1.0, rel=4 / np.sqrt(2 * n))


def test_noise_needs_the_secret():
    same, other = (draw_normal_like(RECEIVED, secret, "x") for secret in (b"s", b"t"))
    assert torch.equal(same["a"], draw_normal_like(RECEIVED, b"s", "x")["a"])
    assert not torch.equal(same["a"], other["a"])
    assert not torch.equal(same["a"], draw_normal_like(RECEIVED, b"s", "y")["a"])


def test_a_round_without_clients_still_has_noise():
    dp = hp.ClientDP(clip=0.5, noise=2.0)
    noise = merged(dp, [], gathering(expected=4.0))
    assert float(noise["a"].std()) == pytest.approx(2.0 * 0.5 / 4, rel=0.1)
    assert not dp.gather([], gathering()).replies  # a fixed cohort is never empty by chance


def test_poisson_participation_is_independent_and_hidden():
    rule, clients = hp.Poisson(rate=0.3), [str(i) for i in range(200)]
    sizes = [len(rule.chosen(t, clients, seed=1)) for t in range(200)]
    assert np.mean(sizes) == pytest.approx(60, rel=0.05)
    assert np.var(sizes) == pytest.approx(42, rel=0.4)  # binomial, not fixed
    plan = played("fedavg", rounds=0, participation=hp.Poisson(rate=0.5)).plan
    known = [plan.select_clients(t) for t in range(20)]
    hidden = replace(plan, secret=b"s", protections=(hp.ClientDP(noise=1.0),))
    assert [hidden.select_clients(t) for t in range(20)] != known
    assert hp.Poisson(count=3).compute_rate(6) == 0.5


def epsilon_of(noise: float, rate: float | None, rounds: int, delta: float) -> float:
    """The library's own number."""
    event = dp_accounting.GaussianDpEvent(noise)
    if rate is not None:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    accountant = PLDAccountant(value_discretization_interval=GRID)
    return accountant.compose(event, rounds).get_epsilon(delta)


def test_epsilon_is_that_of_the_library_and_grows(monkeypatch):
    monkeypatch.setattr(secret_file, "draw_secret", lambda: bytes(32))
    for rule, rate in ((hp.Poisson(rate=0.5), 0.5), (hp.Uniform(rate=0.5), None)):
        dp = hp.ClientDP(clip=0.5, noise=1.5, delta=1e-3)
        result = played("fedavg", protection=[dp], participation=rule, **SHORT)
        spent = [e["epsilon"] for e in result.events if e["event"] == "round"]
        assert spent == [epsilon_of(1.5, rate, t, 1e-3) for t in (1, 2)]
        assert 0 < spent[0] < spent[1] == result.summary.epsilon
        assert (result.summary.delta, result.summary.privacy["unit"]) == (1e-3, "client")
        told = (
            "the models, with a client's changes or with zeros instead; fixed cohorts do not amplify privacy"
            if rate is None
            else "the models, with and without one client; Poisson sampling at rate 0.5"
        )
        assert result.summary.privacy["accounting"] == told
        local = replace(dp, where="device")
        assert local.multiplier == 0.75  # two clipped replies differ by up to twice the clip


def test_a_large_delta_is_warned_of():
    plan, most = played("fedavg", rounds=0).plan, max(digits().sizes().values())
    client = "client_dp.delta: 0.0166667 is not well below one over the number of clients (6)"
    example = f"is not well below one over the number of examples of a client ({most}); set it to"
    for protection, said in (
        (hp.ClientDP(noise=1.0, delta=1 / 60), f"protection.{client}; set it to 0.01 or less"),
        (hp.ClientDP(noise=1.0, delta=1 / 61), ""),
        (hp.ExampleDP(delta=0.1 / most), f"protection.example_dp.delta: {0.1 / most:g} {example}"),
        (hp.ExampleDP(delta=0.09 / most), ""),
    ):
        found = describe_large_delta(replace(plan, protections=(protection,)))
        assert found.startswith(said)
        assert bool(found) == bool(said)
    how = {"protection": [hp.ClientDP(noise=1.0, delta=0.1)], "weights": "uniform", "rounds": 0}
    with pytest.warns(UserWarning, match="is not well below one over the number of clients"):
        played("fedavg", **how)


def test_replies_say_nothing_else(monkeypatch):
    """Losses and P_local stay on the client; what else leaves it is named in the result."""
    dp = hp.ClientDP(clip=0.5, noise=1.5)
    result, (sent, _) = replies(monkeypatch, hp.FedReG(weights="origin"), protection=[dp], **SHORT)
    assert all(r.metrics.keys() == {"seconds"} for r in sent)
    rounds = [e for e in untimed(result) if e["event"] == "round"]
    assert all(e["loss"] == {} and e["P_local"] == [] and e["measures"] == {} for e in rounds)
    outside = result.summary.privacy["outside"]
    assert outside[0] == "tensor fedreg/effective"
    assert "personal parameters, averaged to measure G" in outside
    assert "G and P of every client" in outside


def test_a_target_chooses_the_noise_and_a_budget_ends_the_run(tmp_path):
    target = hp.ClientDP(clip=0.5, epsilon=3.0, delta=1e-3)
    result = played("fedavg", protection=[target], participation=hp.Poisson(rate=0.5), rounds=4,
                    evaluate_every=4, weights="uniform")  # fmt: skip
    (used,) = result.summary.protection
    assert used["noise"] == find_noise(3.0, 0.5, 4, 1e-3)
    assert result.summary.epsilon <= 3.0 < compute_epsilon(used["noise"] - 0.01, 0.5, 4, 1e-3)
    assert used["budget"] == 3.0
    budget = replace(target, epsilon=None, noise=1.5, budget=2.5)
    ended = played("fedavg", protection=[budget], participation=hp.Poisson(rate=0.5), rounds=50,
                   evaluate_every=50, weights="uniform")  # fmt: skip
    done = ended.summary.rounds
    assert 0 < done < 50
    assert ended.summary.epsilon <= 2.5 < compute_epsilon(1.5, 0.5, done + 1, 1e-3)


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("fedavg", {"weights": "samples"}, r"set aggregation\.weights = 'uniform'"),
        ("fedavg", {"buffers": "average"}, "running statistics do not tolerate noise"),
        ("fedamp", {}, "client_dp: the merge of FedAMP depends on more than the sum"),
        ("fednova", {}, "client_dp: the merge of FedNova depends on more than the sum"),
        ("fedreg", {}, "client_dp: the merge of FedReG depends on more than the sum"),
        ("fedproto", {}, "nothing that FedProto sends is a change of what it received"),
        ("local", {}, "nothing that Local sends is a change"),
    ],
)
def test_what_does_not_go_together_is_a_clear_error(name, how, message):
    with pytest.raises(ConfigError, match=message):
        played(name, protection=[hp.ClientDP(noise=1.0)], **{"weights": "uniform", **how})


def test_bad_settings_are_clear():
    for settings, message in (
        ({}, "noise: set either noise or epsilon"),
        ({"noise": 1.0, "epsilon": 1.0}, "noise: set either noise or epsilon"),
        ({"noise": 1.0, "clip": float("inf")}, "clip: must be finite if noise is added"),
        ({"epsilon": 1.0, "budget": 2.0}, "budget: cannot be combined with epsilon"),
    ):
        with pytest.raises(ConfigError, match=message):
            hp.ClientDP(**settings)
    with pytest.raises(
        ConfigError, match=r"epsilon: the noise depends on how clients are selected"
    ):
        played("fedavg", protection=[hp.ClientDP(epsilon=1.0)], weights="uniform")
    with pytest.raises(ConfigError, match="Krum makes each reply depend on the others"):
        played("fedavg", digits(), participation=5, weights="uniform",
               protection=[hp.ClientDP(noise=1.0), hp.Krum(f=1)])  # fmt: skip
    with pytest.raises(ConfigError, match="budget: the first round spends more than"):
        played("fedavg", weights="uniform", protection=[hp.ClientDP(noise=0.1, budget=0.1)])


def test_an_algorithm_that_asks_everybody_is_not_divided_by_a_sample():
    how = {"rounds": 0, "participation": hp.Poisson(rate=0.5)}
    assert played("fedavg", **how).plan.expected_replies == 3.0
    assert played(hp.Local(clients="all"), **how).plan.expected_replies is None
    assert played("local", **how).plan.expected_replies == 3.0
