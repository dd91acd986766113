"""Who took part: every client in every round of a run, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.algorithm import EVERYBODY
from .runs import Run

AWAY, LOST, THERE = 0, 1, 2  # not asked; asked, but it did not answer in time; it trained


@dataclass(frozen=True)
class Attendance:
    """Rounds × clients: AWAY, LOST or THERE."""

    labels: tuple[str, ...]  # of the runs in which it was so
    clients: tuple[str, ...]
    data_sha256: str
    matrix: NDArray[np.int8]

    @property
    def took_part(self) -> NDArray[np.int64]:
        """Rounds per client."""
        return counted(self.matrix == THERE)

    @property
    def asked(self) -> NDArray[np.int64]:
        """Rounds per client, also those in which it was lost."""
        return counted(self.matrix != AWAY)


def attendance(runs: Sequence[Run]) -> list[Attendance]:
    """Of each run; runs with the very same attendance, as those of one seed, are told once."""
    found: dict[tuple[str, bytes], Attendance] = {}
    for run in runs:
        clients, sha = tuple(run.start["clients"]), str(run.start["data_sha256"])
        matrix = rounds_by_clients(run, clients)
        key = (sha, matrix.tobytes())
        before = found[key].labels if key in found else ()
        found[key] = Attendance((*before, run.label), clients, sha, matrix)
    return list(found.values())


def rounds_by_clients(run: Run, clients: Sequence[str]) -> NDArray[np.int8]:
    rounds = [e for e in run.events if e["event"] == "round"]
    column = {c: i for i, c in enumerate(clients)}
    matrix = np.full((len(rounds), len(clients)), AWAY, np.int8)
    for row, event in zip(matrix, rounds, strict=True):
        for names, state in ((event.get("asked", []), LOST), (event["clients"], THERE)):
            if EVERYBODY in names:  # one who holds everybody's data
                row[:] = state
            row[[column[c] for c in names if c in column]] = state
    return matrix


def counted(which: NDArray[np.bool_]) -> NDArray[np.int64]:
    sums: NDArray[np.int64] = which.sum(axis=0)
    return sums
