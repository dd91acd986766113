"""Who took part: every client in every round of a run, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.algorithm import POOLED_CLIENT
from ..run.events import select_rounds
from .runs import Run

NOT_SELECTED, NO_REPLY, TRAINED = (
    0,
    1,
    2,
)  # not asked; asked, but it did not answer in time; it trained


@dataclass(frozen=True)
class ParticipationMatrix:
    """Rounds × clients: AWAY, LOST or THERE."""

    run_labels: tuple[str, ...]  # of the runs in which it was so
    clients: tuple[str, ...]
    data_sha256: str
    matrix: NDArray[np.int8]

    @property
    def rounds_trained(self) -> NDArray[np.int64]:
        """Rounds per client."""
        return count_rounds_per_client(self.matrix == TRAINED)

    @property
    def rounds_selected(self) -> NDArray[np.int64]:
        """Rounds per client, also those in which it was lost."""
        return count_rounds_per_client(self.matrix != NOT_SELECTED)


def collect_participation(runs: Sequence[Run]) -> list[ParticipationMatrix]:
    """Of each run; runs with the very same attendance, as those of one seed, are told once."""
    found: dict[tuple[str, bytes], ParticipationMatrix] = {}
    for run in runs:
        clients, sha = tuple(run.start["clients"]), str(run.start["data_sha256"])
        matrix = build_participation_matrix(run, clients)
        key = (sha, matrix.tobytes())
        before = found[key].run_labels if key in found else ()
        found[key] = ParticipationMatrix((*before, run.label), clients, sha, matrix)
    return list(found.values())


def build_participation_matrix(run: Run, clients: Sequence[str]) -> NDArray[np.int8]:
    rounds = select_rounds(run.events)
    column = {c: i for i, c in enumerate(clients)}
    matrix = np.full((len(rounds), len(clients)), NOT_SELECTED, np.int8)
    for row, event in zip(matrix, rounds, strict=True):
        for names, state in ((event.get("asked", []), NO_REPLY), (event["clients"], TRAINED)):
            if POOLED_CLIENT in names:  # one who holds everybody's data
                row[:] = state
            row[[column[c] for c in names if c in column]] = state
    return matrix


def count_rounds_per_client(which: NDArray[np.bool_]) -> NDArray[np.int64]:
    sums: NDArray[np.int64] = which.sum(axis=0)
    return sums
