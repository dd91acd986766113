"""Label distribution of a federation: examples per client and class, before and after FedReG's rebalancing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..algorithms.fedreg import FedReG
from ..algorithms.parts.rebalancing import count_kept_and_copied
from ..algorithms.parts.threshold import compute_class_targets, describe_class_target
from ..core.algorithm import Algorithm
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
    if not isinstance(algorithm, FedReG) or algorithm.ablation == "no_balancing":
        return None
    rule = (algorithm.threshold, algorithm.threshold_scope)
    counts = torch.tensor(federation.counts())
    targets = compute_class_targets(counts, *rule)
    sizes = np.array([count_kept_and_copied(c, t) for c, t in zip(counts, targets, strict=True)])
    return BalancedSizes(describe_class_target(*rule), sizes[:, 0], sizes[:, 1])
