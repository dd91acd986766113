"""The steps of an audit: snapshots of a run, attacks on them, and a record per image in a log."""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from torch import Tensor

from ..core import files
from ..core.algorithm import Reply
from ..core.codec import BLOB_LIMIT, decode_groups, encode_groups
from ..core.errors import FolderError
from ..core.samples import Scale
from ..core.tensors import Memory, Tensors
from ..engines.base import Engine
from ..jobs.client_store import FolderClientStore, encode_folder_name
from ..jobs.plan import Job, Plan
from ..jobs.work import train_locally
from ..runs.events import Event
from ..runs.folder import RunFolder
from ..runs.run_index import read_json_lines
from . import summary
from .attack_job import (
    AttackCase,
    AttackSettings,
    GradientInversion,
    compute_bounds,
    unpack_attack_reply,
)
from .attacks import Reconstruction, list_sent_parameters, make_reference_images, psnr, ssim

SNAPSHOT_FOLDER = "audited"


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of an audited run: states of some clients after some rounds, to be attacked."""

    plan: Plan
    folder: RunFolder
    rounds: Sequence[int]
    clients: Sequence[str]

    def make_listener(self) -> Callable[[Event], None]:
        """Return a hook that saves snapshots during the run, before their commits are deleted.

        When the event of round ``t`` arrives, the newest commit is still the state before this round.
        """
        if 0 in self.rounds:
            self.save_round(0)

        def listen(event: Event) -> None:
            if event["event"] == "round" and event["t"] in self.rounds:
                self.save_round(int(event["t"]))

        return listen

    def save_last(self) -> None:
        """Save the snapshot after the last round of the finished run."""
        last = self.plan.rounds
        if last in self.rounds and not all(
            self.get_message_path(last, c).is_file() for c in self.clients
        ):
            self.save_round(last)

    def save_round(self, t: int) -> None:
        """Save the snapshot after ``t`` rounds: what clients would receive, and their memories."""
        plan, sizes = self.plan, self.plan.federation.sizes()
        server = plan.create_initial_server()
        if t:
            server = plan.complete_server(self.folder.load_commit(t, sizes))
        for client in self.clients:
            if t:  # before the first round no client has a memory
                memory = self.folder.client_store.load_memory(client, before=t)
                self.client_store.save_memory(client, t - 1, memory)
            sent = {"down": self.plan.algorithm.send(server, client)}
            files.write_atomically(self.get_message_path(t, client), encode_groups(sent))

    def make_job(self, t: int, client: str) -> Job:
        """Make the job that trains a client from the snapshot after ``t`` rounds and saves no memory."""
        path = self.get_message_path(t, client)
        if not path.is_file():
            raise FolderError(
                f"{self.folder.path} has no snapshot of client {client} after {t} rounds, because it was trained with other settings; choose another --out"
            )
        down = read_snapshot_file(path)["down"]
        return Job(kind="train", t=t, client=client, tensors=down, keeps_memory=False)

    @property
    def client_store(self) -> FolderClientStore:
        """The store of client memories in the snapshots."""
        return FolderClientStore(
            self.folder.path / SNAPSHOT_FOLDER / "clients", self.folder.scratch_folder
        )

    def get_message_path(self, t: int, client: str) -> Path:
        """Return the file with the tensors that a client would receive after ``t`` rounds."""
        return self.folder.path / SNAPSHOT_FOLDER / f"{t:07d}" / encode_folder_name(client)


def read_snapshot_file(path: Path) -> Memory:
    """Read the groups of tensors in a file of a snapshot."""
    with files.translate_disk_errors(path):
        return decode_groups(files.read_regular_file(path, BLOB_LIMIT), finite=False)[0]


EVALUATION_BATCH = 250  # images at a time


def measure_loss(snapshots: Snapshots, t: int) -> float:
    """Measure the mean loss of an audit's victims after one round of training from a snapshot."""
    return fmean(measure_client_loss(snapshots, t, client) for client in snapshots.clients)


