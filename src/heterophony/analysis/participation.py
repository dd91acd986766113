"""Participation: whether each client was selected and trained in each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.algorithm import POOLED_CLIENT
from ..runs.events import select_rounds
from .runs import Run

NOT_SELECTED = 0
NO_REPLY = 1  # selected, but it did not reply in time
TRAINED = 2


@dataclass(frozen=True)
class ParticipationMatrix:
    """Rounds × clients: NOT_SELECTED, NO_REPLY or TRAINED."""

    run_labels: tuple[str, ...]  # of all runs with this participation
    clients: tuple[str, ...]
    data_sha256: str
    matrix: NDArray[np.int8]

    @property
    def rounds_trained(self) -> NDArray[np.int64]:
        """Rounds in which each client trained."""
        return count_rounds_per_client(self.matrix == TRAINED)

    @property
    def rounds_selected(self) -> NDArray[np.int64]:
        """Rounds in which each client was selected, with or without a reply."""
        return count_rounds_per_client(self.matrix != NOT_SELECTED)


def collect_participation(runs: Sequence[Run]) -> list[ParticipationMatrix]:
    """The participation of every run; runs with the same one, such as those of one seed, share it."""
    matrices: dict[tuple[str, bytes], ParticipationMatrix] = {}
    for run in runs:
        clients, sha = tuple(run.start["clients"]), str(run.start["data_sha256"])
        matrix = build_participation_matrix(run, clients)
        key = (sha, matrix.tobytes())
        before = matrices[key].run_labels if key in matrices else ()
        matrices[key] = ParticipationMatrix((*before, run.label), clients, sha, matrix)
    return list(matrices.values())


def build_participation_matrix(run: Run, clients: Sequence[str]) -> NDArray[np.int8]:
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
    sums: NDArray[np.int64] = mask.sum(axis=0)
    return sums
