"""APPLE: core models go up, p stays; the personal model is the sum of all core models."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.func import functional_call

import heterophony as hp
from helpers.support import QUICK, Turns, digits, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.apple import APPLE

WHOLE = {"participation": 1.0}


def shares(result: hp.Result, client: str) -> torch.Tensor:
    sizes = dict(result.plan.federation.sizes())
    own = sizes.pop(client)
    p = torch.tensor([float(own), *map(float, sizes.values())])
    return p / p.sum()


def test_p_begins_as_the_shares_of_examples_and_stays_there_without_a_rate():
    result = played(APPLE(weight_lr=0.0, mu=5.0), rounds=2, **WHOLE)
    for c in result.plan.federation.clients:
        assert torch.equal(memory(result, c)["weights"]["p"], shares(result, c))


def test_a_strong_pull_holds_p_and_fades():
    free, held = (played(APPLE(weight_lr=0.01, mu=mu, until=1.0), **WHOLE) for mu in (0.0, 50.0))
    far = [(memory(r, "0")["weights"]["p"] - shares(r, "0")).norm() for r in (free, held)]
    assert far[1] < far[0]


def test_the_pull_falls_by_half_a_cosine_or_exponentially():
    client = type("At", (), {"rounds": 40})()

    def fading(t, **how):
        client.t = t
        return APPLE(until=0.5, **how).compute_fading(client)

    assert [round(fading(t), 6) for t in (0, 10, 20, 30)] == [1.0, 0.5, 0.0, 0.0]
    assert [round(fading(t, fading="exponential"), 6) for t in (0, 10, 20)] == [1.0, 0.031623, 0.0]
    assert APPLE(until=0.0).compute_fading(client) == 0.0


def test_the_personal_model_is_the_sum_of_the_newest_core_models():
    """Client 4 never took part: its core model is the initial one, for all the others."""
    result = played(APPLE(), participation=Turns([0, 1], [1, 2, 3, 5], [0, 5]))
    server, net = result._server, result.plan.template
    x = digits().data("0").test.batch(torch.arange(5))[0]
    for c in ("0", "4"):
        order = [c, *(o for o in server.clients if o != c)]
        cores = [server.memory.get(f"core/{o}", server.model) for o in order]
        assert ("core/4" in server.memory) is False
        p = memory(result, c)["weights"]["p"] if c == "0" else shares(result, c)
        mixed = hp.mix(cores, p.tolist())
        with torch.no_grad():
            want = functional_call(net, dict(mixed), (x,))
            assert torch.allclose(result.personal(c)(x), want, atol=1e-5)


def test_the_initial_model_is_kept_by_the_server_and_there_is_no_g():
    result = played(APPLE(), **WHOLE)
    assert same(model(result), result.plan.create_initial_server().model)
    assert result.G is None


def test_p_never_travels_and_every_core_model_that_exists_goes_down():
    result = played(APPLE(), digits(clients=3, examples=90), rounds=2, **WHOLE)
    size = 4 * sum(v.numel() for v in model(result).values())
    rounds = [e for e in result.events if e["event"] == "round"]
    assert [e["bytes_up"] for e in rounds] == [3 * size] * 2
    assert [e["bytes_down"] for e in rounds] == [3 * (size + 8), 3 * (3 * size + 8)]


def test_running_statistics_are_never_multiplied_by_p():
    how = {"model": net_with_batch_norm, "buffers": "average", "rounds": 2, **WHOLE}
    result = played(APPLE(), **how)
    server = replace(result._server, statistics=result.plan.buffer_names)
    sent = result.plan.algorithm.send(server, "0")
    assert any("running" in k for k in sent)
    assert not any("running" in k for k in sent if k.startswith("core/"))


def test_the_rate_of_p_follows_the_schedule():
    """In the first of three rounds, a warm-up of one round halves all rates."""
    still = replace(QUICK, lr=0.0)
    once = Turns([0], [1], [1])
    runs = [
        played(APPLE(weight_lr=lr), participation=once, training=replace(still, warmup=warmup))
        for lr, warmup in ((0.02, 0), (0.04, 1))
    ]
    p = [memory(r, "0")["weights"]["p"] for r in runs]
    assert torch.equal(*p)
    assert not torch.equal(p[0], shares(runs[0], "0"))
