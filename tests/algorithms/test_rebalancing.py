"""FedReG's rebalancing: exact class counts, cut large classes, augmented copies of small ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.images import list_image_bytes, make_client_samples, make_images
from heterophony.algorithms.parts.rebalancing import AUTO_AUGMENTATIONS, augment_images, rebalance
from heterophony.core.errors import DataError
from heterophony.core.randomness import seeded
from heterophony.core.samples import Samples

SHAPES = [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 28, 28)]


# Rebalancing --------------------------------------------------------------------------------

COUNTS = {0: 30, 2: 4, 3: 12, 7: 1}


@pytest.mark.parametrize("target", [1, 2, 11, 12, 13, 30, 50])
def test_every_held_class_gets_exactly_the_target_and_absent_ones_stay_absent(target):
    with seeded("balance"):
        made = rebalance(make_client_samples(COUNTS), target, "simple")
    assert made.count_classes(10).tolist() == [target * (c in COUNTS) for c in range(10)]
    assert len(made.get_all_stored()) == target * len(COUNTS)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    counts=st.dictionaries(st.integers(0, 9), st.integers(1, 15), min_size=1, max_size=5),
    target=st.integers(1, 20),
)
def test_large_classes_are_cut_without_repetition_and_small_ones_kept_whole(counts, target):
    mine = make_client_samples(counts)
    with seeded("balance", target):
        made = rebalance(mine, target, "copy")
    assert made.count_classes(10).tolist() == [target if c in counts else 0 for c in range(10)]
    for c, n in counts.items():
        had = list_image_bytes(mine.get_all_stored()[mine.labels == c])
        got = list_image_bytes(made.get_all_stored()[made.labels == c])
        assert len(set(had)) == n
        if n >= target:
            assert len(set(got)) == target, "no repetition"
            assert set(got) <= set(had)
        else:
            assert set(got) == set(had), "all originals"
    originals = sum(min(n, target) for n in counts.values())  # without copies
    assert len(set(list_image_bytes(made.get_all_stored()))) == originals


def test_the_originals_of_a_small_class_are_unaltered_among_augmented_copies():
    mine = make_client_samples({0: 3, 1: 40})
    with seeded("balance"):
        made = rebalance(mine, 20, "simple")
    had = list_image_bytes(mine.get_all_stored()[mine.labels == 0])
    got = list_image_bytes(made.get_all_stored()[made.labels == 0])
    assert sorted(g for g in got if g in had) == sorted(had)
    assert set(got[:3]) == set(had), "originals first"


def test_a_balanced_client_keeps_its_data_and_nothing_is_augmented(monkeypatch):
    monkeypatch.setattr(
        "heterophony.algorithms.parts.rebalancing.augment_images",
        lambda *_: pytest.fail("augmented"),
    )
    mine = make_client_samples({1: 15, 4: 15, 5: 15})
    with seeded("balance"):
        made = rebalance(mine, 15, "simple")

    def pairs(s: Samples) -> list[tuple[bytes, int]]:
        return sorted(zip(list_image_bytes(s.get_all_stored()), s.labels.tolist(), strict=True))

    assert pairs(made) == pairs(mine)
    assert made.scale == mine.scale


def test_balancing_depends_on_the_seed_alone():
    mine = make_client_samples(COUNTS)

    def made(key: object) -> Samples:
        with seeded(key):
            return rebalance(mine, 12, "simple")

    torch.manual_seed(1)
    one = made("a")
    torch.manual_seed(2)
    two, other = made("a"), made("b")
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.y, two.y)
    assert not torch.equal(one.x, other.x)


def test_balancing_leaves_the_client_as_it_was():
    mine = make_client_samples(COUNTS)
    before = mine.x.clone()
    with seeded("a"):
        rebalance(mine, 12, "auto")
    assert torch.equal(mine.x, before)


# Augmentation -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["simple", "auto"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_64_copies_of_one_image_become_many_and_keep_type_shape_and_range(kind, shape):
    x = make_images(1, shape, key=shape).expand(64, -1, -1, -1)
    with seeded("augment", kind):
        out = augment_images(x, kind, 255.0)
    assert out.dtype == torch.uint8
    assert out.shape == x.shape
    distinct = len(set(list_image_bytes(out)))
    assert distinct > (50 if kind == "simple" else 15)


@pytest.mark.parametrize("kind", ["simple", "auto", "copy"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_augmentation_is_deterministic_under_its_seed(kind, shape):
    x = make_images(20, shape)
    before = x.clone()

    def made(key: str) -> torch.Tensor:
        with seeded(key):
            return augment_images(x, kind, 255.0)

    torch.manual_seed(1)
    one = made("a")
    torch.manual_seed(2)
    assert torch.equal(one, made("a"))
    assert torch.equal(x, before)
    assert (kind == "copy") == torch.equal(one, made("b"))


@pytest.mark.parametrize("kind", ["simple", "auto"])
def test_values_stay_within_the_unit_of_the_data(kind):
    x = make_images(40, top=16)
    with seeded("unit"):
        out = augment_images(x, kind, 16.0)
    assert int(out.max()) <= 16
    assert int(out.max()) > 1, "they are not squeezed either"


@pytest.mark.parametrize("kind", ["simple", "auto"])
def test_float_images_stay_floats_of_their_range(kind):
    with seeded("float"):
        x = torch.rand(20, 3, 8, 8)
        out = augment_images(x, kind, 1.0)
    assert out.dtype == torch.float32
    assert 0.0 <= out.min().item() <= out.max().item() <= 1.0
    assert not torch.equal(out, x)


class Mark(torch.nn.Module):
    """A sub-policy that leaves its number in all pixels."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, self.number / 255)


