"""Coordinate median: Yin et al., Byzantine-robust distributed learning, ICML 2018."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .coordinate_rule import CoordinateRule


@dataclass(frozen=True, repr=False)
class Median(CoordinateRule):
    """Merge the median of every coordinate; less than half of the clients may be bad."""

    def combine(self, values: Tensor) -> Tensor:
        rows = torch.sort(values, dim=0).values
        return (rows[(len(rows) - 1) // 2] + rows[len(rows) // 2]) / 2
