"""The label distribution of a federation, FedReG's balanced sizes, and clients' participation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..algorithms.fedreg import FedReG
from ..algorithms.parts.rebalancing import (
    compute_class_targets,
    count_kept_and_copied,
    describe_class_target,
)
from ..core.algorithm import POOLED_CLIENT, Algorithm
from ..data.federation import Federation
from ..runs.events import select_rounds
from .runs import Run


@dataclass(frozen=True)
class BalancedSizes:
    """Each client's training example counts after FedReG's rebalancing."""

    target_rule: str  # number of examples each class is balanced to, in words
    num_kept: NDArray[np.int64]  # the client's own examples
    num_copies: NDArray[np.int64]  # augmented copies

    @property
    def train_sizes(self) -> NDArray[np.int64]:
        """Training examples per client after rebalancing: kept plus copied."""
        return self.num_kept + self.num_copies


@dataclass(frozen=True)
class LabelDistribution:
    """A federation's example counts per client and class, for figures and pages."""

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
        """The name of the data set and the number of clients."""
        return f"{self.name}, {len(self.clients)} client{'s' * (len(self.clients) != 1)}"


def compute_label_distribution(federation: Federation, algorithm: Algorithm) -> LabelDistribution:
    """Count a federation's examples per client and class; for FedReG, also the sizes after rebalancing."""
    return LabelDistribution(
        federation.name,
        federation.clients,
        federation.labels,
        federation.count_labels(),
        np.array(list(federation.sizes("test").values())),
        compute_balanced_sizes(federation, algorithm),
        np.array(list(federation.sizes("validation").values())) if federation.validates else None,
    )


def compute_balanced_sizes(federation: Federation, algorithm: Algorithm) -> BalancedSizes | None:
    """Count the examples that FedReG keeps and copies for every client; None for other algorithms."""
    if not isinstance(algorithm, FedReG) or algorithm.ablation == "no_balancing":
        return None
    rule = (algorithm.threshold, algorithm.threshold_scope)
    counts = torch.tensor(federation.count_labels())
    targets = compute_class_targets(counts, *rule)
    sizes = np.array([count_kept_and_copied(c, t) for c, t in zip(counts, targets, strict=True)])
    return BalancedSizes(describe_class_target(*rule), sizes[:, 0], sizes[:, 1])


NOT_SELECTED = 0
NO_REPLY = 1  # selected, but did not reply in time
TRAINED = 2


@dataclass(frozen=True)
class ParticipationMatrix:
    """The participation of clients in rounds (rounds × clients): NOT_SELECTED, NO_REPLY or TRAINED."""

    run_labels: tuple[str, ...]  # labels of all runs with this participation
    clients: tuple[str, ...]
    data_sha256: str
    matrix: NDArray[np.int8]

    @property
    def rounds_trained(self) -> NDArray[np.int64]:
        """The number of rounds in which each client trained."""
        return count_rounds_per_client(self.matrix == TRAINED)

    @property
    def rounds_selected(self) -> NDArray[np.int64]:
        """The number of rounds in which each client was selected, with or without a reply."""
        return count_rounds_per_client(self.matrix != NOT_SELECTED)


def collect_participation(runs: Sequence[Run]) -> list[ParticipationMatrix]:
    """Collect the participation matrices of runs; runs with the same participation share one."""
    matrices: dict[tuple[str, bytes], ParticipationMatrix] = {}
    for run in runs:
        clients, sha = tuple(run.start["clients"]), str(run.start["data_sha256"])
        matrix = build_participation_matrix(run, clients)
        key = (sha, matrix.tobytes())
        before = matrices[key].run_labels if key in matrices else ()
        matrices[key] = ParticipationMatrix((*before, run.label), clients, sha, matrix)
    return list(matrices.values())


def build_participation_matrix(run: Run, clients: Sequence[str]) -> NDArray[np.int8]:
    """Build the participation matrix (rounds × clients) from the events of a run."""
    rounds = select_rounds(run.events)
    column = {c: i for i, c in enumerate(clients)}
    matrix = np.full((len(rounds), len(clients)), NOT_SELECTED, np.int8)
    for row, event in zip(matrix, rounds, strict=True):
        for names, state in ((event.get("asked", []), NO_REPLY), (event["clients"], TRAINED)):
            if POOLED_CLIENT in names:  # trains on all clients' data
                row[:] = state
            row[[column[c] for c in names if c in column]] = state
    return matrix


def count_rounds_per_client(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the rounds of each client in which the mask (rounds × clients) is true."""
    sums: NDArray[np.int64] = mask.sum(axis=0)
    return sums
