"""A client's samples: scaling, batches and class counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.images import make_client_samples, make_images
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE, ClientData, Samples, Scale

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
    x = make_images(5, (3, 4, 4))
    wide = np.array(mean).reshape(3, 1, 1), np.array(std).reshape(3, 1, 1)
    exact = (x.double().numpy() / 255 - wide[0]) / wide[1]
    assert np.abs(Scale(255.0, mean, std)(x).double().numpy() - exact).max() < 1e-6


def test_one_mean_with_a_deviation_per_channel():
    std = (0.1, 0.2, 0.4)
    x = make_images(5, (3, 4, 4))
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
    samples = make_client_samples({0: 5, 3: 4})
    at = torch.tensor([8, 0, 3])
    x, y = samples.batch(at)
    assert torch.equal(x, BYTES_TO_PLUS_MINUS_ONE(samples.get_stored(at)))
    assert torch.equal(samples.get_stored(at), samples.x[samples.rows[at]])
    assert torch.equal(y, samples.y[samples.rows[at]])
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_counts_see_the_whole_set():
    train, test = make_client_samples({0: 23, 2: 1, 4: 7}), make_client_samples({1: 2})
    data = ClientData(train, test, classes=6)
    assert data.counts.tolist() == [23, 0, 1, 0, 7, 0]
    assert train.count_classes(5).tolist() == [23, 0, 1, 0, 7]


# Gathering ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 5), (7,), (3, 64, 64)])
@pytest.mark.parametrize("size", [1, 3, 10])
def test_batches_that_are_gathered_together_are_those_of_one_at_a_time(shape, size):
    x = make_images(25, shape)
    samples = Samples(x, torch.arange(25) % 4, BYTES_TO_PLUS_MINUS_ONE, torch.randperm(25)[:22])
    epochs = [torch.randperm(22), torch.randperm(22)[:7]]
    gathered = list(samples.gather_batches(epochs, size))
    single = [samples.batch(at) for order in epochs for at in order.split(size)]
    assert len(gathered) == len(single)
    for (x1, y1), (x2, y2) in zip(gathered, single, strict=True):
        assert torch.equal(x1, x2)
        assert torch.equal(y1, y2)
        assert x1.stride() == x2.stride()
        assert x1.data_ptr() % 64 == 0  # as if allocated: matrix products may round by address


def test_an_epoch_is_drawn_only_after_the_one_before_is_used():
    """Dropout draws between two epochs: their order must stay the same."""
    samples, drawn = make_client_samples({0: 6}), list[int]()

    def epochs():
        for i in range(2):
            drawn.append(i)
            yield torch.arange(6)

    batches = samples.gather_batches(epochs(), 2)
    for _ in range(3):
        next(batches)
    assert drawn == [0]
    next(batches)
    assert drawn == [0, 1]
