"""Trimmed mean: Yin et al., Byzantine-robust distributed learning, ICML 2018."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .coordinate_rule import CoordinateRule


@dataclass(frozen=True, repr=False)
class TrimmedMean(CoordinateRule):
    """Merge the mean of every coordinate without its f largest and f smallest values."""

    def combine(self, values: Tensor) -> Tensor:
        rows = torch.sort(values, dim=0).values  # a sum in sorted order has the same bits always
        return rows[self.f : len(rows) - self.f].mean(0)
