"""Transforms of published works: exact constants, and random image transforms in training only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn.functional import cross_entropy, pad
from typer.testing import CliRunner

import heterophony as hp
from helpers.support import identical
from heterophony.algorithms.fedavg import FedAvg
from heterophony.algorithms.fedreg import FedReG
from heterophony.cli import app
from heterophony.config.reading import resolve_config
from heterophony.config.sections import DataSection
from heterophony.core.errors import ConfigError, DataError
from heterophony.core.samples import (
    BYTES_TO_PLUS_MINUS_ONE,
    DRAWS_PER_IMAGE,
    RandomImageTransform,
    Samples,
    Scale,
)
from heterophony.data.federation import Federation
from heterophony.data.transforms import TRANSFORMS, UNCHANGED, build_transform

STILL = 0.5  # the chance of no flip, no shift, no turn


def images(n: int, shape=(3, 32, 32), key: int = 0) -> torch.Tensor:
    """Without black, so that black is what came from outside."""
    return torch.randint(
        1, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(key)
    )


def chances(n: int, key: int = 0, **fixed: float) -> torch.Tensor:
    """Random, but for those given."""
    drawn = torch.rand(n, DRAWS_PER_IMAGE, generator=torch.Generator().manual_seed(key)).double()
    for i, name in enumerate(("flip", "down", "right", "turn")):
        drawn[:, i] = fixed.get(name, drawn[:, i])
    return drawn


# Moves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 5, 9)], ids=str)
def test_a_flip_is_the_exact_mirror_image_and_as_likely_as_not(shape):
    x, u = images(400, shape), chances(400)
    moved, flipped = RandomImageTransform(flip=True)(x, u), u[:, 0] < 0.5
    assert torch.equal(moved[flipped], x[flipped].flip(3))
    assert torch.equal(moved[~flipped], x[~flipped])
    assert 160 < int(flipped.sum()) < 240
    assert moved.dtype == torch.uint8


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 5, 9)], ids=str)
def test_a_crop_is_an_exact_shift_with_black_borders(shape):
    moves, x = RandomImageTransform(pad=4), images(81, shape)
    corners = torch.cartesian_prod(torch.arange(9), torch.arange(9))
    u = torch.full((81, DRAWS_PER_IMAGE), STILL).double()
    u[:, 1:3] = (corners + 0.5) / 9
    wide, (height, width) = pad(x, (4, 4, 4, 4)), shape[1:]
    expected = [
        wide[i, :, a : a + height, b : b + width] for i, (a, b) in enumerate(corners.tolist())
    ]
    assert torch.equal(moves(x, u), torch.stack(expected))


def test_every_crop_is_reached_and_none_beyond():
    x = torch.zeros(2000, 1, 9, 9, dtype=torch.uint8)
    x[:, 0, 4, 4] = 1
    moved = RandomImageTransform(pad=4)(x, chances(2000))
    assert moved.flatten(1).sum(1).tolist() == [1] * 2000
    assert moved.sum((0, 1)).count_nonzero() == 81
    least_and_most = torch.tensor([[0.0] * 4, [1 - 2**-53] * 4], dtype=torch.float64)
    ends = RandomImageTransform(pad=4)(x[:2], least_and_most)
    assert ends[0, 0, 8, 8] == 1  # the crop begins at the very corner of the border
    assert ends[1, 0, 0, 0] == 1


def test_a_rotation_by_nothing_is_the_image_itself():
    x = images(5)
    assert torch.equal(RandomImageTransform(degrees=15.0)(x, chances(5, turn=0.5)), x)
    assert torch.equal(
        RandomImageTransform(pad=4, flip=True, degrees=15.0)(x, torch.full((5, 4), STILL)), x
    )


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 64, 64), (3, 9, 14)], ids=str)
def test_a_rotation_is_the_nearest_pixel_and_black_outside_as_pillow_does(shape):
    x, u = images(40, shape), chances(40)
    moved = RandomImageTransform(degrees=15.0)(x, u)
    for image, out, turn in zip(x, moved, u[:, 3].tolist(), strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        turned = picture.rotate((2 * turn - 1) * 15.0, Image.Resampling.NEAREST)
        assert np.array_equal(np.asarray(turned), out.permute(1, 2, 0).numpy())


def test_a_quarter_turn_goes_anticlockwise():
    x = images(3, (1, 8, 8))
    assert torch.equal(
        RandomImageTransform(degrees=90.0)(x, chances(3, turn=1.0)), x.rot90(1, (2, 3))
    )
    assert torch.equal(
        RandomImageTransform(degrees=90.0)(x, chances(3, turn=0.0)), x.rot90(-1, (2, 3))
    )


def test_all_together_are_crop_then_flip_then_rotation():
    x, u = images(50), chances(50)
    steps = x
    for one in (
        RandomImageTransform(pad=4),
        RandomImageTransform(flip=True),
        RandomImageTransform(degrees=15.0),
    ):
        steps = one(steps, u)
    assert torch.equal(RandomImageTransform(pad=4, flip=True, degrees=15.0)(x, u), steps)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(n=st.integers(1, 12), key=st.integers(0, 99), at=st.integers(0, 11))
def test_what_happens_to_an_image_does_not_depend_on_the_others(n, key, at):
    x, u, i = images(n, (3, 8, 8), key), chances(n, key), at % n
    moves = RandomImageTransform(pad=2, flip=True, degrees=15.0)
    assert torch.equal(moves(x, u)[i], moves(x[i : i + 1], u[i : i + 1])[0])


def test_the_stored_images_stay_as_they_are():
    x = images(4)
    before = x.clone()
    RandomImageTransform(pad=4, flip=True, degrees=15.0)(x, chances(4))
    assert torch.equal(x, before)


# Samples ------------------------------------------------------------------------------------


def test_only_who_brings_chances_gets_moved_images_and_black_is_scaled_like_the_rest():
    rows, at, scale = torch.tensor([5, 2, 0, 3]), torch.tensor([3, 1]), Scale(255.0, (0.4,), (0.2,))
    samples = Samples(images(6), torch.arange(6), scale, rows, RandomImageTransform(pad=4))
    asked = []

    def corner(which: torch.Tensor) -> torch.Tensor:
        asked.append(which.tolist())
        return torch.zeros(len(which), DRAWS_PER_IMAGE)

    x, y = samples.batch(at, corner)
    assert asked == [[3, 2]]  # rows of the pool
    assert y.tolist() == [3, 2]
    assert torch.equal(x[:, :, 4:, 4:], scale(samples.get_stored(at)[:, :, :-4, :-4]))
    assert torch.equal(x[:, :, :4], scale(torch.zeros(2, 3, 4, 32, dtype=torch.uint8)))
    assert torch.equal(samples.batch(at)[0], scale(samples.get_stored(at)))
    ((whole, _),) = samples.batches(9)
    assert torch.equal(whole, scale(samples.get_all_stored()))


# The works' constants -----------------------------------------------------------------------

CIFAR = ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))


def test_fedavg2rep_has_its_constants_for_training_and_others_for_test():
    made = build_transform("fedavg2rep", images(1), 100)
    assert made.train == Scale(255.0, (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762))
    assert made.test == Scale(255.0, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
    assert made.moves == RandomImageTransform(pad=4, flip=True)
    assert build_transform("fedavg2rep", images(1), 200) == made


@pytest.mark.parametrize(
    ("size", "classes", "scale", "moves"),
    [
        (32, 10, BYTES_TO_PLUS_MINUS_ONE, None),
        (32, 100, Scale(255.0, *CIFAR), RandomImageTransform(pad=4, flip=True, degrees=15.0)),
        (64, 200, Scale(255.0, *CIFAR), RandomImageTransform(flip=True, degrees=15.0)),
    ],
    ids=["cifar10", "cifar100", "tinyimagenet"],
)
def test_feddecomp_has_its_own_for_each_of_its_data_sets(size, classes, scale, moves):
    made = build_transform("feddecomp", images(1, (3, size, size)), classes)
    assert (made.train, made.test, made.moves) == (scale, scale, moves)


def test_the_default_leaves_everything_as_it_was_read():
    assert build_transform("half", images(1), 10) is None
    assert build_transform("half", torch.zeros(1, 5), 10) is None
    assert DataSection().transform == UNCHANGED


def test_the_configuration_knows_the_same_names():
    known = get_args(get_type_hints(DataSection)["transform"])
    assert known == (UNCHANGED, *TRANSFORMS)


# What does not fit --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "x", "words"),
    [
        ("fedavg2rep", images(1, (1, 28, 28)), "needs colour images of 3x32x32, not .* 1x28x28"),
        ("fedavg2rep", images(1, (3, 64, 64)), "needs colour images of 3x32x32, not .* 3x64x64"),
        ("fedavg2rep", torch.zeros(2, 80), "needs colour images of 3x32x32, not examples of 80"),
        ("feddecomp", images(1, (1, 32, 32)), "of 3x32x32 or 3x64x64, not examples of 1x32x32"),
        ("feddecomp", torch.zeros(1, 3, 32, 32), "images stored as bytes, not float32"),
    ],
)
def test_data_that_a_transform_is_not_made_for_are_refused(name, x, words):
    with pytest.raises(DataError, match=f"data.transform = '{name}' .*{words}"):
        build_transform(name, x, 100)


def test_an_unknown_transform_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"data.transform: unknown name 'fedecomp'.*feddecomp"):
        hp.federate("digits", transform="fedecomp")
    with pytest.raises(ConfigError, match=r"data.transform: must be one of half, fedavg2rep"):
        resolve_config({"data": {"transform": "fedecomp"}})


@pytest.mark.parametrize(("name", "classes"), [("half", 10), ("feddecomp", 10)])
def test_there_must_be_something_to_freeze(name, classes):
    with pytest.raises(ConfigError, match=f"data.frozen_augment: data.transform = '{name}'"):
        build_transform(name, images(1), classes, frozen=True)


def test_the_command_answers_in_one_line():
    said = CliRunner().invoke(app, ["data", "partition", "-c", "data.transform=fedavg2rep"])
    text = said.output + str(said.exception)
    assert said.exit_code != 0
    assert "data.transform = 'fedavg2rep' needs colour images of 3x32x32" in text


# A federation -------------------------------------------------------------------------------

DIGEST = "aff6abccf89cd5ccae3cc91b8e0aa7f6f0a2c7d2e724cc9b7e49cbe7013f804e"  # before transforms


@cache
def federation(name: str | None = None, frozen: bool = False, classes: int = 12) -> hp.Federation:
    x = (np.arange(120 * 3 * 32 * 32) % 251).astype(np.uint8).reshape(120, 3, 32, 32)
    how = {} if name is None else {"transform": name, "frozen_augment": frozen}
    y = np.arange(120) % classes
    return hp.federate((x, y), clients=4, partition=hp.IID(), seed=3, **how)


def test_a_digest_changes_with_the_transform_and_only_then():
    assert federation().sha256 == federation("half").sha256 == DIGEST
    others = [("fedavg2rep", False), ("fedavg2rep", True), ("feddecomp", False)]
    assert len({DIGEST, *(federation(*o).sha256 for o in others)}) == 4


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["fedavg2rep", "feddecomp"])
def test_saved_and_opened_the_transform_is_the_same(tmp_path, name, frozen):
    f = federation(name, frozen)
    f.save(tmp_path)
    opened = Federation.open(tmp_path)
    assert opened.transform == f.transform
    assert opened.transform.moves.frozen is frozen
    assert opened.sha256 == f.sha256
    for g in (f, opened):
        data = g.data("1")
        assert (data.train.scale, data.train.image_transform) == (
            f.transform.train,
            f.transform.moves,
        )
        assert (data.test.scale, data.test.image_transform) == (f.transform.test, None)


def test_clients_with_their_own_data_have_transforms_too():
    x, y = images(8).numpy(), np.arange(8)
    f = hp.federate([(x, y), (x, y)], transform="fedavg2rep")
    assert f.transform == build_transform("fedavg2rep", f.x, 8)


def test_a_configuration_transforms_its_federation(tmp_path):
    np.savez(tmp_path / "own.npz", x=images(40).numpy(), y=np.arange(40) % 20)
    data = {"name": str(tmp_path / "own.npz"), "clients": 2, "partition": {"kind": "iid"},
            "transform": "feddecomp", "frozen_augment": True}  # fmt: skip
    config = resolve_config({"data": data})
    assert config.build_federation().transform.moves == RandomImageTransform(
        4, True, 15.0, frozen=True
    )
    assert 'transform = "feddecomp"\nfrozen_augment = true' in config.to_toml()


# Runs ---------------------------------------------------------------------------------------

played = partial(
    hp.run, model="mlp", rounds=2, participation=0.5, training=hp.Training(epochs=2, batch=8)
)


@dataclass(frozen=True)
class Watched(FedAvg):
    """Writes down what is trained on and what is asked."""

    def local(self, client):
        def loss(x, y):
            stream = torch.random.get_rng_state().numpy().tobytes()
            TRAINED.append((client.t, client.id, x.clone(), y.tolist(), stream))
            return cross_entropy(client.net(x), y)

        client.fit(loss)
        return client.shared()

    def predict(self, client, x):
        ASKED.append((client.id, x.clone()))
        return super().predict(client, x)


TRAINED: list[tuple] = []
ASKED: list[tuple] = []


def watched(f: hp.Federation) -> tuple[list[tuple], list[tuple]]:
    TRAINED.clear()
    ASKED.clear()
    played(Watched(), f, participation=1.0)
    return list(TRAINED), list(ASKED)


def by_image(trained: list[tuple]) -> dict[tuple[int, int], list[bytes]]:
    """What was made of each image in each round; with 120 classes a label names an image."""
    found: dict[tuple[int, int], list[bytes]] = {}
    for t, _, x, y, _ in trained:
        for image, label in zip(x, y, strict=True):
            found.setdefault((t, label), []).append(image.contiguous().numpy().tobytes())
    return found


def test_without_a_transform_and_with_half_the_bits_are_the_same():
    assert identical(played("fedavg", federation()), played("fedavg", federation("half")))


def test_feddecomps_cifar10_has_the_bits_of_half():
    plain, theirs = (federation(n, classes=10) for n in ("half", "feddecomp"))
    assert theirs.transform is not None
    assert identical(played("fedavg", plain), played("fedavg", theirs))


@pytest.mark.parametrize("frozen", [False, True])
def test_the_order_of_batches_and_all_other_randomness_are_as_without(frozen):
    plain, _ = watched(federation())
    moved, _ = watched(federation("fedavg2rep", frozen))
    assert [(t, c, y, s) for t, c, _, y, s in plain] == [(t, c, y, s) for t, c, _, y, s in moved]
    assert not any(torch.equal(a[2], b[2]) for a, b in zip(plain, moved, strict=True))


def test_on_the_fly_an_image_is_moved_anew_in_every_epoch_and_round():
    found = by_image(watched(federation("fedavg2rep", classes=120))[0])
    seen = {label: {v for (_, own), vs in found.items() if own == label for v in vs}
            for _, label in found}  # fmt: skip
    assert sum(len(v) > 1 for v in seen.values()) > 0.9 * len(seen)
    assert any(set(found[0, y]).isdisjoint(found[1, y]) for _, y in found if (1, y) in found)


def test_frozen_an_image_is_the_same_in_every_epoch_and_round():
    f = federation("fedavg2rep", frozen=True, classes=120)
    found = by_image(watched(f)[0])
    labels = {y for _, y in found}
    ways = {y: {v for (_, own), vs in found.items() if own == y for v in vs} for y in labels}
    assert all(len(v) == 1 for v in ways.values())
    still = {
        int(f.y[i]): f.transform.train(f.x[i : i + 1])[0].numpy().tobytes() for i in range(120)
    }
    assert sum(ways[y] != {still[y]} for y in labels) > 0.9 * len(labels)


def test_what_is_measured_is_never_moved_and_has_the_test_constants():
    f = federation("fedavg2rep")
    _, asked = watched(f)
    own = {c: f.transform.test(f.data(c).test.get_all_stored()) for c in f.clients}
    assert len(asked) == 4 * (3 * 2 + 2)  # G and P after 0, 1 and 2 rounds, P_local after each
    assert all(torch.equal(x, own[c]) for c, x in asked)


def test_features_are_those_of_the_images_as_they_are(monkeypatch):
    f = federation("feddecomp")
    x = f.transform.train(f.data("2").train.get_all_stored())
    equal = []

    @dataclass(frozen=True)
    class Features(FedAvg):
        def local(self, client):
            found = client.features()
            if client.id == "2":
                with torch.no_grad():
                    equal.append(torch.allclose(found, client.net.base(x), atol=1e-5))
            return client.shared()

    monkeypatch.setattr(
        RandomImageTransform, "__call__", lambda *_: pytest.fail("an image was moved")
    )
    played(Features(), f, participation=1.0)
    assert equal == [True, True]


def test_rebalanced_copies_are_stored_unmoved_and_moved_when_trained_on(monkeypatch):
    plain, moved = (federation(n) for n in ("half", "fedavg2rep"))
    kept, seen = {}, []

    @dataclass(frozen=True)
    class Kept(FedReG):
        def local(self, client):
            once = client.once

            def noted(derive):
                found = once(derive)
                kept.setdefault(client.id, []).append(found)
                return found

            client.once = noted
            return super().local(client)

    move = RandomImageTransform.__call__
    monkeypatch.setattr(
        RandomImageTransform,
        "__call__",
        lambda self, x, u: (seen.append(len(x)), move(self, x, u))[1],
    )
    played(Kept(augment="copy"), plain, participation=1.0, rounds=1)
    assert not seen
    played(Kept(augment="copy"), moved, participation=1.0, rounds=1)
    assert seen
    for one, other in kept.values():
        assert torch.equal(one.get_all_stored(), other.get_all_stored())
        assert (one.image_transform, other.image_transform) == (None, moved.transform.moves)


@pytest.mark.parametrize(
    ("algorithm", "name", "frozen"),
    [("perfedavg", "feddecomp", False), ("fedala", "fedavg2rep", True)],
)
def test_serial_and_pool_have_the_same_bits(algorithm, name, frozen):
    f = federation(name, frozen)
    one, two = played(algorithm, f), played(algorithm, f, engine="pool", workers=2)
    assert identical(one, two)
    assert one.model_sha256 != played(algorithm, federation()).model_sha256


def test_part_of_frozen_data_is_moved_as_the_whole():
    f = federation("fedavg2rep", frozen=True)
    seen = []

    @dataclass(frozen=True)
    class Part(FedAvg):
        def local(self, client):
            train = client.data.train
            rows = train.rows[torch.tensor([7, 2, 11])]
            for data in (train, replace(train, rows=rows)):
                order = []
                client.fit(
                    lambda x, y, order=order: (order.append(x), client.compute_net_loss(x, y))[1],
                    data=data,
                    how=hp.Training(epochs=1, batch=90, drop_last=False, lr=0.0),
                    phase=f"of {len(data)}",
                )
                seen.append({v.contiguous().numpy().tobytes() for v in torch.cat(order)})
            return client.shared()

    played(Part(), f, participation=hp.Uniform(count=1), rounds=1)
    assert len(seen[1]) == 3
    assert seen[1] < seen[0]


def test_a_model_takes_stored_bytes_with_the_test_constants():
    f = federation("fedavg2rep")
    model = played("fedavg", f).personal("0")
    x = f.data("0").test.get_all_stored()
    with torch.no_grad():
        assert torch.equal(model(x), model(f.transform.test(x)))
        assert not torch.equal(model(x), model(f.transform.train(x)))


def test_a_run_from_python_says_its_transform(tmp_path):
    how = {"rounds": 1, "out": tmp_path / "run", "resume": True}
    played("fedavg", federation("feddecomp", frozen=True), **how)
    said = (tmp_path / "run" / "config.toml").read_text()
    assert 'transform = "feddecomp"\nfrozen_augment = true' in said
    with pytest.raises(hp.HeterophonyError, match="holds a run with other settings"):
        played("fedavg", federation("feddecomp"), **how)
