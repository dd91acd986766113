"""A client's examples: scaled as the papers say, never dropped, balanced exactly, augmented one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterophony.algorithms.parts.augmentation import augment_images
from heterophony.algorithms.parts.rebalancing import rebalance
from heterophony.core.errors import DataError
from heterophony.core.randomness import seeded
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE, ClientData, Samples, Scale

SHAPES = [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 28, 28)]


def images(n: int, shape=(1, 8, 8), top: int = 255, key: object = 0) -> torch.Tensor:
    """Images that all differ: the first pixels are a serial number."""
    with seeded("images", key):
        x = torch.randint(0, top + 1, (n, *shape), dtype=torch.uint8)
    x.view(n, -1)[:, 0], x.view(n, -1)[:, 1] = (
        torch.arange(n) % (top + 1),
        torch.arange(n) // (top + 1),
    )
    return x


def rows_of(x: torch.Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in x]


def client(
    counts: dict[int, int], shape=(1, 8, 8), scale: Scale = BYTES_TO_PLUS_MINUS_ONE
) -> Samples:
    """A client with so many images of each class, in a mixed order, being rows of a larger pool."""
    labels = torch.tensor([c for c, n in counts.items() for _ in range(n)])
    with seeded("client"):
        labels = labels[torch.randperm(len(labels))]
        rows = torch.randperm(2 * len(labels))[: len(labels)]
    y = torch.full((2 * len(labels),), 99)
    y[rows] = labels
    return Samples(images(2 * len(labels), shape), y, scale, rows)


# Scaling ------------------------------------------------------------------------------------


def test_bytes_become_minus_one_to_one():
    x = torch.arange(256, dtype=torch.uint8)
    exact = (np.arange(256) / 255 - 0.5) / 0.5
    assert np.abs(BYTES_TO_PLUS_MINUS_ONE(x).double().numpy() - exact).max() < 1e-6
    assert BYTES_TO_PLUS_MINUS_ONE(x).dtype == torch.float32
    assert x.dtype == torch.uint8


def test_other_units_and_single_constants():
    x = torch.arange(17, dtype=torch.uint8)
    exact = (np.arange(17) / 16 - 0.1307) / 0.3081
    got = Scale(16.0, (0.1307,), (0.3081,))(x).double().numpy()
    assert np.abs(got - exact).max() < 1e-6


def test_constants_per_channel():
    mean, std = (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)
    x = images(5, (3, 4, 4))
    wide = np.array(mean).reshape(3, 1, 1), np.array(std).reshape(3, 1, 1)
    exact = (x.double().numpy() / 255 - wide[0]) / wide[1]
    assert np.abs(Scale(255.0, mean, std)(x).double().numpy() - exact).max() < 1e-6


def test_one_mean_with_a_deviation_per_channel():
    std = (0.1, 0.2, 0.4)
    x = images(5, (3, 4, 4))
    exact = (x.double().numpy() / 255 - 0.5) / np.array(std).reshape(3, 1, 1)
    assert np.abs(Scale(255.0, (0.5,), std)(x).double().numpy() - exact).max() < 2e-6


def test_integer_sequences_and_plain_floats_pass_unchanged():
    tokens = torch.arange(80)
    assert BYTES_TO_PLUS_MINUS_ONE(tokens) is tokens
    numbers = torch.tensor([0.25, -3.0])
    assert torch.equal(Scale()(numbers), numbers)
    assert Scale()(numbers.double()).dtype == torch.float32


def test_scaling_a_batch_leaves_the_pool_as_it_is():
    x = torch.tensor([[1.0], [2.0], [3.0]])
    samples = Samples(x, torch.tensor([0, 1, 0]), Scale(2.0, (0.5,), (0.5,)))
    first = samples.batch(torch.tensor([0, 1, 2]))[0]
    again = samples.batch(torch.tensor([0, 1, 2]))[0]
    assert torch.equal(first, again)
    assert x.flatten().tolist() == [1.0, 2.0, 3.0]


# Batches and counts -------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=50)
@given(n=st.integers(1, 60), size=st.integers(1, 70), whole=st.booleans())
def test_batches_hold_every_example_once_and_in_order(n, size, whole):
    x, y = torch.arange(2.0 * n).reshape(2 * n, 1), torch.arange(2 * n) % 7
    rows = None if whole else torch.arange(2 * n).flip(0)[:n]
    samples = Samples(x, y, rows=rows)
    batches = list(samples.batches(size))
    assert len(samples) == (2 * n if whole else n)
    assert [len(b) for _, b in batches[:-1]] == [size] * (len(batches) - 1)
    assert torch.equal(torch.cat([a for a, _ in batches]), samples.get_all_stored())
    assert torch.equal(torch.cat([b for _, b in batches]), samples.labels)


def test_a_batch_is_what_its_positions_say_scaled():
    samples = client({0: 5, 3: 4})
    at = torch.tensor([8, 0, 3])
    x, y = samples.batch(at)
    assert torch.equal(x, BYTES_TO_PLUS_MINUS_ONE(samples.get_stored(at)))
    assert torch.equal(samples.get_stored(at), samples.x[samples.rows[at]])
    assert torch.equal(y, samples.y[samples.rows[at]])
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_counts_see_the_whole_set():
    train, test = client({0: 23, 2: 1, 4: 7}), client({1: 2})
    data = ClientData(train, test, classes=6)
    assert data.counts.tolist() == [23, 0, 1, 0, 7, 0]
    assert train.count_classes(5).tolist() == [23, 0, 1, 0, 7]


# Balancing (spec 10, 3A) --------------------------------------------------------------------

COUNTS = {0: 30, 2: 4, 3: 12, 7: 1}


@pytest.mark.parametrize("target", [1, 2, 11, 12, 13, 30, 50])
def test_every_held_class_gets_exactly_the_target_and_absent_ones_stay_absent(target):
    with seeded("balance"):
        made = rebalance(client(COUNTS), target, "simple")
    assert made.count_classes(10).tolist() == [target * (c in COUNTS) for c in range(10)]
    assert len(made.get_all_stored()) == target * len(COUNTS)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    counts=st.dictionaries(st.integers(0, 9), st.integers(1, 15), min_size=1, max_size=5),
    target=st.integers(1, 20),
)
def test_large_classes_are_cut_without_repetition_and_small_ones_kept_whole(counts, target):
    mine = client(counts)
    with seeded("balance", target):
        made = rebalance(mine, target, "copy")
    assert made.count_classes(10).tolist() == [target if c in counts else 0 for c in range(10)]
    for c, n in counts.items():
        had = rows_of(mine.get_all_stored()[mine.labels == c])
        got = rows_of(made.get_all_stored()[made.labels == c])
        assert len(set(had)) == n
        if n >= target:
            assert len(set(got)) == target, "no repetition"
            assert set(got) <= set(had)
        else:
            assert set(got) == set(had), "all originals"
    originals = sum(min(n, target) for n in counts.values())  # D^e of the spec
    assert len(set(rows_of(made.get_all_stored()))) == originals


def test_the_originals_of_a_small_class_are_unaltered_among_augmented_copies():
    mine = client({0: 3, 1: 40})
    with seeded("balance"):
        made = rebalance(mine, 20, "simple")
    had = rows_of(mine.get_all_stored()[mine.labels == 0])
    got = rows_of(made.get_all_stored()[made.labels == 0])
    assert sorted(g for g in got if g in had) == sorted(had)
    assert set(got[:3]) == set(had), "originals first"


def test_a_balanced_client_keeps_its_data_and_nothing_is_augmented(monkeypatch):
    monkeypatch.setattr(
        "heterophony.algorithms.parts.augmentation.augment_images",
        lambda *_: pytest.fail("augmented"),
    )
    mine = client({1: 15, 4: 15, 5: 15})
    with seeded("balance"):
        made = rebalance(mine, 15, "simple")

    def pairs(s: Samples) -> list[tuple[bytes, int]]:
        return sorted(zip(rows_of(s.get_all_stored()), s.labels.tolist(), strict=True))

    assert pairs(made) == pairs(mine)
    assert made.scale == mine.scale


def test_balancing_depends_on_the_seed_alone():
    mine = client(COUNTS)

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
    mine = client(COUNTS)
    before = mine.x.clone()
    with seeded("a"):
        rebalance(mine, 12, "auto")
    assert torch.equal(mine.x, before)


# Augmentation -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["simple", "auto"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_64_copies_of_one_image_become_many_and_keep_type_shape_and_range(kind, shape):
    x = images(1, shape, key=shape).expand(64, -1, -1, -1)
    with seeded("augment", kind):
        out = augment_images(x, kind, 255.0)
    assert out.dtype == torch.uint8
    assert out.shape == x.shape
    distinct = len(set(rows_of(out)))
    assert distinct > (50 if kind == "simple" else 15)


@pytest.mark.parametrize("kind", ["simple", "auto", "copy"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_augmentation_is_deterministic_under_its_seed(kind, shape):
    x = images(20, shape)
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
    x = images(40, top=16)
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
    monkeypatch.setattr("heterophony.algorithms.parts.augmentation.AutoAugment", lambda name: marks)
    with seeded("policies"):
        out = augment_images(images(200, (3, 8, 8)), "auto", 255.0)
    assert torch.equal(out, out[:, :1, :1, :1].expand_as(out)), "one for the whole image"
    assert out[:, 0, 0, 0].unique().tolist() == list(range(25)), "and all of them are used"


def test_a_grey_image_stays_grey_under_the_colour_policy():
    x = images(10, (1, 28, 28))
    with seeded("grey"):
        assert augment_images(x, "auto", 255.0).shape == (10, 1, 28, 28)


def test_a_copy_is_the_image_itself_in_memory_of_its_own():
    x = images(3)
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
    assert rows_of(made.get_all_stored()[made.labels == 1]) == rows_of(x[5:]) * 3


def test_float_images_out_of_their_unit_are_refused_not_clamped():
    x = torch.rand(4, 1, 8, 8) * 255
    with pytest.raises(DataError, match="values of 0 to 1, not"):
        augment_images(x, "simple", 1.0)
    with pytest.raises(DataError, match="values of 0 to 1, not"):
        augment_images(x / 255 - 0.5, "auto", 1.0)