def measure_client_loss(snapshots: Snapshots, t: int, name: str) -> float:
    """Train a client for one round from a snapshot; return its loss on its training examples.

    This is the loss of predictions, which can be compared between algorithms, unlike training losses.
    """
    plan, job, store = snapshots.plan, snapshots.make_job(t, name), snapshots.client_store
    client = plan.build_client(job, store.load_memory(name, before=t), store)
    train_locally(plan, job, client)
    client.net.eval()
    samples, total = client.data.train, 0.0
    with torch.no_grad():
        for rows in torch.arange(len(samples)).split(EVALUATION_BATCH):
            x, y = samples.batch(rows)
            total += len(rows) * float(client.loss(plan.algorithm.predict(client, x), y))
    return total / max(1, len(samples))


Record = dict[str, Any]


def make_attack_records(
    plan: Plan, case: AttackCase, settings: AttackSettings, reply: Reply
) -> list[Record]:
    """Return the log's records of the attacks on one case: one per attacker and image."""
    scale = plan.federation.data(case.client).train.scale
    x, y = case.load_batch(plan)
    known = settings.labels == "inferred" and not reply.metrics["inferred"]
    common = {
        "event": "attack",
        "algorithm": case.algorithm,
        "round": case.round,
        "client": case.client,
        "labels": "known" if known else settings.labels,
    }
    out = []
    for knowledge in summary.PRIVATE_KNOWLEDGE:
        restart, found = unpack_attack_reply(reply, knowledge)
        loss = found.loss if found.finite else None
        attack = {"restart": restart, "finite": found.finite, "matching": loss}
        for image in compare_images(case, found, to_pixels(x, scale), y, scale, plan.seed):
            out.append({**common, "private": knowledge, **attack, **image})
    return out


def compare_images(
    case: AttackCase, found: Reconstruction, true: Tensor, y: Tensor, scale: Scale, seed: int
) -> list[Record]:
    """Return a record for each original image, compared with its reconstruction."""
    pixels = to_pixels(found.images, scale)
    order, right = match_images(true, pixels), match_labels(y, found.labels)
    out = []
    for i, original in enumerate(true):
        image, reconstruction = case.first_image + i, pixels[order[i]]
        references = make_reference_images(original, seed, "reference", case.client, image)
        out.append(
            {
                "image": image,
                "psnr": psnr(reconstruction, original),
                "ssim": ssim(reconstruction, original),
                "right": right[i],
                "references": {
                    k: [psnr(v, original), ssim(v, original)] for k, v in references.items()
                },
                "sha256": Tensors({"image": reconstruction}).digest(),
                "original": encode_image(original),
                "picture": encode_image(reconstruction),
            }
        )
    return out


def match_images(true: Tensor, found: Tensor) -> list[int]:
    """Return the position of each original's reconstruction; the assignment has the highest PSNR."""
    costs = [[-psnr(f, t) for f in found] for t in true]
    return [int(j) for j in linear_sum_assignment(costs)[1]]


def match_labels(true: Tensor, found: Tensor) -> list[bool]:
    """Return whether the attack found each true label; each found label counts once."""
    left, out = Counter(found.tolist()), []
    for label in true.tolist():
        out.append(left[label] > 0)
        left[label] -= 1
    return out


def to_pixels(x: Tensor, scale: Scale) -> Tensor:
    """Convert images from inputs of the net to pixel values from 0 to 1."""
    low, high = compute_bounds(x, scale)
    return ((x - low) / (high - low)).clamp(0, 1).contiguous()


def encode_image(image: Tensor) -> str:
    """Encode the pixels of an image as base64, channel by channel, one byte per value."""
    return base64.b64encode((255 * image).round().byte().numpy().tobytes()).decode()


ATTACK_LOG = "attacks.jsonl"


@dataclass(frozen=True)
class Victims:
    """The victims of an audit: the first ``images`` images of the first ``clients`` clients.

    Algorithms are attacked after each of ``rounds`` or, with ``losses``, after the first of these rounds
    that reaches each loss level.
    """

    rounds: tuple[int, ...]
    clients: int
    images: int
    losses: tuple[float, ...] = ()

    def describe(self) -> Record:
        """Return the victims for the header of the audit's log, without ``losses`` if there are none."""
        return {k: v for k, v in asdict(self).items() if k != "losses" or v}


