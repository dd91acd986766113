"""Randomness as a function of what it is for, never of when or where it is drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*key: object) -> int:
    """63 bits that depend on the key alone."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big") >> 1


def make_generator(*key: object) -> np.random.Generator:
    """NumPy's randomness for one purpose."""
    return np.random.default_rng(derive_seed(*key))


@contextmanager
def seeded(*key: object) -> Iterator[None]:
    """Inside, torch's randomness depends on ``key`` alone; outside, nothing has changed."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed does the same and, for GPUs that are not there, a millisecond more
        torch.default_generator.manual_seed(derive_seed(*key))
        yield
