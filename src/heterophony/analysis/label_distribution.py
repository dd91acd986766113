"""Who holds what, in numbers: examples per client and class, and how FedReG would balance them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..algorithms.fedreg import FedReG
from ..core.algorithm import Algorithm, Server
from ..core.tensors import Tensors
from ..data.federation import Federation


@dataclass(frozen=True)
class BalancedSizes:
    """Every client's training examples after FedReG's rebalancing."""

    target_rule: str  # what a class is balanced to
    num_kept: NDArray[np.int64]  # of the client's own
    num_copies: NDArray[np.int64]  # augmented copies

    @property
    def train_sizes(self) -> NDArray[np.int64]:
        return self.num_kept + self.num_copies


@dataclass(frozen=True)
class LabelDistribution:
    """What the pictures of a federation show."""

    name: str
    clients: tuple[str, ...]
    classes: tuple[str, ...]
    label_counts: NDArray[np.int64]  # training examples, clients × classes
    test_sizes: NDArray[np.int64]  # test examples per client
    balanced: BalancedSizes | None = None
    validation_sizes: NDArray[np.int64] | None = None  # examples held out per client, if any

    @property
    def train_sizes(self) -> NDArray[np.int64]:
        """Training examples per client."""
        sums: NDArray[np.int64] = self.label_counts.sum(axis=1)
        return sums

    @property
    def title(self) -> str:
        return f"{self.name}, {len(self.clients)} client{'s' * (len(self.clients) != 1)}"


def compute_label_distribution(federation: Federation, algorithm: Algorithm) -> LabelDistribution:
    """The federation's, with the sizes after rebalancing where the algorithm does that."""
    return LabelDistribution(
        federation.name,
        federation.clients,
        federation.labels,
        federation.counts(),
        np.array(list(federation.sizes("test").values())),
        compute_balanced_sizes(federation, algorithm),
        np.array(list(federation.sizes("validation").values())) if federation.validates else None,
    )


def compute_balanced_sizes(federation: Federation, algorithm: Algorithm) -> BalancedSizes | None:
    """How large every client's balanced set is."""
    if not isinstance(algorithm, FedReG) or algorithm.variant == "c":
        return None
    kept, added = [], []
    for target, counts in zip(
        compute_class_targets(federation, algorithm), federation.counts(), strict=True
    ):
        held = counts[counts > 0]
        kept.append(held.clip(max=target).sum())
        added.append((target - held).clip(min=0).sum())
    return BalancedSizes(describe_target_rule(algorithm), np.array(kept), np.array(added))


def compute_class_targets(federation: Federation, algorithm: FedReG) -> list[int]:
    """How many examples every client's classes are balanced to, by the algorithm's own rule.

    The rule needs only counts, so no example is read and no image made.
    """
    server, found = Server(0, federation.sizes(), Tensors()), []
    for name, counts in zip(federation.clients, federation.counts(), strict=True):
        data = SimpleNamespace(counts=torch.from_numpy(counts))
        client: Any = SimpleNamespace(data=data, received=algorithm.send(server, name))
        found.append(algorithm.target(client))
    return found


def describe_target_rule(algorithm: FedReG) -> str:
    """What a class is balanced to, in words."""
    which = algorithm.threshold.replace("_", " ")
    if algorithm.threshold_scope == "class_nonzero":
        return f"the {which} of the client's class counts"
    return f"the {which} of the clients' sizes, by class"
