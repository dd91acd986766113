"""Feature skew: each client's examples are altered in its own way, with the same bits everywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.support import digits, identical, played
from heterophony.core.algorithm import POOLED_CLIENT
from heterophony.core.errors import DataError
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from heterophony.data.federation import Federation
from heterophony.data.partitioning import partition_source
from heterophony.data.partitions import IID, Dirichlet, Terms
from heterophony.data.source import Source
from heterophony.data.transforms import Noise, Rotation


def source(n: int = 60, shape=(1, 8, 8), dtype=np.uint8, scale=BYTES_TO_PLUS_MINUS_ONE) -> Source:
    x = np.random.default_rng(0).integers(0, 255, (n, *shape)).astype(dtype)
    return Source("made", x, (np.arange(n) % 3).astype(np.int64), scale, ("a", "b", "c"))


def made(skew, seed: int = 0, rule=None, **kwargs) -> Federation:
    return partition_source(source(**kwargs), rule or IID(), Terms(4, seed=seed), skew)


def all_of(federation: Federation, client: str) -> torch.Tensor:
    data = federation.data(client)
    return torch.cat([data.train.get_all_stored(), data.test.get_all_stored()])


@pytest.mark.parametrize("skew", [Rotation(45), Noise(0.3)], ids=repr)
@pytest.mark.parametrize("rule", [IID(), Dirichlet(1.0, 3)], ids=["iid", "dirichlet"])
def test_rows_are_those_of_the_partition_and_only_the_view_differs(skew, rule):
    plain, skewed = made(None, rule=rule), made(skew, rule=rule)
    assert torch.equal(skewed.x, plain.x)
    for c in plain.clients:
        assert torch.equal(skewed.train[c], plain.train[c])
        assert torch.equal(skewed.data(c).train.labels, plain.data(c).train.labels)
        assert skewed.data(c).train.x is skewed.x
        seen = all_of(skewed, c)
        assert seen.dtype == torch.uint8
        assert seen.shape == all_of(plain, c).shape
        assert not torch.equal(seen, all_of(plain, c))
    assert skewed.sha256 != plain.sha256


@pytest.mark.parametrize("skew", [Rotation(45), Noise(0.3)], ids=repr)
def test_a_view_is_the_same_whenever_wherever_and_however_it_is_read(tmp_path, skew):
    one, two = made(skew), made(skew)
    one.save(tmp_path)
    opened = Federation.open(tmp_path)
    assert one.sha256 == two.sha256 == opened.sha256
    at = torch.tensor([3, 0, 3])
    for c in one.clients:
        assert torch.equal(all_of(one, c), all_of(two, c))
        assert torch.equal(all_of(one, c), all_of(opened, c))
        train = one.data(c).train
        assert torch.equal(train.get_stored(at), all_of(two, c)[at])
        assert torch.equal(train.batch(at)[0], BYTES_TO_PLUS_MINUS_ONE(train.get_all_stored()[at]))
    everybody = torch.cat([one.data(c).train.get_all_stored() for c in one.clients])
    assert torch.equal(one.data(POOLED_CLIENT).train.get_all_stored(), everybody)


@pytest.mark.parametrize("kind", [Rotation, Noise])
def test_the_seed_decides_the_view_the_runs_or_its_own(kind):
    assert made(kind(), 1).skew == kind(seed=1)
    assert made(kind(seed=5), 1).skew == kind(seed=5)
    a, b = (made(kind(seed=s)) for s in (5, 6))
    assert not torch.equal(all_of(a, "0"), all_of(b, "0"))


def test_every_client_has_its_own_angle_within_the_limit():
    angles = [Rotation(30, seed=0).draw_angle(str(c)) for c in range(200)]
    assert len(set(angles)) == 200
    assert -30 <= min(angles) < -25
    assert 25 < max(angles) <= 30


@pytest.mark.parametrize("shape", [(3, 9, 9), (1, 8, 8)])
@pytest.mark.parametrize(("angle", "turns"), [(90, 1), (180, 2), (-90, -1)])
def test_quarter_turns_are_exact(monkeypatch, shape, angle, turns):
    monkeypatch.setattr(Rotation, "draw_angle", lambda self, client: angle)
    x = torch.from_numpy(source(5, shape).x)
    turned = Rotation().apply(x, 255.0, "0", "train")
    assert torch.equal(turned, torch.rot90(x, turns, (2, 3)))


def test_images_that_are_not_square_are_turned_not_sheared(monkeypatch):
    monkeypatch.setattr(Rotation, "draw_angle", lambda self, client: 90)
    x = torch.zeros(1, 1, 5, 9, dtype=torch.uint8)
    x[0, 0, 2, 2:7] = 200
    turned = Rotation().apply(x, 255.0, "0", "train")[0, 0]
    assert turned[:, 4].tolist() == [200] * 5
    assert int((turned > 0).sum()) == 5


def test_no_angle_and_no_noise_change_nothing():
    for nothing in (Rotation(0.0), Noise(0.0)):
        assert torch.equal(all_of(made(nothing), "1"), all_of(made(None), "1"))


def test_noise_has_the_clients_own_level():
    skew, n = Noise(0.1, seed=0), 400
    x = torch.full((n, 1, 8, 8), 128, dtype=torch.uint8)
    levels = [skew.draw_deviation(str(c)) for c in range(20)]
    assert len(set(levels)) == 20
    assert min(levels) >= 0
    assert max(levels) <= 0.1
    for c in ("3", "7"):
        noise = skew.apply(x, 255.0, c, "train").float() - 128
        assert abs(noise.std() / 255 - skew.draw_deviation(c)) < 0.002
        assert not torch.equal(skew.apply(x, 255.0, c, "test").float() - 128, noise)


def test_numbers_get_noise_unclamped_and_what_cannot_be_altered_is_refused():
    features = made(Noise(900.0), shape=(6,), dtype=np.float32, scale=Scale())
    assert all_of(features, "0").min() < 0
    with pytest.raises(DataError, match=r"'rotation' needs images, not examples of shape \(6,\)"):
        made(Rotation(), shape=(6,), dtype=np.float32, scale=Scale())
    with pytest.raises(DataError, match="'noise' needs images or numbers, not tokens"):
        made(Noise(), shape=(6,), dtype=np.int64, scale=Scale())


@pytest.mark.parametrize("name", ["fedavg", "centralized", "fedreg"])
def test_a_run_on_skewed_features_is_the_same_on_every_engine(name):
    skewed = made(Rotation(60))
    one = played(name, skewed, rounds=2)
    assert identical(one, played(name, skewed, rounds=2, engine="pool", workers=2))
    assert not identical(one, played(name, made(None), rounds=2))


def test_a_part_of_what_a_client_sees_is_that_part_of_the_whole():
    """FedALA learns from a part of a client's examples."""
    skewed = replace(digits(), skew=Noise(level=0.5, seed=3))
    seen, at = skewed.data("2").train, torch.tensor([4, 0, 3])
    assert torch.equal(seen.select_examples(at).get_all_stored(), seen.get_all_stored()[at])
    assert torch.equal(seen.select_examples(at).labels, seen.labels[at])
    assert identical(played("fedala", skewed), played("fedala", skewed, engine="pool", workers=2))