def test_every_image_of_a_batch_draws_a_sub_policy_of_its_own(monkeypatch):
    """kornia alone would give one sub-policy to all of them."""
    marks = torch.nn.ModuleList(map(Mark, range(25)))
    monkeypatch.setattr("heterophony.algorithms.parts.rebalancing.AutoAugment", lambda name: marks)
    with seeded("policies"):
        out = augment_images(make_images(200, (3, 8, 8)), "auto", 255.0)
    assert torch.equal(out, out[:, :1, :1, :1].expand_as(out)), "one for the whole image"
    assert out[:, 0, 0, 0].unique().tolist() == list(range(25)), "and all of them are used"


def test_a_grey_image_stays_grey_under_the_colour_policy():
    x = make_images(10, (1, 28, 28))
    with seeded("grey"):
        assert augment_images(x, "auto", 255.0).shape == (10, 1, 28, 28)


def test_without_magnitude_a_simple_copy_is_the_image_or_its_mirror_image():
    x = make_images(12)
    with seeded("flips"):
        out = augment_images(x, "simple", 255.0, magnitude=0.0)
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(out, x, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(out, x, strict=True)]
    assert all(a or b for a, b in zip(mirrored, kept, strict=True))
    assert any(mirrored)
    assert any(kept)


def test_magnitudes_and_policies_are_of_their_own():
    x, made = make_images(12), {}
    ways = [("simple", 0.5), ("simple", 1.0), ("simple", 2.0), ("simple", 5.0)]
    for kind, magnitude in [*ways, *((kind, 1.0) for kind in AUTO_AUGMENTATIONS)]:
        for _ in range(2):  # the same seed, the same bits
            with seeded("draws"):
                out = augment_images(x, kind, 255.0, magnitude)
            assert (out.shape, out.dtype) == (x.shape, x.dtype)
            assert torch.equal(made.setdefault((kind, magnitude), out), out)
    assert len({tuple(list_image_bytes(out)) for out in made.values()}) == len(made) == 7


def test_a_copy_is_the_image_itself_in_memory_of_its_own():
    x = make_images(3)
    out = augment_images(x, "copy", 255.0)
    assert torch.equal(out, x)
    out.zero_()
    assert x.any()


@pytest.mark.parametrize("kind", ["simple", "auto"])
@pytest.mark.parametrize("shape", [(20,), (8, 8), (2, 8, 8), (4, 8, 8), (1, 4, 8, 8)])
def test_what_is_no_image_gives_a_clear_error_and_copy_works(kind, shape):
    x, y = torch.rand(6, *shape), torch.tensor([0, 0, 0, 0, 0, 1])
    mine = Samples(x, y)
    with pytest.raises(
        DataError, match=rf"augment = '{kind}' needs images .* use augment = 'copy'"
    ):
        rebalance(mine, 3, kind)
    made = rebalance(mine, 3, "copy")
    assert made.count_classes(2).tolist() == [3, 3]
    assert list_image_bytes(made.get_all_stored()[made.labels == 1]) == list_image_bytes(x[5:]) * 3


def test_float_images_out_of_their_unit_are_refused_not_clamped():
    x = torch.rand(4, 1, 8, 8) * 255
    with pytest.raises(DataError, match="values of 0 to 1, not"):
        augment_images(x, "simple", 1.0)
    with pytest.raises(DataError, match="values of 0 to 1, not"):
        augment_images(x / 255 - 0.5, "auto", 1.0)
