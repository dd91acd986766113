"""Random numbers that depend only on their purpose, not on when or where they are drawn.

Every purpose has its own generator, seeded by a key such as ``(seed, "fit", round, client)``. The
same run therefore draws the same numbers on every engine, and new draws do not shift others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*key: object) -> int:
    """Compute a 63-bit seed from the key."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big") >> 1


def make_generator(*key: object) -> np.random.Generator:
    """Create a NumPy generator for the purpose that the key names."""
    return np.random.default_rng(derive_seed(*key))


@contextmanager
def seeded(*key: object) -> Iterator[None]:
    """Seed torch's global generator by the key; restore its state at the end."""
    generator = torch.default_generator
    before = generator.get_state()
    try:
        # torch.manual_seed also seeds GPUs, which takes a millisecond even where there are none
        generator.manual_seed(derive_seed(*key))
        yield
    finally:
        generator.set_state(before)
