"""The clients of a run whose data are elsewhere: who there is, and how much each says to hold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.errors import DataError
from ..core.samples import ClientData, Scale
from ..data.federation import Federation


@dataclass(frozen=True)
class DataSummary:
    """What a client says of its data: how much, of which classes, which; never the data."""

    train: int
    test: int
    validation: int
    labels: tuple[int, ...]  # training examples of each class
    sha256: str


@dataclass(frozen=True, eq=False)
class RemoteFederation(Federation):
    """A federation that knows its clients and none of their examples."""

    summaries: Mapping[str, DataSummary] = field(default_factory=dict)

    @cached_property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.summaries)

    def sizes(self, part: str = "train") -> dict[str, int]:
        return {c: int(getattr(h, part)) for c, h in self.summaries.items()}

    def counts(self, part: str = "train") -> NDArray[np.int64]:
        return np.array([h.labels for h in self.summaries.values()], dtype=np.int64)

    @cached_property
    def sha256(self) -> str:
        """Of what the clients say their data are."""
        said = "\n".join(f"{c} {h.sha256}" for c, h in self.summaries.items())
        return hashlib.sha256(said.encode()).hexdigest()

    def data(self, client: str) -> ClientData:
        raise DataError(f"the data of client {client} are on its device")

    def save_partition(self, path: Path) -> None:
        """Who holds which example is known to nobody."""


def make_remote_federation(
    name: str,
    held: Mapping[str, DataSummary],
    shape: tuple[int, ...],
    labels: tuple[str, ...],
    dtype: torch.dtype = torch.uint8,
) -> RemoteFederation:
    """Of clients with examples of this shape and type, in these classes."""
    x = torch.empty(0, *shape, dtype=dtype)
    nobody: dict[str, torch.Tensor] = {}
    y = torch.empty(0, dtype=torch.int64)
    return RemoteFederation(
        name, x, y, Scale(255.0, (0.5,), (0.5,)), labels, nobody, nobody, summaries=held
    )
