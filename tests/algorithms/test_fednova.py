"""FedNova: the work of momentum and proximal terms, moves normalised by work, and its limit FedAvg."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import heterophony as hp
from helpers.support import QUICK, digits, memory, model, net_with_batch_norm, played, replies, same
from heterophony.algorithms.fednova import FedNova, count_effective_steps
from heterophony.core.algorithm import Reply, Server


def close(a: hp.Tensors, b: hp.Tensors, within: float = 1e-6) -> bool:
    return all(torch.allclose(v, b[k], rtol=0, atol=within) for k, v in a.items())


@pytest.mark.parametrize(
    ("steps", "momentum", "work"),
    [(5, 0.9, 13.1441), (25, 0.9, 166.4611), (7, 0.0, 7.0), (0, 0.9, 0.0), (4, 1.0, 10.0)],
)
def test_work_of_momentum_is_the_papers(steps, momentum, work):
    assert count_effective_steps(steps, momentum) == pytest.approx(work, abs=5e-5)
    if momentum < 1:
        formula = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
        assert count_effective_steps(steps, momentum) == pytest.approx(formula)


def test_work_of_a_pull_is_the_papers():
    a = 0.0
    for _ in range(6):
        a = (1 - 0.05 * 2) * a + 1
    assert count_effective_steps(6, 0.0, 0.05 * 2) == pytest.approx(a)


def test_equal_work_is_fedavg():
    how = {"rounds": 3, "training": replace(QUICK, steps=4, momentum_state="reset")}
    assert close(model(played("fednova", **how)), model(played("fedavg", **how)))


HALVING = {"schedule": "exponential", "decay_factor": 0.5}


def test_equal_work_is_fedavg_with_a_schedule():
    training = replace(QUICK, steps=4, momentum_state="reset", **HALVING)
    how = {"rounds": 3, "training": training}
    assert close(model(played("fednova", **how)), model(played("fedavg", **how)))


def test_the_work_of_a_pull_is_that_at_the_rate_of_the_round(monkeypatch):
    how = replace(QUICK, steps=4, **HALVING)
    _, sent = replies(monkeypatch, FedNova(mu=2.0), rounds=3, training=how)
    for t, rows in enumerate(sent):
        work = count_effective_steps(4, 0.9, 0.05 * 0.5**t * 2.0)
        assert {r.tensors["fednova/work"].item() for r in rows} == {work}


def test_unequal_work_is_not_fedavg():
    how = {"rounds": 1, "training": replace(QUICK, batch=4, momentum_state="reset")}
    assert not close(model(played("fednova", **how)), model(played("fedavg", **how)))


@pytest.mark.parametrize("algorithm", [FedNova(), FedNova(mu=0.5)])
def test_with_one_client_the_model_is_the_clients(algorithm):
    @dataclass(frozen=True)
    class Kept(FedNova):
        def local(self, client):
            out = super().local(client)
            client.memory["sent"] = out.only("*.*")
            return out

    result = played(Kept(mu=algorithm.mu), digits(clients=1, examples=80))
    assert close(model(result), memory(result, "0")["sent"])


def test_on_a_linear_loss_the_normalised_move_does_not_depend_on_the_steps():
    slope = torch.tensor([1.0, -2.0, 0.5])

    def reply(client: str, steps: int) -> Reply:
        y = hp.Tensors({"w": -0.1 * steps * slope})  # so many plain steps down a constant slope
        work = torch.tensor(count_effective_steps(steps, 0.0), dtype=torch.float64)
        return Reply(client, "train", y | {"fednova/work": work}, 1, 1)

    server = Server(0, {"a": 1, "b": 1}, hp.Tensors({"w": torch.zeros(3)}))
    for pair in ((2, 6), (4, 4), (1, 7)):
        after = FedNova().merge(server, [reply("a", pair[0]), reply("b", pair[1])])
        assert close(after.model, hp.Tensors({"w": -0.1 * 4 * slope}))


def test_whoever_works_longer_does_not_count_more():
    """Slopes are opposite: equal weights must cancel them, however long each client worked."""

    def reply(client: str, steps: int, slope: float) -> Reply:
        y = hp.Tensors({"w": torch.tensor([-0.1 * steps * slope])})
        return Reply(client, "train", y | {"fednova/work": torch.tensor(float(steps))}, 1, 1)

    server = Server(0, {"a": 1, "b": 1}, hp.Tensors({"w": torch.zeros(1)}))
    after = FedNova().merge(server, [reply("a", 1, 1.0), reply("b", 50, -1.0)])
    assert abs(after.model["w"].item()) < 1e-6


def test_a_client_without_a_step_leaves_the_others_alone():
    still = Reply(
        "a", "train", hp.Tensors({"w": torch.zeros(1), "fednova/work": torch.tensor(0.0)}), 1, 1
    )
    moved = Reply(
        "b", "train", hp.Tensors({"w": torch.ones(1), "fednova/work": torch.tensor(4.0)}), 1, 1
    )
    server = Server(0, {"a": 1, "b": 1}, hp.Tensors({"w": torch.zeros(1)}))
    after = FedNova().merge(server, [still, moved])
    assert after.model["w"].item() == pytest.approx(0.5 * 4 * 0.5 * 1 / 4)


def test_momentum_is_reset_every_round():
    result = played("fednova")
    assert all(memory(result, c) == {} for c in result.plan.federation.clients)


def test_server_momentum():
    plain, heavy = (played(FedNova(server_momentum=m), rounds=2) for m in (0.0, 0.9))
    first = played("fednova", rounds=1)
    start = first.plan.create_initial_server().model
    assert same(model(first), model(played(FedNova(server_momentum=0.9), rounds=1)))
    expected = model(plain) + 0.9 * (model(first) - start)
    assert close(model(heavy), expected)


def test_one_scalar_more_than_fedavg():
    a, b = (played(x) for x in ("fednova", "fedavg"))
    assert a.summary.bytes["down"] == b.summary.bytes["down"]
    assert a.summary.bytes["up"] - b.summary.bytes["up"] == 3 * 3 * 8  # three of six, three rounds


def test_running_statistics_are_averaged():
    how = {"model": net_with_batch_norm, "buffers": "average", "rounds": 1}
    a, b = played("fednova", **how), played("fedavg", **how)
    assert same(model(a).only("*running*"), model(b).only("*running*"))
    assert len(model(a).only("*running*")) == 2
