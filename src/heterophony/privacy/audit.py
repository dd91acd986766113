"""Attack many clients on any engine, and record each attack, so that an audit can continue."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from ..core.errors import FolderError
from ..core.files import (
    DATA_LIMIT,
    open_to_append,
    read_regular_file,
    translate_disk_errors,
    truncate_file,
)
from ..engines.base import Engine
from ..jobs.plan import Job
from ..runs.run_index import read_json_lines
from .attack_job import (
    AttackCase,
    AttackSettings,
    GradientInversion,
)
from .gradients import list_sent_parameters
from .losses import measure_loss
from .matching import (
    collect_losses,
    collect_matched_rounds,
    list_common_levels,
    lists_sent_parameters,
)
from .records import Record, make_records
from .snapshots import Snapshots
from .summary import PRIVATE_KNOWLEDGE

ATTACK_LOG = "attacks.jsonl"


@dataclass(frozen=True)
class Victims:
    """The first ``clients`` clients and ``images`` images of each, attacked in these rounds.

    With ``losses``, an algorithm is attacked once for each of them: after the first of these rounds
    that reaches it.
    """

    rounds: tuple[int, ...]
    clients: int
    images: int
    losses: tuple[float, ...] = ()

    def describe(self) -> Record:
        """Return the settings for the header of a log. Logs of audits by round have no losses."""
        return {k: v for k, v in asdict(self).items() if k != "losses" or v}


class AttackLog:
    """``attacks.jsonl``: the settings of the audit, then a line per image."""

    def __init__(self, folder: Path, settings: Record) -> None:
        """Open the log. It must have been started with the same settings."""
        self.path = folder / ATTACK_LOG
        found = list(read_json_lines(self.path))
        with translate_disk_errors(self.path):
            lines = read_regular_file(self.path, DATA_LIMIT) if self.path.exists() else b""
            if not lines.endswith(b"\n") and lines:  # the last line was cut short
                truncate_file(self.path, lines.rfind(b"\n") + 1)
        header = json.loads(json.dumps({"event": "audit", **settings}))
        if not found:
            self.append_records([header])
        elif found[0] != header:
            raise FolderError(f"{folder} holds an audit with other settings; choose another --out")

    def read_records(self) -> list[Record]:
        return list(read_json_lines(self.path))

    def append_records(self, records: Sequence[Record]) -> None:
        """Append all records of a case at once; after a crash, an incomplete case is repeated."""
        lines = "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records)
        with translate_disk_errors(self.path), open_to_append(self.path) as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())


def record_sent_parameters(label: str, snapshots: Snapshots, log: AttackLog) -> None:
    """Train one round from every snapshot, and record the parameters that the client sends."""
    done = {(r["algorithm"], r["round"]) for r in log.read_records() if r["event"] == "visible"}
    for t in snapshots.rounds:
        if (label, t) not in done:
            job = snapshots.make_job(t, snapshots.clients[0])
            names = list_sent_parameters(snapshots.plan, job, snapshots.client_store)
            log.append_records(
                [{"event": "visible", "algorithm": label, "round": t, "names": names}]
            )


def record_losses(label: str, snapshots: Snapshots, lowest: float, log: AttackLog) -> None:
    """Record the loss of snapshots until the lowest level is reached, unless nothing is sent."""
    losses = collect_losses(log.read_records()).get(label)
    if losses is None:
        return
    for t in sorted(snapshots.rounds):
        if t not in losses:
            losses[t] = measure_loss(snapshots, t)
            record = {"event": "loss", "algorithm": label, "round": t, "loss": losses[t]}
            log.append_records([record])
        if losses[t] <= lowest:
            return


def list_cases(
    label: str, snapshots: Snapshots, victims: Victims, settings: AttackSettings, log: AttackLog
) -> list[AttackCase]:
    """List every case of one run. Empty if the algorithm sends no parameters.

    At levels that another algorithm does not reach, none is attacked.
    """
    out, records = [], log.read_records()
    rounds: Collection[int] = victims.rounds
    if matched := collect_matched_rounds(records):
        own = matched.get(label, {})
        rounds = {own[level] for level in list_common_levels(matched)}
    for record in records:
        if record.get("algorithm") != label or not lists_sent_parameters(record):
            continue
        if record["round"] not in rounds:
            continue
        for client in snapshots.clients:
            images = min(victims.images, len(snapshots.plan.federation.train[client]))
            for first in range(0, images, settings.batch):
                count, names = min(settings.batch, images - first), tuple(record["names"])
                out.append(AttackCase(label, record["round"], client, first, count, names))
    return out


def list_open_cases(cases: Sequence[AttackCase], log: AttackLog) -> list[AttackCase]:
    """List the cases whose records are not complete."""
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
            for private in PRIVATE_KNOWLEDGE
        )
    ]


def invert_gradients(
    cases: Sequence[AttackCase], snapshots: Snapshots, settings: AttackSettings, engine: Engine
) -> Iterator[list[Record]]:
    """Attack the cases of a run, and yield the records of each, in any order.

    Rounds are attacked one by one, as what is sent to all clients is in memory meanwhile.
    """
    for t in snapshots.rounds:
        by_image = {(c.client, c.first_image): c for c in cases if c.round == t}
        for reply in engine.run(list(make_jobs(by_image.values(), snapshots, settings))):
            case = by_image[reply.client, int(reply.metrics["image"])]
            yield make_records(snapshots.plan, case, settings, reply)


def make_jobs(
    cases: Iterable[AttackCase], snapshots: Snapshots, settings: AttackSettings
) -> Iterator[Job]:
    """Make a job per case. Jobs of one client share its tensors, so engines send them once."""
    make_training_job = cache(snapshots.make_job)
    for case in cases:
        job, task = make_training_job(case.round, case.client), GradientInversion(case, settings)
        yield replace(job, kind="other", custom_work=task, cost=case.image_count)
