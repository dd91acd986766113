"""Top-k with error feedback: Stich et al., Sparsified SGD with memory, NeurIPS 2018."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch
from torch import Tensor

from ..core.errors import CodecError, ConfigError
from ..core.settings import setting
from ..core.tensors import matches_any
from .error_feedback import Compression, get_float_units, get_part, round_to_float32


@dataclass(frozen=True, repr=False)
class TopK(Compression):
    """Send only the largest changes of every tensor; remember the others and send them later."""

    ratio: float = setting(0.1, "share of each tensor's values that is sent", above=0, high=1)
    ratios: dict[str, Any] = field(
        default_factory=dict,
        metadata={"doc": "shares of tensors whose names match a pattern, as in { 'head.*' = 1.0 }"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for pattern, ratio in self.ratios.items():
            if type(ratio) not in (int, float) or not 0 < ratio <= 1:
                raise ConfigError(
                    f"ratios: that of '{pattern}' must be above 0 and at most 1, not {ratio!r}"
                )

    @property
    def is_identity(self) -> bool:
        return all(r == 1 for r in (self.ratio, *self.ratios.values()))

    def get_ratio(self, name: str) -> float:
        """Return the share of a tensor: that of the first pattern that matches its name."""
        found = [r for pattern, r in self.ratios.items() if matches_any(name, [pattern])]
        return float(found[0]) if found else self.ratio

    def compresses(self, name: str, tensor: Tensor) -> bool:
        return super().compresses(name, tensor) and self.get_ratio(name) < 1 and tensor.numel() > 0

    def list_parts(self) -> tuple[str, ...]:
        return ("values", "positions")

    def compress(self, name: str, units: Tensor) -> dict[str, Tensor]:
        k = ceil(self.get_ratio(name) * units.numel() - 1e-9)
        # the largest first; of equal ones, the first: so that every machine sends the same
        order = torch.argsort(units.abs(), descending=True, stable=True)
        positions = order[: max(1, k)].sort().values
        values = round_to_float32(units[positions])
        return {"values": values, "positions": positions.to(torch.int32)}

    def count_units(self, parts: dict[str, Tensor], numel: int) -> Tensor:
        k = parts.get("positions", torch.empty(0)).numel()
        positions = get_part(parts, "positions", torch.int32, k).long()
        rising = bool((positions[1:] > positions[:-1]).all())
        if not k or not rising or int(positions[0]) < 0 or int(positions[-1]) >= numel:
            raise CodecError("the positions of a sparse tensor must rise within its size")
        out = torch.zeros(numel, dtype=torch.int64)
        out[positions] = get_float_units(parts, "values", k)
        return out
