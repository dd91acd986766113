"""Whole runs under faults that one seed draws; scripts/simulate_faults tries many more."""

from __future__ import annotations

import pytest

from helpers import fault_world
from helpers.fault_mutations import MUTATIONS, count_seeds
from helpers.fault_world import PromiseError, draw_faults, shrink, simulate


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_promises_hold_under_every_fault(first):
    for seed in range(first, first + 20):
        simulate(seed)


def test_a_seed_does_the_same_again():
    first, second = (fault_world.hash_trace(simulate(12)) for _ in range(2))
    assert first == second


def test_a_broken_promise_is_found_and_needs_few_faults(monkeypatch):
    from heterophony.core import files

    monkeypatch.setattr(files, "sync_folder", lambda folder: None)
    found = next(s for s in range(200) if fault_world.is_broken(s, draw_faults(s)))
    kept = shrink(found)
    assert 0 < len(kept) < len(draw_faults(found))
    with pytest.raises(PromiseError):
        simulate(found, [draw_faults(found)[i] for i in kept])


def test_every_safeguard_can_be_taken_out():
    for words, take_out in MUTATIONS.items():
        with take_out():
            assert words


def test_a_safeguard_that_is_missing_is_noticed():
    assert count_seeds("keep the secret of the noise", 0, 200) is not None
