"""pFedFDA does what its paper says, as stated here.

The head is no learned layer but a Gaussian of features for each class: means and one common covariance, which are shared
and averaged like weights. A client makes a linear discriminant of those it received, with the log-frequencies of its own
classes as biases, and trains the base alone under it. Then it estimates means and covariance of its own features (a class
with fewer than three examples has its common mean; the ridge is added to the diagonal) and sends β times these plus (1 - β) times
the received ones. β is found by two-fold cross-validation: each half's estimates, mixed by β, classify the other half. Before P is
measured, the same is done with the received base. G has the common estimates and no prior.

The authors' code takes features while it trains, finds β by L-BFGS, and adds the identity (and 10⁻⁴ to every entry) to a
covariance, where the paper adds a small multiple of the identity: ``ridge``, 1 by default. Means begin at random there, here as the initial head.
"""

from __future__ import annotations

import numpy as np
import torch

import heterophony as hp
from helpers.support import client_after, digits, model, played, replies, same
from heterophony.algorithms.parts.gaussians import (
    compute_discriminant,
    estimate_gaussian,
    get_gaussian_head,
    halve_by_class,
)
from heterophony.algorithms.pfedfda import PFedFDA

ALL = {"participation": 1.0}


def test_g_begins_as_the_head_without_bias_would():
    result = played(PFedFDA(), rounds=0)
    plain = played("fedavg", rounds=0)._server.model
    head = get_gaussian_head(client_after(result))
    assert torch.equal(head.means, plain["head.0.weight"])
    weight, bias = compute_discriminant(head.means, head.covariance)
    assert torch.allclose(weight, head.means, atol=1e-6)
    assert torch.allclose(bias, -0.5 * head.means.square().sum(1), atol=1e-6)


def test_only_the_base_is_trained_under_the_received_gaussians():
    """A step of the base is that of the cross-entropy of Gaussian posteriors, by Bayes' rule."""
    losses = []
    client = client_after(played(PFedFDA(), rounds=1, **ALL))
    x, y = client.data.train.batch(torch.arange(16))

    def watch(loss, train):
        assert train is client.net.base
        client.net.eval()
        losses.append(loss(x, y).item())

    head = get_gaussian_head(client)
    densities = torch.distributions.MultivariateNormal(head.means.detach().double(), head.covariance.detach().double())  # fmt: skip
    z = client.net.eval().base(x).detach().double()
    prior = client.data.counts / client.data.counts.sum() + 1e-4
    joint = densities.log_prob(z[:, None]) + (prior / prior.sum()).log()
    client.fit = watch
    PFedFDA().local(client)
    assert abs(losses[0] + joint.log_softmax(1)[range(16), y].mean().item()) < 1e-3


def test_estimates_are_averaged_like_weights(monkeypatch):
    result, ((*sent,),) = replies(monkeypatch, PFedFDA(), rounds=1, **ALL)
    assert set(model(result)) >= {"head.means", "head.covariance"}
    expected = hp.mean(sent)
    assert same(model(result), expected)


def test_a_rare_class_has_its_common_mean_and_scatters_around_it():
    z = torch.tensor([[1.0], [2.0], [3.0], [9.0]])
    means, covariance = estimate_gaussian(
        z, torch.tensor([0, 0, 0, 1]), torch.full((2, 1), 5.0), 0.5, 3
    )
    assert means.flatten().tolist() == [2.0, 5.0]
    assert covariance.item() == (1 + 0 + 1 + 16) / 3 + 0.5


def test_halves_have_as_much_of_every_class():
    labels = torch.tensor([2, 0, 2, 2, 0, 1, 2])
    second = halve_by_class(labels)
    assert labels[second].tolist() == [2, 0, 2]
    assert labels[~second].tolist() == [2, 0, 2, 1]


def test_the_share_is_that_by_which_halves_classify_each_other_best():
    """Common estimates that are wrong get no share, and right ones get all of it where data are few."""
    client = client_after(played(PFedFDA(), digits(clients=1), rounds=3, **ALL))
    z = client.features()
    head = get_gaussian_head(client)
    head.load(-head.means, head.covariance)
    assert PFedFDA().fit_share(client, z) == 1.0
    head.load(-head.means, head.covariance)
    assert 0 <= PFedFDA().fit_share(client, z) < 1


def test_one_example_leaves_the_common_estimates():
    x, y = np.random.default_rng(0).normal(size=(1, 4)).astype(np.float32), np.array([1])
    result = played(PFedFDA(), hp.federate([(x, y, x, y)], classes=2), rounds=1, **ALL)
    assert torch.equal(
        model(result)["head.covariance"], torch.eye(len(model(result)["head.covariance"]))
    )
