"""The true state of a run at the audited rounds: what is sent to each victim, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.client import Memory
from ..core.codec import decode_groups, encode_groups
from ..core.errors import FolderError
from ..core.files import disk, write
from ..jobs.client_store import Place, folder_name
from ..jobs.plan import Job, Plan
from ..run.store import RunFolder
from ..run.summary import Event

FOLDER = "audited"


@dataclass(frozen=True)
class States:
    """Of one run, for some of its clients, at some of its rounds."""

    plan: Plan
    folder: RunFolder
    rounds: Sequence[int]
    clients: Sequence[str]

    def listener(self) -> Callable[[Event], None]:
        """To be told every event of the run: its commits are overwritten as it goes on.

        When round t is recorded, its own commit is still to come, and that of the state before it
        is the newest.
        """
        if 0 in self.rounds:
            self.keep(0)

        def listen(event: Event) -> None:
            if event["event"] == "round" and event["t"] in self.rounds:
                self.keep(int(event["t"]))

        return listen

    def end(self) -> None:
        """The run is over, now or long since: its last commit is there."""
        last = self.plan.rounds
        if last in self.rounds and not all(self.file(last, c).is_file() for c in self.clients):
            self.keep(last)

    def keep(self, t: int) -> None:
        """Put the state after ``t`` rounds aside."""
        sizes = self.plan.federation.sizes()
        server = self.folder.at(t, sizes) if t else self.plan.start()
        average = server.average | server.model
        write(self.average(t), encode_groups({"average": average}))
        for client in self.clients:
            if t:  # before that nobody has a memory
                memory = self.folder.place.memory(client, before=t)
                self.place.keep(client, t - 1, memory)
            sent = {"down": self.plan.algorithm.send(server, client)}
            write(self.file(t, client), encode_groups(sent))

    def job(self, t: int, client: str) -> Job:
        """The training of that client from that state on; it changes nothing."""
        path = self.file(t, client)
        if not path.is_file():
            raise FolderError(
                f"{self.folder.path} was trained without keeping the state after {t} rounds"
                f" of client {client}; choose another --out"
            )
        down, average = (opened(f) for f in (path, self.average(t)))
        return Job("train", t, client, down["down"], average["average"], keeps=False)

    @property
    def place(self) -> Place:
        """Where the clients are as they were then: each job finds the memory before its round."""
        return Place(self.folder.path / FOLDER / "clients", self.folder.scratch)

    def file(self, t: int, client: str) -> Path:
        return self.folder.path / FOLDER / f"{t:07d}" / folder_name(client)

    def average(self, t: int) -> Path:
        return self.folder.path / FOLDER / f"{t:07d}.average"


def opened(path: Path) -> Memory:
    with disk(path):
        return decode_groups(path.read_bytes(), finite=False)[0]
