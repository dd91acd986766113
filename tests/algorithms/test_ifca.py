"""IFCA: k models, each trained by the clients whose loss it makes smallest."""

from __future__ import annotations

import pytest
import torch

import heterophony as hp
from helpers.support import counts, digits, model, net_with_batch_norm, played, same, two_kinds
from heterophony.algorithms.ifca import IFCA
from heterophony.core.algorithm import Reply, Server

WHOLE = {"participation": 1.0}


def test_it_finds_clients_of_two_kinds():
    how = {"rounds": 8, "training": hp.Training(epochs=3, batch=10, lr=0.05), **WHOLE}
    result = played(IFCA(), two_kinds(), **how)
    one = played("fedavg", two_kinds(), **how)
    events = [e for e in result.events if e["event"] == "round"]
    assert events[-1]["measures"]["clusters"] == 2
    assert result.P.last > 0.9 > one.P.last


def test_the_models_begin_apart_and_the_first_is_fedavgs():
    start = played(IFCA(clusters=3), rounds=0).plan.create_initial_server().model
    first = start.without("clusters.*")
    assert same(first, model(played("fedavg", rounds=0)))
    others = [start.below(f"clusters.{j}.") for j in range(2)]
    assert all(o.keys() == first.keys() for o in others)
    for a, b in ((first, others[0]), (first, others[1]), (others[0], others[1])):
        assert not any(torch.equal(v, b[k]) for k, v in a.items())


def server(**values: float) -> Server:
    names = {"a": "head.w", "b": "clusters.0.head.w", "c": "clusters.1.head.w", "x": "base.w"}
    tensors = {names[k]: torch.tensor([v]) for k, v in values.items()}
    return Server(0, dict.fromkeys("pqr", 1), hp.Tensors(tensors))


def said(client: str, cluster: int, samples: int, **values: float) -> Reply:
    names = {"a": "head.w", "x": "base.w"}
    tensors = hp.Tensors({names[k]: torch.tensor([v]) for k, v in values.items()})
    return Reply(
        client, "train", tensors | {"ifca/cluster": torch.tensor(cluster)}, samples, samples
    )


def test_each_cluster_is_the_mean_of_its_clients_and_one_without_stays():
    after = IFCA(clusters=3).merge(
        server(a=1.0, b=2.0, c=3.0), [said("p", 2, 1, a=4.0), said("q", 0, 5, a=7.0), said("r", 2, 3, a=8.0)]
    )  # fmt: skip
    assert {k: v.item() for k, v in after.model.items()} == {
        "head.w": 7.0,
        "clusters.0.head.w": 2.0,
        "clusters.1.head.w": 7.0,
    }


def test_with_a_common_base_only_heads_are_of_clusters():
    how = IFCA(clusters=2, clustered="head")
    after = how.merge(
        server(a=1.0, b=2.0, x=0.0), [said("p", 1, 1, a=4.0, x=1.0), said("q", 1, 3, a=8.0, x=5.0)]
    )
    assert {k: v.item() for k, v in after.model.items()} == {
        "base.w": 4.0,
        "head.w": 1.0,
        "clusters.0.head.w": 7.0,
    }
    result = played(how, two_kinds(), rounds=1, **WHOLE)
    assert {k for k in model(result) if k.startswith("clusters.")} == {
        "clusters.0.head.0.bias",
        "clusters.0.head.0.weight",
    }


@pytest.mark.parametrize("buffers", ["local", "average"])
def test_p_is_of_the_cluster_with_the_smallest_training_loss_and_g_of_all(buffers):
    how = {"model": net_with_batch_norm, "buffers": buffers, "rounds": 2}
    result = played(IFCA(), digits(clients=3, examples=120), **how, **WHOLE)
    x = result.plan.federation.data("0").test.batch(torch.arange(4))[0]
    whole = model(result).without("clusters.*"), model(result).below("clusters.0.")
    net = result.personal("0").net
    assert any(same(hp.state(net).only(*w), w) for w in whole)
    generic = result.generic()
    with torch.no_grad():
        both = [torch.func.functional_call(generic.net.eval(), dict(w), (x,)) for w in whole]
        assert torch.allclose(generic(x), torch.stack(both).mean(0), atol=1e-6)


def test_all_models_go_down_and_one_comes_up():
    result = played(IFCA(clusters=3), digits(clients=3, examples=90), rounds=1, **WHOLE)
    size = 4 * sum(v.numel() for v in model(result).without("clusters.*").values())
    assert result.summary.bytes == {"down": 3 * 3 * size, "up": 3 * (size + 8)}
    assert counts(result, "G")[0] is not None
