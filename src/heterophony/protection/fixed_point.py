"""Moves as whole numbers of a small unit: sums and remainders of whole numbers are exact.

A value that has been rounded to 24 significant bits is again a whole number of units, and a float32
holds it exactly. So what is sent and what is remembered add up to what was moved, without an error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import CodecError, DivergedError

UNIT = 2.0**-40  # finer than float32 for all values above 2^-17
LIMIT = 2.0**22  # of a value; its units then fit into 63 bits, and so do sums of two


def to_units(values: Tensor, what: str) -> Tensor:
    """Round to whole numbers of units, as int64."""
    if not bool((values.abs() < LIMIT).all()):  # also false for NaN
        raise DivergedError(f"{what}: a value is not below {LIMIT:g} or not finite; lower local.lr")
    return torch.round(values.double() / UNIT).to(torch.int64)


def round_to_float32(units: Tensor) -> Tensor:
    """Return the nearest float32 values; each is a whole number of units."""
    return (units.double() * UNIT).float()


def from_float32(values: Tensor) -> Tensor:
    """Return the units of float32 values from the network; raise CodecError if they have none."""
    if not bool((values.abs() < 2 * LIMIT).all()):
        raise CodecError("a compressed tensor holds a value that is too large or not finite")
    return torch.round(values.double() / UNIT).to(torch.int64)


def keep_significant_bits(units: int, bits: int = 24) -> int:
    """Round a whole number up to one with so many significant bits, which a float32 can hold."""
    spare = max(0, units.bit_length() - bits)
    return -(-units >> spare) << spare
