"""FedETF does what its paper says, as stated here.

The last layer of the head is replaced: features go through a learned projection, are scaled to one length
(a number that is learned too), and are multiplied with fixed directions of the classes, a simplex whose angles are
all the same. Base, projection and length are trained with the balanced softmax (log-counts of the client's
classes are added to the logits), and averaged. For its personal model a client trains the received model for one
more round with the same loss, then in turns its own copy of the directions and its projection, by the plain
cross-entropy without log-counts; all of that is done before P is measured, and forgotten.

The authors' code has 20 turns of 3 epochs each (here 5, by a setting), momentum in those of the projection, and a length
that begins at 1 or 10 depending on the net. Here the projection is never narrower than the number of classes, because
the simplex would not exist.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import client_after, digits, keep_order, model, played, same, watching
from heterophony.algorithms.fedetf import FedETF

ALONE = {"rounds": 1, "participation": 1.0}


def test_directions_are_a_simplex_also_under_narrow_features():
    net = hp.Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU()), nn.Linear(4, 10))
    built = played(FedETF(), model=net, rounds=0).plan.template
    w = built.get_buffer("head.2.directions").double()
    angles = w @ w.T
    expected = torch.full((10, 10), -1 / 9, dtype=torch.float64).fill_diagonal_(1)
    assert torch.allclose(angles, expected, atol=1e-6)
    assert torch.equal(built.get_parameter("own.weight"), built.get_buffer("head.2.directions"))


def test_a_step_is_that_of_the_balanced_softmax(monkeypatch):
    """By hand: p(c) ∝ n_c exp(logit_c), over the whole data as one batch."""
    keep_order(monkeypatch)
    federation = digits(clients=1, examples=60)
    data = federation.data("0").train
    how = hp.Training(epochs=1, batch=len(data), lr=0.1, momentum=0.0)
    result = played(FedETF(), federation, training=how, **ALONE)
    net = client_after(played(FedETF(), federation, training=how, rounds=0), kept={}).net.train()
    x, y = data.batch(torch.arange(len(data)))
    z = net.get_submodule("head.1.projection")(net.base(x))
    z = net.get_parameter("head.1.length") * z / z.norm(dim=1, keepdim=True)
    raised = data.count_classes(10) * (z @ net.get_buffer("head.2.directions").T).exp()
    loss = -(raised[torch.arange(len(y)), y] / raised.sum(1)).log().mean()
    loss.backward()
    assert set(model(result)) == {k for k, _ in net.named_parameters()} - {"own.weight"}
    for name, v in model(result).items():
        p = net.get_parameter(name)
        assert torch.allclose(v, (p - 0.1 * p.grad).detach(), atol=1e-5)


def test_the_personalisation_trains_in_turns_and_one_part_at_a_time():
    seen = []

    def check(client, fit, loss, **how):
        before = hp.weights(client.net)
        fit(loss, **how)
        after = hp.weights(client.net)
        moved = {k for k in before if not torch.equal(before[k], after[k])}
        seen.append((how["phase"], how.get("turn", 0), moved))

    client = client_after(played(FedETF(), digits(clients=1, examples=80), rounds=1))
    fit = client.fit
    client.fit = lambda loss, **how: check(client, fit, loss, **how)
    FedETF(tune_turns=2).adapt(client)
    projection = {"head.1.projection.weight", "head.1.projection.bias"}
    whole = set(hp.weights(client.net)) - {"own.weight"}
    assert seen == [("tune", 0, whole)] + [
        (phase, turn, moved)
        for turn in (0, 1)
        for phase, moved in (("directions", {"own.weight"}), ("projection", projection))
    ]


def test_personal_logits_have_no_prior():
    """The first step of the directions is that of the plain cross-entropy."""
    client = client_after(played(FedETF(), digits(clients=1, examples=80), rounds=1))
    losses = []

    def watch(loss, **how):
        if how["phase"] == "directions":
            x, y = client.data.train.batch(torch.arange(20))
            losses.append((loss(x, y), cross_entropy(client.net(x), y)))

    client.fit = watch
    FedETF(tune_turns=1).adapt(client)
    assert torch.allclose(*losses[0])


def test_p_is_measured_every_tenth_round_and_at_the_end():
    result = played(FedETF(tune_turns=1), rounds=11, evaluate_every=1, participation=0.2)
    measured = [e["t"] for e in result.events if e["event"] == "evaluation" and e["P"] is not None]
    assert measured == [0, 10, 11]


@pytest.mark.parametrize("turns", [0, 2])
def test_the_personalisation_changes_nothing_that_is_kept(turns):
    a, b = (played(FedETF(tune_turns=n), rounds=2) for n in (turns, 1))
    assert a.model_sha256 == b.model_sha256
    assert same(model(a), model(b))


def test_fits_of_a_round_have_one_phase():
    phases = []
    played(watching(FedETF, lambda c, fit, loss, **how: phases.append(how["phase"])), **ALONE)
    assert set(phases) == {"main"}
