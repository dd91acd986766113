"""FedALA: the learned mixture of own and common model, when it learns, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.support import memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.fedala import FedALA
from heterophony.core.tensors import state

ALL = {"participation": 1.0}


@dataclass(frozen=True)
class FromZero(FedALA):
    """Mixing weights begin at 0: nothing of what is received is taken."""

    def build(self, net):
        net = super().build(net)
        for p in net.mixing.parameters():
            nn.init.zeros_(p)
        return net


@pytest.mark.parametrize("top", [2, 0])
def test_with_weights_of_one_it_is_fedavg(top):
    a, b = played(FedALA(eta=0.0, top=top), **ALL), played("fedavg", **ALL)
    assert all(torch.allclose(v, model(b)[k], rtol=0, atol=1e-6) for k, v in model(a).items())


@pytest.mark.parametrize("top", [1, 2, 0])
def test_with_weights_of_zero_the_top_stays_the_clients(top):
    @dataclass(frozen=True)
    class Watched(FromZero):
        def local(self, client):
            out = super().local(client)
            assert same(
                client.memory["before"], hp.weights(client.net).only(*client.memory["before"])
            )
            return out

        def tune(self, client):
            received = hp.weights(client.net)
            super().tune(client)
            now, kept = hp.weights(client.net), client.memory.get("before", hp.Tensors())
            assert same(now.only(*kept), kept)
            assert same(now.without(*kept), received.without(*kept))

    result = played(Watched(eta=0.0, top=top), **ALL)
    kept = memory(result, "0")["before"]
    names = [k for k, _ in result.plan.model().named_parameters()]
    assert set(kept) == set(names[-top:] if top else names)


def test_weights_stay_in_their_range_move_and_stay_at_home():
    result = played(FedALA(eta=50.0), **ALL)
    mixing = [memory(result, c)["net"] for c in result.plan.federation.clients]
    assert all(k.startswith("mixing.") for m in mixing for k in m)
    assert all(float(v.min()) >= 0 and float(v.max()) <= 1 for m in mixing for v in m.values())
    assert any(bool((v < 1).any()) for m in mixing for v in m.values())
    assert not any(k.startswith("mixing") for k in model(result))


def test_one_update_is_the_papers():
    """W - η ∇f(θ̂) ⊙ (θ_g - θ_old), clipped: lerp's gradient is that product."""
    old, new, slope = (
        torch.randn(4, 3, generator=torch.Generator().manual_seed(i)) for i in range(3)
    )
    weight = torch.full((4, 3), 0.5, requires_grad=True)
    (torch.lerp(old, new, weight) * slope).sum().backward()
    assert torch.allclose(weight.grad, slope * (new - old))
    assert torch.equal(torch.lerp(old, new, torch.zeros(4, 3)), old)
    assert torch.equal(torch.lerp(old, new, torch.ones(4, 3)), new)


def test_its_first_round_has_nothing_to_mix_and_later_rounds_one_pass():
    passes: dict[str, list[int]] = {}

    @dataclass(frozen=True)
    class Watched(FedALA):
        def local(self, client):
            fit, seen = client.fit, []

            def watched(*args, phase="main", **rest):
                seen.append(phase)
                fit(*args, phase=phase, **rest)

            client.fit = watched
            out = super().local(client)
            assert seen[-1] == "main"
            passes.setdefault(client.id, []).append(len(seen) - 1)
            return out

    played(Watched(), rounds=4, **ALL)
    for first, second, *later in passes.values():
        assert first == 0
        assert 10 <= second <= 100
        assert later == [1, 1]


def test_the_first_learning_has_an_end():
    """A loss that never gets steady is left after so many passes."""

    @dataclass(frozen=True)
    class Restless(FedALA):
        def train_mixing_weights(self, client, loss):
            turn = iter(range(10**6))
            super().train_mixing_weights(
                client, lambda x, y: loss(x, y) + 10.0 * (next(turn) // 3 % 2)
            )

    result = played(Restless(passes=13), rounds=2, training=hp.Training(epochs=1, batch=500), **ALL)
    taken = [int(memory(result, c)["mixed"]["passes"]) for c in result.plan.federation.clients]
    assert taken == [13] * 6


def test_mixing_does_not_touch_running_statistics():
    @dataclass(frozen=True)
    class Watched(FedALA):
        def tune(self, client):
            before = state(client.net).only("*running*", "*tracked*")
            super().tune(client)
            assert same(before, state(client.net).only("*running*", "*tracked*"))

    result = played(Watched(), model=net_with_batch_norm, rounds=3, **ALL)
    assert "mixed" in memory(result, "0")


def test_it_learns_from_a_part_of_the_data():
    sizes: list[tuple[int, int]] = []

    @dataclass(frozen=True)
    class Watched(FedALA):
        def draw_subset(self, client):
            out = super().draw_subset(client)
            rows = out.rows.tolist()
            assert len(set(rows)) == len(rows)
            assert set(rows) <= set(client.data.train.rows.tolist())
            sizes.append((len(out), len(client.data.train)))
            return out

    played(Watched(percent=50.0), rounds=2, **ALL)
    assert sizes
    assert all(part == whole // 2 for part, whole in sizes)


def test_g_is_the_average_p_the_mixture_and_evaluating_changes_nothing():
    often, seldom = (played("fedala", evaluate_every=n, **ALL) for n in (1, 3))
    assert often.model_sha256 == seldom.model_sha256
    assert often.events[-2]["P"] != often.events[-2]["G"]
    assert often.summary.bytes == played("fedavg", **ALL).summary.bytes
