"""FedProto: prototypes per class, their distance in the loss, and classes that few or none hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import heterophony as hp
from helpers.support import digits, memory, net_with_batch_norm, played, same
from heterophony.algorithms.fedproto import FedProto
from heterophony.core.algorithm import Reply, Server


def prototypes(result: hp.Result) -> hp.Tensors:
    return result._server.memory["prototypes"]


def apart() -> hp.Federation:
    """Client 0 holds classes 0 and 1, client 1 classes 1 and 3; nobody holds 2 for training."""
    draw = np.random.default_rng(0)
    parts = []
    for classes in ([0, 1], [1, 3]):
        y = np.array(classes * 12)
        x = draw.normal(size=(24, 5)).astype(np.float32) + y[:, None]
        x2, y2 = np.concatenate([x[:6], x[:1]]), np.append(y[:6], 2)
        parts.append((x, y, x2, y2))
    return hp.federate(parts)


def test_without_distance_it_is_local():
    a, b = (played(x, participation=1.0) for x in (FedProto(lam=0.0), "local"))
    for c in a.plan.federation.clients:
        mine, theirs = memory(a, c), memory(b, c)
        assert mine.keys() == theirs.keys()
        assert all(same(mine[k], theirs[k]) for k in mine)
    assert [e["P"] for e in a.events if e["event"] == "evaluation"] == [
        e["P"] for e in b.events if e["event"] == "evaluation"
    ]


def test_a_class_that_nobody_holds_has_no_prototype():
    for rounds in (1, 3):
        result = played("fedproto", apart(), rounds=rounds, participation=1.0)
        assert set(prototypes(result)) == {"mean/0", "mean/1", "mean/3"}


def test_a_client_may_hold_classes_that_the_server_never_saw():
    class ByTurns:
        def chosen(self, t, clients, seed):
            return [clients[t % 2]]

    result = played("fedproto", apart(), rounds=4, participation=ByTurns())
    assert set(prototypes(result)) == {"mean/0", "mean/1", "mean/3"}
    first = played("fedproto", apart(), rounds=1, participation=ByTurns())
    assert set(prototypes(first)) == {"mean/0", "mean/1"}


def test_a_prototype_outlives_rounds_without_holders():
    class OnlyFirst:
        def chosen(self, t, clients, seed):
            return [clients[min(t, 1)]]

    one, two = (played("fedproto", apart(), rounds=r, participation=OnlyFirst()) for r in (1, 2))
    assert torch.equal(prototypes(one)["mean/0"], prototypes(two)["mean/0"])
    assert not torch.equal(prototypes(one)["mean/1"], prototypes(two)["mean/1"])


def test_unknown_classes_contribute_nothing_and_the_mean_is_over_batch_and_dimension():
    """The first update moves as by CE + λ · mean over all of the batch, unknown ones counting 0."""
    values: list[float] = []

    @dataclass(frozen=True)
    class Watched(FedProto):
        def local(self, client):
            fit = client.fit

            def watched(loss):
                x, y = client.data.train.batch(torch.arange(8))
                client.net.train()
                z = client.net.base(x)
                plain = torch.nn.functional.cross_entropy(client.net.head(z), y)
                known = client.received.below("mean/")
                squares = torch.zeros_like(z)
                for i, c in enumerate(y.tolist()):
                    if str(c) in known:
                        squares[i] = (z[i] - known[str(c)]).square()
                values.append((loss(x, y) - plain - 2.0 * squares.mean()).item())
                fit(loss)

            client.fit = watched
            return super().local(client)

    class ByTurns:
        def chosen(self, t, clients, seed):
            return [clients[t % 2]]

    played(Watched(lam=2.0), apart(), rounds=3, participation=ByTurns())
    assert len(values) == 3
    assert max(map(abs, values)) < 1e-6


def test_prototypes_are_means_over_all_examples_in_eval_mode_after_training():
    result = played("fedproto", digits(clients=1, examples=80), model=net_with_batch_norm, rounds=1)
    net = result.personal("0").net.eval()
    data = result.plan.federation.data("0").train
    with torch.no_grad():
        z = torch.cat([net.base(x) for x, _ in data.batches(250)])
    for k, p in prototypes(result).items():
        of_class = z[data.labels == int(k[5:])]
        assert torch.allclose(p, of_class.mean(0), rtol=1e-5, atol=1e-6)
    assert len(prototypes(result)) == len(data.labels.unique())


def reply(client: str, value: float, count: int) -> Reply:
    said = hp.Tensors({"mean/4": torch.full((2,), value), "count/4": torch.tensor(count)})
    return Reply(client, "train", said, 10, 10)


def test_clients_count_the_same_or_by_their_examples_of_the_class():
    server = Server(0, {"a": 10, "b": 10}, hp.Tensors())
    said = [reply("a", 1.0, 1), reply("b", 4.0, 2)]
    by_count = FedProto(weight="counts").merge(server, said).memory["prototypes"]
    assert by_count["mean/4"].tolist() == [3.0, 3.0]
    plain = [Reply(r.client, "train", r.tensors.only("mean/*"), 10, 10) for r in said]
    equal = FedProto().merge(server, plain).memory["prototypes"]
    assert equal["mean/4"].tolist() == [2.5, 2.5]
    counted = played(FedProto(weight="counts"), apart(), participation=1.0)
    assert set(prototypes(counted)) == {"mean/0", "mean/1", "mean/3"}


def test_up_goes_a_vector_per_class_held_and_down_one_per_class_known():
    result = played("fedproto", apart(), rounds=2, participation=1.0)
    width = len(prototypes(result)["mean/0"])
    assert result.summary.bytes == {"up": 2 * 4 * width * 4, "down": 2 * 3 * width * 4}


def test_there_is_no_common_model_and_the_prototypes_answers_are_recorded():
    result = played("fedproto", participation=1.0)
    assert result.G is None
    rounds = [e for e in result.events if e["event"] == "round"]
    assert "P_prototype" not in rounds[0]["measures"]
    assert all(0 <= e["measures"]["P_prototype"] <= 1 for e in rounds[1:])
