"""FedDistill: outputs of the others are the teacher; nothing else is exchanged."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import Turns, digits, memory, played, replies, same, watching
from heterophony.algorithms.feddistill import FedDistill
from heterophony.core.algorithm import Server


def outputs(**rows: list[float]) -> hp.Tensors:
    return hp.Tensors({f"mean/{k[1:]}": torch.tensor(v) for k, v in rows.items()})


def server() -> Server:
    told = {
        "outputs/a": outputs(_0=[0.5, 0.5], _1=[0.25, 0.75]),
        "outputs/b": outputs(_0=[1.0, 0.0]),
        "outputs/c": outputs(_0=[0.0, 1.0], _1=[0.75, 0.25]),
    }
    return Server(1, dict.fromkeys("abcd", 1), hp.Tensors(), told)


def test_the_teacher_is_the_mean_over_the_others_that_hold_the_label():
    sent = {c: FedDistill().send(server(), c) for c in "abcd"}
    assert {c: {k: v.tolist() for k, v in t.items()} for c, t in sent.items()} == {
        "a": {"mean/0": [0.5, 0.5], "mean/1": [0.75, 0.25]},
        "b": {"mean/0": [0.25, 0.75], "mean/1": [0.5, 0.5]},
        "c": {"mean/0": [0.75, 0.25], "mean/1": [0.25, 0.75]},
        "d": {"mean/0": [0.5, 0.5], "mean/1": [0.5, 0.5]},
    }


def test_what_is_sent_are_mean_probabilities_of_the_examples_trained_on(monkeypatch):
    """A rate of zero: the outputs are those of the initial model."""
    still = hp.Training(epochs=1, batch=16, lr=0.0)
    result, rounds = replies(monkeypatch, FedDistill(), rounds=1, training=still)
    for reply in rounds[0]:
        data, net = result.plan.federation.data(reply.client).train, result.plan.template.eval()
        with torch.no_grad():
            p = torch.cat([net(x) for x, _ in data.batches(250)]).softmax(1)
        assert reply.tensors.keys() <= {f"mean/{c}" for c in data.labels.tolist()}
        for k, v in reply.tensors.items():
            assert torch.allclose(v.sum(), torch.ones(()))
            of = p[data.labels == int(k[5:])]
            assert (v >= of.min(0).values - 1e-6).all()  # of all but what the last batch drops
            assert (v <= of.max(0).values + 1e-6).all()


def test_the_loss_is_a_cross_entropy_and_unknown_labels_add_nothing():
    seen = []

    def check(client, fit, loss, **how):
        known = client.received.below("mean/")
        x, y = client.data.train.batch(torch.arange(12))
        out = client.net(x)
        terms = [
            -(known[str(c)] * out[i].log_softmax(0)).sum() if str(c) in known else 0.0 * out.sum()
            for i, c in enumerate(y.tolist())
        ]
        want = cross_entropy(out, y) + 2.0 * torch.stack(terms).mean()
        seen.append((len(known), bool(torch.allclose(loss(x, y), want, atol=1e-5))))
        fit(loss, **how)

    played(watching(FedDistill, check, gamma=2.0), participation=Turns([0], [1], [0, 1]))
    assert all(right for _, right in seen)
    assert seen[0][0] == 0
    assert all(count for count, _ in seen[1:])


def test_one_client_has_no_teacher_and_is_local():
    alone = digits(clients=1, examples=80)
    a, b = (played(x, alone, rounds=3) for x in ("feddistill", "local"))
    assert same(memory(a, "0")["net"], memory(b, "0")["net"])
    assert a.summary.bytes["down"] == 0


def test_what_a_client_said_outlives_rounds_in_which_it_is_absent():
    result = played("feddistill", participation=Turns([0], [1], [2]))
    assert {f"outputs/{c}" for c in "012"} <= result._server.memory.keys()
    sent = result.plan.algorithm.send(result._server, "5")
    assert len(sent) > 3


def test_there_is_no_common_model_and_a_vector_per_label_travels():
    result = played("feddistill", rounds=1, participation=1.0)
    assert result.G is None
    held = sum(len(result._server.memory[f"outputs/{c}"]) for c in result.plan.federation.clients)
    assert result.summary.bytes == {"up": 40 * held, "down": 0}
