"""Floco does what its paper says, as stated here.

The weights of the last layer are a simplex of M corners, the others as in FedAvg. In its first τ rounds a client draws for every
mini-batch a point of the simplex, evenly, and trains base and corners with the last layer that is their mixture at this point. After
τ rounds the server assigns regions: clients' updates of head and corners are projected on their first M principal components and onto the
simplex, scaled so that the Riesz energy of the points is smallest. From then on a client draws points around its own one, at most ρ
away in the L1 norm. P is measured at the client's point, before τ and for unknown clients at the middle; G at the middle.

The authors' code draws points beside the simplex, since neither sum nor sign of a draw is mended, and lets all clients train in the round
before τ; here draws are projected onto the simplex, and the last update of each client counts. Their first corner is drawn anew, too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import client_after, digits, keep_order, model, played, same
from heterophony.algorithms.floco import Floco
from heterophony.algorithms.parts.mixing import project_onto_simplex, spread_over_simplex

ALL = {"participation": 1.0}


def test_the_projection_is_the_nearest_point():
    """Against a search: half of the distance to any corner or mixture is no smaller."""
    draw = torch.Generator().manual_seed(0)
    points = 2 * torch.randn(40, 4, generator=draw, dtype=torch.float64)
    for total in (0.3, 1.0):
        near = project_onto_simplex(points, total)
        assert torch.allclose(near.sum(1), torch.full((40,), total, dtype=torch.float64))
        assert bool((near >= 0).all())
        corners = total * torch.eye(4, dtype=torch.float64)
        # of a convex set, the nearest point makes no acute angle with anything in it
        slopes = torch.einsum("nd,ncd->nc", points - near, corners - near[:, None])
        assert bool((slopes <= 1e-9).all())


def test_clients_that_are_alike_are_near_each_other():
    """Three kinds of updates get three far points; a second implementation by SVD gives the same."""
    draw = np.random.default_rng(0)
    kinds = np.repeat(draw.normal(size=(3, 50)), 4, axis=0)
    rows = kinds + 0.01 * draw.normal(size=kinds.shape)
    points = spread_over_simplex(torch.from_numpy(rows), 3).double().numpy()
    assert np.allclose(points.sum(1), 1, atol=1e-6)
    assert points.min() >= 0
    within = max(np.linalg.norm(points[i] - points[i - i % 4]) for i in range(12))
    across = min(
        np.linalg.norm(points[i] - points[j]) for i in (0, 4, 8) for j in (0, 4, 8) if i != j
    )
    assert within < 0.1 * across
    u, s, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    scores = (u * s)[:, :3]
    scores *= np.sign(scores[np.abs(scores).argmax(0), range(3)])
    energies = []
    for size in np.linspace(1e-4, 1, 1000):
        found = np.stack([project_by_bisection(row, size) for row in scores]) / size
        gaps = np.maximum(
            np.linalg.norm(found[:, None] - found, axis=2)[np.triu_indices(12, 1)], 1e-4
        )
        energies.append((np.sum(gaps**-2.0), found))
    assert np.allclose(min(energies, key=lambda e: e[0])[1], points, atol=1e-4)


def project_by_bisection(row: np.ndarray, size: float) -> np.ndarray:
    low, high = row.min() - size, row.max()
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(row - middle, 0).sum() > size else (low, middle)
    return np.maximum(row - high, 0)


def test_a_step_trains_the_corners_by_their_share(monkeypatch):
    keep_order(monkeypatch)
    federation, point = digits(clients=1, examples=60), [0.5, 0.3, 0.2]
    monkeypatch.setattr(Floco, "draw_point", lambda *_: point)
    data = federation.data("0").train
    training = hp.Training(epochs=1, batch=len(data), lr=0.1, momentum=0.0)
    how = {"training": training, **ALL}
    result = played(Floco(vertices=3), federation, rounds=1, **how)
    net = client_after(played(Floco(vertices=3), federation, rounds=0, **how), kept={}).net.train()
    x, y = data.batch(torch.arange(len(data)))
    corners = [
        net.get_parameter(k) for k in ("head.0.weight", "corners.0.weight", "corners.1.weight")
    ]
    weight = sum(a * w for a, w in zip(point, corners, strict=True))
    cross_entropy(net.base(x) @ weight.T + net.get_parameter("head.0.bias"), y).backward()
    for name, p in net.named_parameters():
        assert torch.allclose(model(result)[name], (p - 0.1 * p.grad).detach(), atol=1e-6)


def test_regions_are_assigned_after_tau_rounds_to_those_who_took_part():
    before, after = (played(Floco(tau=2), rounds=t) for t in (1, 2))
    assert "centres" not in before._server.memory
    seen = {c for e in after.events if e["event"] == "round" for c in e["clients"]}
    assert set(after._server.memory["centres"]) == seen
    assert after._server.memory["moves"] == {}
    sent = {c: after.plan.algorithm.send(after._server, c) for c in after._server.clients}
    assert {c for c, v in sent.items() if "floco/centre" in v} == seen
    later = played(Floco(tau=2), rounds=3)
    assert same(later._server.memory["centres"], after._server.memory["centres"])


def test_a_new_client_predicts_at_the_middle():
    result = played(Floco(tau=1), replace(digits(), new=("0", "3")), rounds=2, **ALL)
    client, how = client_after(result, "0", kept={}), result.plan.algorithm
    x, _ = client.data.test.batch(torch.arange(4))
    with torch.inference_mode():
        assert torch.equal(how.predict(client, x), how.generic(client, x))
        known = client_after(result, "1")
        assert not torch.equal(how.predict(known, x), how.generic(known, x))
