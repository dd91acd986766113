"""The cache of examples on a device: bounded, and those that were not used for longest leave."""

from __future__ import annotations

import torch

from heterophony.core.accelerator import ResidentExamples


class Copies:
    """Makes examples of so many bytes, and counts how often."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def get(self, cache: ResidentExamples, name: str, size: int = 40) -> torch.Tensor:
        def copy() -> torch.Tensor:
            self.made.append(name)
            return torch.zeros(size, dtype=torch.uint8)

        return cache.get(name, copy)


def test_what_was_not_used_for_longest_leaves():
    cache, copies = ResidentExamples(limit=100), Copies()
    for name in ("a", "b", "a", "c"):  # c has no room beside both, and b was used longest ago
        copies.get(cache, name)
    assert copies.made == ["a", "b", "c"]
    assert cache.size == 80
    copies.get(cache, "a")
    assert copies.made == ["a", "b", "c"]
    copies.get(cache, "b")
    assert copies.made == ["a", "b", "c", "b"]
    assert cache.size == 80


def test_examples_that_are_larger_than_the_bound_are_not_kept_and_push_nothing_out():
    cache, copies = ResidentExamples(limit=100), Copies()
    copies.get(cache, "a")
    for _ in range(2):
        copies.get(cache, "large", 101)
    copies.get(cache, "a")
    assert copies.made == ["a", "large", "large"]
    assert cache.size == 40


def test_examples_of_another_federation_are_forgotten():
    """Its clients may have the same names."""
    cache, copies = ResidentExamples(limit=100), Copies()
    one, other = object(), object()
    for owner in (one, one, other):
        cache.serve_federation(owner)
        copies.get(cache, "a")
    assert copies.made == ["a", "a"]
    assert cache.size == 40
