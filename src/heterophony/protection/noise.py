"""Gaussian noise that only the holder of a secret can draw, and can draw again after a resume.

Bits come from SHAKE-256, a cryptographic function: whoever sees some of the noise cannot compute
the rest, as would be possible with the generators of NumPy and torch.
"""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np
import torch
from scipy.special import ndtri  # type: ignore[import-untyped]

from ..core.tensors import Tensors


def draw_uniform(
    secret: bytes, purpose: str, count: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Draw numbers between 0 and 1, both excluded, for a purpose; 53 random bits each."""
    stream = hashlib.shake_256(len(secret).to_bytes(8, "big") + secret + purpose.encode())
    words = np.frombuffer(stream.digest(8 * count), "<u8") >> np.uint64(11)
    return (words.astype(np.float64) + 0.5) / 2.0**53


def draw_normal_like(tensors: Tensors, secret: bytes, purpose: str) -> Tensors:
    """Draw standard normal noise with the names and shapes of these tensors, in float64."""

    def draw(name: str, shape: torch.Size) -> torch.Tensor:
        values = ndtri(draw_uniform(secret, f"{purpose}|{name}", prod(shape)))
        return torch.from_numpy(values).reshape(shape)

    return Tensors({k: draw(k, v.shape) for k, v in tensors.items()})
