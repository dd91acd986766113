"""Quantisation with error feedback: 8 bits, or 1 bit (Seide et al., 1-bit SGD, Interspeech 2014)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..core.settings import setting
from .error_feedback import (
    Compression,
    get_float_units,
    get_part,
    keep_significant_bits,
    round_to_float32,
)

STEPS = 127  # of 8 bits, in each direction


@dataclass(frozen=True, repr=False)
class Quantize(Compression):
    """Send every change with 8 bits, or 1, and a scale per tensor; remember the rounding error."""

    bits: Literal[1, 8, 32] = setting(8, "bits of every value; 32 changes nothing")

    @property
    def is_identity(self) -> bool:
        return self.bits == 32

    def compresses(self, name: str, tensor: Tensor) -> bool:
        return super().compresses(name, tensor) and tensor.numel() > 0

    def list_parts(self) -> tuple[str, ...]:
        return ("levels", "scale") if self.bits == 8 else ("signs", "scale")

    def compress(self, name: str, units: Tensor) -> dict[str, Tensor]:
        if self.bits == 8:
            step = keep_significant_bits(max(1, -(-int(units.abs().max()) // STEPS)))
            levels = torch.round(units.double() / step).clamp(-STEPS, STEPS).to(torch.int8)
            return {"levels": levels, "scale": make_scale(step)}
        mean = int(units.abs().double().mean())
        return {"signs": pack_signs(units >= 0), "scale": make_scale(keep_significant_bits(mean))}

    def count_units(self, parts: dict[str, Tensor], numel: int) -> Tensor:
        scale = get_float_units(parts, "scale", 1)
        if self.bits == 8:
            return get_part(parts, "levels", torch.int8, numel).long() * scale
        signs = unpack_signs(get_part(parts, "signs", torch.uint8, -(-numel // 8)), numel)
        return torch.where(signs, scale, -scale)


def make_scale(units: int) -> Tensor:
    return round_to_float32(torch.tensor([units]))


def pack_signs(positive: Tensor) -> Tensor:
    """Pack eight truth values into a byte."""
    return torch.from_numpy(np.packbits(positive.numpy()))


def unpack_signs(packed: Tensor, numel: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(packed.numpy(), count=numel)).bool()
