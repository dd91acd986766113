"""Snapshots of a run at the audited rounds: what is sent to each victim, and its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch

from ..core.codec import BLOB_LIMIT, decode_groups, encode_groups
from ..core.errors import FolderError
from ..core.files import read_regular_file, translate_disk_errors, write_atomically
from ..core.tensors import Memory
from ..jobs.client_store import FolderClientStore, encode_folder_name
from ..jobs.plan import Job, Plan
from ..jobs.work import train_locally
from ..runs.events import Event
from ..runs.folder import RunFolder

SNAPSHOT_FOLDER = "audited"


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of one run, for some of its clients and rounds."""

    plan: Plan
    folder: RunFolder
    rounds: Sequence[int]
    clients: Sequence[str]

    def make_listener(self) -> Callable[[Event], None]:
        """Return a listener for the run's events that saves snapshots while the run continues.

        Later commits overwrite earlier ones. At the event of round t its own commit is still to
        come, so the newest commit is the state before round t.
        """
        if 0 in self.rounds:
            self.save_round(0)

        def listen(event: Event) -> None:
            if event["event"] == "round" and event["t"] in self.rounds:
                self.save_round(int(event["t"]))

        return listen

    def save_last(self) -> None:
        """Save the state after the last round, when the run is finished."""
        last = self.plan.rounds
        if last in self.rounds and not all(
            self.get_message_path(last, c).is_file() for c in self.clients
        ):
            self.save_round(last)

    def save_round(self, t: int) -> None:
        """Save the state after ``t`` rounds."""
        plan, sizes = self.plan, self.plan.federation.sizes()
        server = plan.create_initial_server()
        if t:
            server = plan.complete(self.folder.load_commit(t, sizes))
        for client in self.clients:
            if t:  # before the first round no client has a memory
                memory = self.folder.client_store.load_memory(client, before=t)
                self.client_store.save_memory(client, t - 1, memory)
            sent = {"down": self.plan.algorithm.send(server, client)}
            write_atomically(self.get_message_path(t, client), encode_groups(sent))

    def make_job(self, t: int, client: str) -> Job:
        """Make the job that trains the client from that state and saves no memory."""
        path = self.get_message_path(t, client)
        if not path.is_file():
            raise FolderError(
                f"{self.folder.path} has no snapshot of client {client} after {t} rounds, as it was"
                " trained with other settings; choose another --out"
            )
        down = read_groups(path)["down"]
        return Job(kind="train", t=t, client=client, tensors=down, keeps_memory=False)

    @property
    def client_store(self) -> FolderClientStore:
        """The saved memories; a job finds its client's memory before its round."""
        return FolderClientStore(
            self.folder.path / SNAPSHOT_FOLDER / "clients", self.folder.scratch_folder
        )

    def get_message_path(self, t: int, client: str) -> Path:
        return self.folder.path / SNAPSHOT_FOLDER / f"{t:07d}" / encode_folder_name(client)


def read_groups(path: Path) -> Memory:
    with translate_disk_errors(path):
        return decode_groups(read_regular_file(path, BLOB_LIMIT), finite=False)[0]


EVALUATION_BATCH = 250  # images at a time


def measure_loss(snapshots: Snapshots, t: int) -> float:
    """Measure the loss that the victims reach in the round after a snapshot: the mean over them."""
    return fmean(measure_client_loss(snapshots, t, client) for client in snapshots.clients)


def measure_client_loss(snapshots: Snapshots, t: int, name: str) -> float:
    """Train a client for one round; return the loss of its predictions on its training examples.

    Algorithms minimise different sums in training. The loss of predictions is the same for all.
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
