"""The server's federation: the clients of a run and how much data they report, without the data."""

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
from .protocol.messages import ClientSummary


@dataclass(frozen=True, eq=False)
class RemoteFederation(Federation):
    """A federation that knows its clients and none of their examples."""

    summaries: Mapping[str, ClientSummary] = field(default_factory=dict)

    @cached_property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.summaries)

    def sizes(self, part: str = "train") -> dict[str, int]:
        return {c: int(getattr(summary, part)) for c, summary in self.summaries.items()}

    def counts(self, part: str = "train") -> NDArray[np.int64]:
        return np.array([summary.labels for summary in self.summaries.values()], dtype=np.int64)

    @cached_property
    def sha256(self) -> str:
        """The digest of the digests that the clients report."""
        lines = "\n".join(f"{c} {summary.data_sha256}" for c, summary in self.summaries.items())
        return hashlib.sha256(lines.encode()).hexdigest()

    def data(self, client: str) -> ClientData:
        raise DataError(f"the data of client {client} are on its device")

    def save_partition(self, path: Path) -> None:
        """Write nothing: the server does not know who holds which example."""


def make_remote_federation(
    name: str, summaries: Mapping[str, ClientSummary], labels: tuple[str, ...]
) -> RemoteFederation:
    """Build the federation of these clients, whose examples all have the first one's format."""
    first = next(iter(summaries.values()))
    x = torch.empty(0, *first.shape, dtype=getattr(torch, first.type))
    y = torch.empty(0, dtype=torch.int64)
    no_rows: dict[str, torch.Tensor] = {}
    return RemoteFederation(
        name, x, y, Scale(255.0, (0.5,), (0.5,)), labels, no_rows, no_rows, summaries=summaries
    )
