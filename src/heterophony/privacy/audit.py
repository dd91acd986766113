"""Attacks on many victims, on any engine, recorded one by one: what was stopped can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ..core.errors import FolderError
from ..core.files import disk
from ..engines.base import Engine
from ..jobs.plan import Job
from ..run.run_index import read_events
from .attack_job import Case, How, Inversion
from .gradients import visible
from .records import Record, told
from .snapshots import States

ATTACKS = "attacks.jsonl"


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


def watch(label: str, states: States, log: Log) -> None:
    """See, and record, what is sent in a real round of training from every state on."""
    done = {(r["algorithm"], r["round"]) for r in log.read() if r["event"] == "visible"}
    for t in states.rounds:
        if (label, t) not in done:
            seen = visible(states.plan, states.job(t, states.clients[0]), states.place)
            log.add([{"event": "visible", "algorithm": label, "round": t, "names": seen}])


def cases(label: str, states: States, victims: Victims, how: How, log: Log) -> list[Case]:
    """All of one run; where nothing is sent, there is none."""
    out = []
    for record in log.read():
        if record["event"] != "visible" or record["algorithm"] != label or not record["names"]:
            continue
        for client in states.clients:
            held = min(victims.images, len(states.plan.federation.train[client]))
            for first in range(0, held, how.batch):
                count, names = min(how.batch, held - first), tuple(record["names"])
                out.append(Case(label, record["round"], client, first, count, names))
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


def inverted(
    due: Sequence[Case], states: States, how: How, engine: Engine
) -> Iterator[list[Record]]:
    """What every case of a run comes to, in any order; the same on every engine.

    Round by round: what is sent differs from client to client, and is all in memory meanwhile.
    """
    for t in states.rounds:
        now = {(c.client, c.image): c for c in due if c.round == t}
        for reply in engine.run(list(jobs(now.values(), states, how))):
            case = now[reply.client, int(reply.metrics["image"])]
            yield told(states.plan, case, how, reply)


def jobs(cases: Iterable[Case], states: States, how: How) -> Iterator[Job]:
    """What is sent to a client is the same object in all its jobs: engines carry it once."""
    open_ = cache(states.job)
    for case in cases:
        job = open_(case.round, case.client)
        yield replace(job, kind="other", task=Inversion(case, how), cost=case.images)
