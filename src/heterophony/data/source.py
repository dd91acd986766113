"""A data set as it was read, before it is partitioned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import DataError
from ..core.samples import Scale


@dataclass(frozen=True)
class Source:
    """Examples as stored, their labels, and what the data set says about them."""

    name: str
    x: NDArray[Any]
    y: NDArray[np.int64]
    scale: Scale  # how examples become network input
    labels: tuple[str, ...]  # the names of the classes
    official: int | None = None  # size of the official training set, which comes first
    users: NDArray[np.int64] | None = None  # the user each example comes from, if known
    user_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise DataError(f"{self.name}: {len(self.x)} examples but {len(self.y)} labels")
        if len(self.y) == 0:
            raise DataError(f"{self.name}: there are no examples")
        if self.y.min() < 0 or self.y.max() >= len(self.labels):
            raise DataError(f"{self.name}: labels must be 0 … {len(self.labels) - 1}")
        if np.issubdtype(self.x.dtype, np.floating) and not np.isfinite(self.x).all():
            raise DataError(f"{self.name}: the examples hold NaN or infinity")
