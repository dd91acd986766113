"""Partitions by name: rules that decide which client holds which examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.errors import choose
from ...core.settings import construct
from .base import (
    DatasetPartition,
    Indices,
    LabelPartition,
    Partition,
    Share,
    Terms,
    compute_shares,
    split_train_test,
)
from .by_client import FromFile, Natural, PerClientDirichlet
from .by_label import IID, Classes, Dirichlet, Quantity, Shards

__all__ = [
    "IID",
    "PARTITIONS",
    "Classes",
    "DatasetPartition",
    "Dirichlet",
    "FromFile",
    "Indices",
    "LabelPartition",
    "Natural",
    "Partition",
    "PerClientDirichlet",
    "Quantity",
    "Shards",
    "Share",
    "Terms",
    "build_partition",
    "compute_shares",
    "split_train_test",
]

PARTITIONS: dict[str, type[Any]] = {
    "classes": Classes,
    "dirichlet": Dirichlet,
    "file": FromFile,
    "iid": IID,
    "natural": Natural,
    "per_client_dirichlet": PerClientDirichlet,
    "quantity": Quantity,
    "shards": Shards,
}


def build_partition(values: Mapping[str, Any]) -> Partition:
    """Build a partition from its configuration: ``{kind = "dirichlet", alpha = 0.1}``."""
    rest = dict(values)
    kind = str(rest.pop("kind", "dirichlet"))
    cls = choose(PARTITIONS, kind, "data.partition.kind")
    partition: Partition = construct(cls, rest, "data.partition")
    return partition
