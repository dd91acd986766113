"""Attacks on many victims, on any engine, recorded one by one: what was stopped can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ..core.errors import FolderError
from ..core.files import translate_disk_errors
from ..engines.base import Engine
from ..jobs.plan import Job
from ..run.run_index import read_json_lines
from .attack_job import AttackCase, AttackSettings, GradientInversion
from .gradients import list_sent_parameters
from .records import Record, make_records
from .snapshots import Snapshots

ATTACK_LOG = "attacks.jsonl"


@dataclass(frozen=True)
class Victims:
    """Whom to attack: the first few clients and images, in these rounds."""

    rounds: tuple[int, ...]
    clients: int
    images: int


class AttackLog:
    """``attacks.jsonl``: first what is asked, then a line for every image."""

    def __init__(self, folder: Path, asked: Record) -> None:
        self.path = folder / ATTACK_LOG
        found = list(read_json_lines(self.path))
        with translate_disk_errors(self.path):
            lines = self.path.read_bytes() if self.path.exists() else b""
            if not lines.endswith(b"\n") and lines:  # the last one was cut short
                os.truncate(self.path, lines.rfind(b"\n") + 1)
        asked = json.loads(json.dumps({"event": "audit", **asked}))
        if not found:
            self.append_records([asked])
        elif found[0] != asked:
            raise FolderError(f"{folder} holds an audit with other settings; choose another --out")

    def read_records(self) -> list[Record]:
        return list(read_json_lines(self.path))

    def append_records(self, records: Sequence[Record]) -> None:
        """All of a case at once: a cut line is taken back, and its case attacked again."""
        lines = "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records)
        with translate_disk_errors(self.path), open(self.path, "ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())


def record_sent_parameters(label: str, states: Snapshots, log: AttackLog) -> None:
    """See, and record, what is sent in a real round of training from every state on."""
    done = {(r["algorithm"], r["round"]) for r in log.read_records() if r["event"] == "visible"}
    for t in states.rounds:
        if (label, t) not in done:
            seen = list_sent_parameters(
                states.plan, states.make_job(t, states.clients[0]), states.client_store
            )
            log.append_records(
                [{"event": "visible", "algorithm": label, "round": t, "names": seen}]
            )


def list_cases(
    label: str, states: Snapshots, victims: Victims, how: AttackSettings, log: AttackLog
) -> list[AttackCase]:
    """All of one run; where nothing is sent, there is none."""
    out = []
    for record in log.read_records():
        if record["event"] != "visible" or record["algorithm"] != label or not record["names"]:
            continue
        for client in states.clients:
            held = min(victims.images, len(states.plan.federation.train[client]))
            for first in range(0, held, how.batch):
                count, names = min(how.batch, held - first), tuple(record["names"])
                out.append(AttackCase(label, record["round"], client, first, count, names))
    return out


def list_open_cases(cases: Sequence[AttackCase], log: AttackLog) -> list[AttackCase]:
    """Those without all their lines."""
    done = {
        (r["algorithm"], r["round"], r["client"], r["image"], r["private"])
        for r in log.read_records()
        if r["event"] == "attack"
    }
    return [
        c
        for c in cases
        if not all(
            (*c.key[:3], c.first_image + i, private) in done
            for i in range(c.image_count)
            for private in ("unknown", "known")
        )
    ]


def invert_gradients(
    due: Sequence[AttackCase], states: Snapshots, how: AttackSettings, engine: Engine
) -> Iterator[list[Record]]:
    """What every case of a run comes to, in any order; the same on every engine.

    Round by round: what is sent differs from client to client, and is all in memory meanwhile.
    """
    for t in states.rounds:
        now = {(c.client, c.first_image): c for c in due if c.round == t}
        for reply in engine.run(list(make_jobs(now.values(), states, how))):
            case = now[reply.client, int(reply.metrics["image"])]
            yield make_records(states.plan, case, how, reply)


def make_jobs(cases: Iterable[AttackCase], states: Snapshots, how: AttackSettings) -> Iterator[Job]:
    """What is sent to a client is the same object in all its jobs: engines carry it once."""
    open_ = cache(states.make_job)
    for case in cases:
        job = open_(case.round, case.client)
        yield replace(
            job, kind="other", custom_work=GradientInversion(case, how), cost=case.image_count
        )
