"""Label statistics, compared with numbers computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterophony.data.federation import entropy, jensen_shannon, total_variation

quick = settings(derandomize=True, deadline=None, max_examples=50)


def test_entropy_in_bits():
    counts = np.array([[8, 0, 0, 0], [4, 4, 0, 0], [1, 1, 1, 1], [2, 1, 1, 0]])
    assert entropy(counts).tolist() == [0.0, 1.0, 2.0, 1.5]


def test_distances_of_two_clients_with_nothing_in_common():
    counts = np.array([[10, 0], [0, 10]])
    assert total_variation(counts).tolist() == [0.5, 0.5]
    # half of each mixture's part: h(1/4) - h(1/2) / 2 with h in bits
    assert jensen_shannon(counts).tolist() == pytest.approx([0.3112781245] * 2)


def test_a_client_without_examples_is_no_trouble():
    counts = np.array([[0, 0], [3, 3]])
    assert entropy(counts).tolist() == [0.0, 1.0]
    assert np.isfinite(total_variation(counts)).all()


@quick
@given(st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), min_size=1, max_size=6))
def test_equal_clients_have_no_distance_and_all_distances_lie_between_0_and_1(rows):
    counts = np.array(rows)
    same = np.tile(counts[:1], (4, 1))
    assert total_variation(same).max() < 1e-12
    assert jensen_shannon(same).max() < 1e-12
    for measure in (total_variation, jensen_shannon):
        found = measure(counts)
        assert found.shape == (len(rows),)
        assert ((found >= 0) & (found <= 1)).all()
    assert (jensen_shannon(counts) <= total_variation(counts) + 1e-12).all()
