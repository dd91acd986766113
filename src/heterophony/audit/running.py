"""Attacks on many victims, in this process or in several, recorded one by one: it can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from ..config import read
from ..data.federation import Federation
from ..engines.pool import CONTEXT, settle, warm
from ..errors import EngineError, FolderError
from ..files import disk
from ..folders import read_events
from ..plan import Plan
from ..store import RunFolder
from .cases import Case, How, Record, attacked
from .observing import visible
from .states import States

ATTACKS, DATA = "attacks.jsonl", "attacked-data"


@dataclass(frozen=True)
class Victims:
    """Whom to attack: the first few clients and images, in these rounds."""

    rounds: tuple[int, ...]
    clients: int
    images: int


class Log:
    """``attacks.jsonl``: first what is asked, then a line for every image."""

    def __init__(self, folder: Path, asked: Record) -> None:
        self.path = folder / ATTACKS
        found = list(read_events(self.path))
        with disk(self.path):
            lines = self.path.read_bytes() if self.path.exists() else b""
            if not lines.endswith(b"\n") and lines:  # the last one was cut short
                os.truncate(self.path, lines.rfind(b"\n") + 1)
        asked = json.loads(json.dumps({"event": "audit", **asked}))
        if not found:
            self.add([asked])
        elif found[0] != asked:
            raise FolderError(f"{folder} holds an audit with other settings; choose another --out")

    def read(self) -> list[Record]:
        return list(read_events(self.path))

    def add(self, records: Sequence[Record]) -> None:
        """All of a case at once: a cut line is taken back, and its case attacked again."""
        lines = "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records)
        with disk(self.path), open(self.path, "ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())


def cases(label: str, states: States, victims: Victims, how: How, log: Log) -> list[Case]:
    """All of one run; what it sends is seen in a real round of training, and recorded."""
    out = []
    known = {(r["algorithm"], r["round"]): r for r in log.read() if r["event"] == "visible"}
    for t in states.rounds:
        if (label, t) not in known:
            job = states.job(t, states.clients[0])
            seen = visible(states.plan, job, states.place(t))
            record = {"event": "visible", "algorithm": label, "round": t, "names": seen}
            log.add([record])
            known[label, t] = record
        names = tuple(known[label, t]["names"])
        for client in states.clients if names else ():
            held = min(victims.images, len(states.plan.federation.train[client]))
            for first in range(0, held, how.batch):
                count = min(how.batch, held - first)
                out.append(Case(label, t, client, first, count, names))
    return out


def left(cases: Sequence[Case], log: Log) -> list[Case]:
    """Those without all their lines."""
    done = {
        (r["algorithm"], r["round"], r["client"], r["image"], r["private"])
        for r in log.read()
        if r["event"] == "attack"
    }
    return [
        c
        for c in cases
        if not all(
            (*c.key[:3], c.image + i, private) in done
            for i in range(c.images)
            for private in ("unknown", "known")
        )
    ]


def fight(
    due: Sequence[Case],
    runs: Mapping[str, States],
    how: How,
    workers: int,
    parent: Path,
) -> Iterator[tuple[Case, list[Record]]]:
    """What every case comes to, in any order; the same whatever the number of workers."""
    if workers == 1:
        yield from alone(due, runs, how)
        return
    warm()
    next(iter(runs.values())).plan.federation.save(parent / DATA)
    with ProcessPoolExecutor(min(workers, max(1, len(due))), CONTEXT, settle) as pool:
        jobs = {
            pool.submit(
                elsewhere, case, how, str(runs[case.algorithm].folder.path), str(parent)
            ): case
            for case in due
        }
        try:
            for done in as_completed(jobs):
                yield jobs[done], done.result()
        except BrokenProcessPool:
            raise EngineError(
                "a worker of the audit died; is there enough memory? the same command goes on"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def alone(
    due: Sequence[Case], runs: Mapping[str, States], how: How
) -> Iterator[tuple[Case, list[Record]]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in every worker: the same bits
    try:
        for case in due:
            yield case, one(runs[case.algorithm], case, how)
    finally:
        torch.set_num_threads(threads)


def one(states: States, case: Case, how: How) -> list[Record]:
    job = states.job(case.round, case.client)
    return attacked(states.plan, case, how, job, states.place(case.round))


# In a worker --------------------------------------------------------------------------------


def elsewhere(case: Case, how: How, run: str, parent: str) -> list[Record]:
    """The same in a process that knows only where the run lies."""
    return one(States(planned(run, parent), RunFolder(Path(run)), (), ()), case, how)


@lru_cache(maxsize=4)
def planned(run: str, parent: str) -> Plan:
    return read(RunFolder(Path(run)).config).plan(opened(parent))


@lru_cache(maxsize=1)
def opened(parent: str) -> Federation:
    return Federation.open(Path(parent) / DATA)
