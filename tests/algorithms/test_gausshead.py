"""GaussHead: the base and the shared head of another method, and Gaussians of the received base's features.

docs/explanation/gausshead.md has the formulas. Client statistics are divided by the number of examples, so the
mean of replies is that of all examples; the server moves halfway to it in each round.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import heterophony as hp
from helpers.support import client_after, digits, played
from heterophony.algorithms.parts.gaussians import collect_class_statistics


def compute_features(client: hp.Client, samples: hp.Samples) -> np.ndarray:
    client.net.eval()
    with torch.no_grad():
        return client.net.base(samples.batch(torch.arange(len(samples)))[0]).double().numpy()


@pytest.mark.parametrize("method", ["fixhead", "fedrod", "fedreg"])
def test_g_and_the_shared_tensors_are_the_methods(method):
    ours = played(hp.GaussHead(method=method, learned=0.0), head_depth=1)
    theirs = played(method, head_depth=1)
    measured = [[e["G"] for e in r.events if e["event"] == "evaluation"] for r in (ours, theirs)]
    assert measured[0] == measured[1]
    found = {k: v for k, v in ours._server.model.items() if not k.startswith("gaussian.")}
    assert found.keys() == theirs._server.model.keys()
    assert all(torch.equal(v, theirs._server.model[k]) for k, v in found.items())


@pytest.mark.parametrize("method", ["fixhead", "fedrod", "fedreg"])
def test_the_learned_head_alone_without_statistics_is_the_method(method):
    ours = played(hp.GaussHead(method=method, share="nothing", learned=1.0), head_depth=1)
    theirs = played(method, head_depth=1)
    assert ours.model_sha256 == theirs.model_sha256
    assert ours.summary.P == theirs.summary.P


def test_the_head_is_the_discriminant_of_the_page():
    how = hp.GaussHead(mean_examples=3.0, covariance_examples=7.0, ridge=0.5)
    client = client_after(played(how, rounds=2))
    z, labels = compute_features(client, client.data.train), client.data.train.labels.numpy()
    common = {k: v.detach().double().numpy() for k, v in client.net.gaussian.named_parameters()}
    n, classes = len(labels), client.data.classes
    means, scatter, prior = [], np.zeros((z.shape[1], z.shape[1])), []
    for c in range(classes):
        of_class = z[labels == c]
        known = common["shares"][c] > 0
        mu = common["sums"][c] / common["shares"][c] if known else z.mean(0)
        means.append((of_class.sum(0) + 3 * mu) / (len(of_class) + 3))
        for row in of_class:
            scatter += np.outer(row - of_class.mean(0), row - of_class.mean(0))
        prior.append(np.log((len(of_class) + 0.1) / (n + 0.1 * classes)))
    sigma = (scatter + 7 * common["scatter"] / common["shares"].sum()) / (n + 7)
    sigma += 0.5 * sigma.diagonal().mean() * np.eye(len(sigma))
    sigma = (1 - 1e-4) * sigma + 1e-4 * sigma.diagonal().mean() * np.eye(len(sigma))
    inverse = np.linalg.inv(sigma)
    expected = [
        z @ inverse @ m - m @ inverse @ m / 2 + p for m, p in zip(means, prior, strict=True)
    ]
    head = how.fit_head(client)
    found = z @ head["weight"].double().numpy().T + head["bias"].double().numpy()
    assert np.allclose(found, np.stack(expected, 1), rtol=1e-4, atol=1e-3)


def test_the_common_statistics_are_those_of_all_examples():
    how = hp.GaussHead()
    result = played(
        how, rounds=1, participation=1.0, training=hp.Training(lr=0.0, epochs=1, batch=16)
    )
    z, labels = [], []
    for name in digits().clients:
        client = client_after(result, name)
        z.append(torch.from_numpy(compute_features(client, client.data.train)))
        labels.append(client.data.train.labels)
    pooled = collect_class_statistics(torch.cat(z), torch.cat(labels), 10)
    model = result._server.model
    for name in ("shares", "sums"):  # scatters are around each client's own means
        assert torch.allclose(model[f"gaussian.{name}"].double(), pooled[name] / 2, atol=1e-5)
    scatters = [
        len(y) * collect_class_statistics(a, y, 10)["scatter"]
        for a, y in zip(z, labels, strict=True)
    ]
    expected = sum(scatters) / sum(map(len, labels)) / 2
    assert torch.allclose(model["gaussian.scatter"].double(), expected, atol=1e-5)


def test_a_class_without_examples_has_the_common_mean_and_a_small_prior():
    result = played(hp.GaussHead(), rounds=2)
    client = next(
        c for name in digits().clients if (c := client_after(result, name)).data.counts.min() == 0
    )
    missing = int(client.data.counts.argmin())
    alone, pulled = (hp.GaussHead(mean_examples=m).fit_head(client) for m in (1e-6, 10.0))
    common = client.net.gaussian
    mean = (common.sums[missing] / common.shares[missing]).detach()
    scores = [
        float(head["weight"][missing] @ mean + head["bias"][missing]) for head in (alone, pulled)
    ]
    assert scores[0] == pytest.approx(scores[1], rel=1e-3)


@pytest.mark.parametrize(("share", "sent"), [("covariance", 3), ("means", 2), ("nothing", 0)])
def test_it_sends_the_statistics_that_are_named(share, sent):
    result = played(hp.GaussHead(share=share), rounds=1)
    assert sum(k.startswith("gaussian.") for k in result._server.model) == sent


def test_it_runs_with_noise_of_client_dp():
    protection = hp.ClientDP(clip=1.0, noise=0.5, where="device")
    result = played(
        hp.GaussHead(), rounds=2, protection=[protection], training=hp.Training(steps=2, lr=0.05)
    )
    assert all(torch.isfinite(v).all() for v in result._server.model.values())
    assert result.summary.P.last >= 0