class AttackLog:
    """The file ``attacks.jsonl``: the settings of the audit, then a line per image."""

    def __init__(self, folder: Path, settings: Record) -> None:
        """Open or create the audit's log; raise FolderError if it has other settings."""
        self.path = folder / ATTACK_LOG
        found = list(read_json_lines(self.path))
        with files.translate_disk_errors(self.path):
            lines = (
                files.read_regular_file(self.path, files.DATA_LIMIT) if self.path.exists() else b""
            )
            if not lines.endswith(b"\n") and lines:  # the last line was cut short
                files.truncate_file(self.path, lines.rfind(b"\n") + 1)
        header = json.loads(json.dumps({"event": "audit", **settings}))
        if not found:
            self.append_records([header])
        elif found[0] != header:
            raise FolderError(f"{folder} holds an audit with other settings; choose another --out")

    def read_records(self) -> list[Record]:
        """Read all records of the audit so far, with the header."""
        return list(read_json_lines(self.path))

    def append_records(self, records: Sequence[Record]) -> None:
        """Append all records of a case to the log at once, and sync it to disk."""
        lines = "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records)
        with files.translate_disk_errors(self.path), files.open_to_append(self.path) as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())


def record_sent_parameters(label: str, snapshots: Snapshots, log: AttackLog) -> None:
    """Record in the audit's log which parameters the first victim sends after each snapshot."""
    done = {(r["algorithm"], r["round"]) for r in log.read_records() if r["event"] == "visible"}
    for t in snapshots.rounds:
        if (label, t) not in done:
            job = snapshots.make_job(t, snapshots.clients[0])
            names = list_sent_parameters(snapshots.plan, job, snapshots.client_store)
            log.append_records(
                [{"event": "visible", "algorithm": label, "round": t, "names": names}]
            )


def record_losses(label: str, snapshots: Snapshots, lowest: float, log: AttackLog) -> None:
    """Record losses of snapshots in the audit's log until one reaches the ``lowest`` level.

    Do nothing for an algorithm that sends no parameters.
    """
    losses = summary.collect_losses(log.read_records()).get(label)
    if losses is None:
        return
    for t in sorted(snapshots.rounds):
        if t not in losses:
            losses[t] = measure_loss(snapshots, t)
            record = {"event": "loss", "algorithm": label, "round": t, "loss": losses[t]}
            log.append_records([record])
        if losses[t] <= lowest:
            return


def list_attack_cases(
    label: str, snapshots: Snapshots, victims: Victims, settings: AttackSettings, log: AttackLog
) -> list[AttackCase]:
    """List the attack cases of one run; none if the algorithm sends no parameters.

    Rounds at a loss level that another algorithm does not reach are left out.
    """
    out, records = [], log.read_records()
    rounds: Collection[int] = victims.rounds
    if matched := summary.collect_matched_rounds(records):
        own = matched.get(label, {})
        rounds = {own[level] for level in summary.list_common_levels(matched)}
    for record in records:
        if record.get("algorithm") != label or not summary.lists_sent_parameters(record):
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
    """List the attack cases without complete records in the log."""
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
            for private in summary.PRIVATE_KNOWLEDGE
        )
    ]


def invert_gradients(
    cases: Sequence[AttackCase], snapshots: Snapshots, settings: AttackSettings, engine: Engine
) -> Iterator[list[Record]]:
    """Run the attacks on the cases of a run; yield the records of each case, in any order.

    Rounds are attacked one after another, to hold the tensors of only one round in memory.
    """
    for t in snapshots.rounds:
        by_image = {(c.client, c.first_image): c for c in cases if c.round == t}
        for reply in engine.run(list(make_attack_jobs(by_image.values(), snapshots, settings))):
            case = by_image[reply.client, int(reply.metrics["image"])]
            yield make_attack_records(snapshots.plan, case, settings, reply)


def make_attack_jobs(
    cases: Iterable[AttackCase], snapshots: Snapshots, settings: AttackSettings
) -> Iterator[Job]:
    """Make an attack job for each case; jobs of one client share its tensors, which are sent once."""
    make_training_job = cache(snapshots.make_job)
    for case in cases:
        job, task = make_training_job(case.round, case.client), GradientInversion(case, settings)
        yield replace(job, kind="other", custom_work=task, cost=case.image_count)
