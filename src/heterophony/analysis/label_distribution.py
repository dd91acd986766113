"""Label distribution of a federation: examples per client and class, before and after FedReG's rebalancing."""

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

    target_rule: str  # number of examples each class is balanced to, in words
    num_kept: NDArray[np.int64]  # the client's own examples
    num_copies: NDArray[np.int64]  # augmented copies

    @property
    def train_sizes(self) -> NDArray[np.int64]:
        return self.num_kept + self.num_copies


@dataclass(frozen=True)
class LabelDistribution:
    """The numbers that figures and pages of a federation show."""

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
    """Count a federation's examples and, if the algorithm rebalances, the sizes afterwards."""
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
    """Count how many examples every client keeps and copies; None without rebalancing."""
    if not isinstance(algorithm, FedReG) or algorithm.variant == "c":
        return None
    kept, copied = [], []
    for target, counts in zip(
        compute_class_targets(federation, algorithm), federation.counts(), strict=True
    ):
        present = counts[counts > 0]  # only classes that the client has are rebalanced
        kept.append(present.clip(max=target).sum())
        copied.append((target - present).clip(min=0).sum())
    return BalancedSizes(describe_target_rule(algorithm), np.array(kept), np.array(copied))


def compute_class_targets(federation: Federation, algorithm: FedReG) -> list[int]:
    """The number of examples that each client's classes are balanced to, by the algorithm's rule.

    The rule needs only counts, so no examples are read.
    """
    server, targets = Server(0, federation.sizes(), Tensors()), []
    for name, counts in zip(federation.clients, federation.counts(), strict=True):
        data = SimpleNamespace(counts=torch.from_numpy(counts))
        client: Any = SimpleNamespace(data=data, received=algorithm.send(server, name))
        targets.append(algorithm.target(client))
    return targets


def describe_target_rule(algorithm: FedReG) -> str:
    """Say in words how many examples each class is balanced to."""
    statistic = algorithm.threshold.replace("_", " ")
    if algorithm.threshold_scope == "class_nonzero":
        return f"the {statistic} of the client's class counts"
    return f"the {statistic} of the clients' sizes, by class"
