"""Random numbers that depend only on their purpose, not on when or where they are drawn.

Every purpose has its own generator, seeded by a key such as ``(seed, "fit", round, client)``. The
same run therefore draws the same numbers on every engine, and new draws do not shift others.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .accelerator import get_compute

GENERATORS = threading.RLock()  # held by the thread that seeded the global generators


def derive_seed(*key: object) -> int:
    """Derive the 63-bit seed of a random generator from a key, such as (seed, "fit", round, client)."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big") >> 1


def make_generator(*key: object) -> np.random.Generator:
    """Create a NumPy random generator for one purpose, seeded by a key such as (seed, "attack")."""
    return np.random.default_rng(derive_seed(*key))


@contextmanager
def seeded(*key: object) -> Iterator[None]:
    """Seed torch's global generators by the key; restore their states at the end.

    These are the CPU's generator and, for a job on another device, that device's generator as well. All
    threads of a process share these generators, so other threads wait before such a block.
    """
    generator, device = torch.default_generator, get_compute().device
    seed = derive_seed(*key)
    with GENERATORS, nullcontext() if device.type == "cpu" else seeded_on_device(device, seed):
        before = generator.get_state()
        try:
            # torch.manual_seed also seeds GPUs, which takes a millisecond even without any GPU
            generator.manual_seed(seed)
            yield
        finally:
            generator.set_state(before)


@contextmanager
def seeded_on_device(device: torch.device, seed: int) -> Iterator[None]:
    """Seed a device's generator; restore its state at the end."""
    before, module = get_device_state(device), torch.get_device_module(device)
    try:
        # manual_seed seeds the current device, which each thread chooses for itself
        with module.device(device) if device.type == "cuda" else nullcontext():
            module.manual_seed(seed)
        yield
    finally:
        set_device_state(device, before)


@dataclass(frozen=True)
class GeneratorStates:
    """The states of the generators that a job draws from, to draw the same numbers again."""

    cpu: Tensor
    device: Tensor | None

    @classmethod
    def save(cls) -> GeneratorStates:
        """Save the current states of the generators."""
        device = get_compute().device
        there = None if device.type == "cpu" else get_device_state(device)
        return cls(torch.default_generator.get_state(), there)

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.default_generator.set_state(self.cpu)
        if self.device is not None:
            set_device_state(get_compute().device, self.device)


@contextmanager
def drawing_again(states: GeneratorStates) -> Iterator[None]:
    """Repeat the random draws made after these states inside the block; later draws are unaffected."""
    now = GeneratorStates.save()
    states.restore()
    try:
        yield
    finally:
        now.restore()


def get_device_state(device: torch.device) -> Tensor:
    """Return the state of a device's generator."""
    module = torch.get_device_module(device)
    state: Tensor = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    return state


def set_device_state(device: torch.device, state: Tensor) -> None:
    """Set the state of a device's generator."""
    module = torch.get_device_module(device)
    module.set_rng_state(state, *(() if device.type == "mps" else (device,)))
