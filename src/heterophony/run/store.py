"""A run's folder: its configuration, its events, its commits; atomic, resumable, one owner."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.algorithm import Server
from ..core.codec import decode_groups, encode_groups
from ..core.errors import CodecError, FolderError
from ..core.files import claim, disk, write
from ..core.tensors import Tensors
from ..jobs.client_store import Place
from .run_index import (
    CONFIG,
    EVENTS,
    RESULT,
    read_events,
)

FORMAT = 1
KEPT = 2  # the newest commit, and one to fall back to


class RunFolder:
    """``config.toml``, ``partition.json``, ``events.jsonl``, ``result.json``, ``commits/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.events = path / CONFIG, path / EVENTS
        self.partition = path / "partition.json"
        self.result, self.commits = path / RESULT, path / "commits"
        self.scratch = path / "scratch"
        self.place = Place(self.commits / "clients", self.scratch)
        self._lock: int | None = None

    # Owning it ------------------------------------------------------------------------------
    def create(self, config: str) -> None:
        """A new run; a folder that holds anything already is refused."""
        if self.config.exists():
            raise FolderError(
                f"{self.path} already holds a run; go on with `heterophony resume {self.path}`"
                " or choose another --out"
            )
        if self.path.exists() and not (self.path.is_dir() and empty(self.path)):
            raise FolderError(f"{self.path} is not empty; choose another --out")
        with disk(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        write(self.config, config.encode())

    def reopen(self) -> str:
        """An existing run; returns its configuration."""
        if not self.config.is_file():
            raise FolderError(f"{self.path} is not a run folder: it has no config.toml")
        self.lock()
        with disk(self.config):
            return self.config.read_text()

    def lock(self) -> None:
        """Refuse a second process, and clean up after an earlier one."""
        self._lock = claim(self.path)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def close(self) -> None:
        """Give the folder back; what can be computed again is removed."""
        if self._lock is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    # Events ---------------------------------------------------------------------------------
    def record(self, event: Mapping[str, Any]) -> None:
        """Append one line."""
        line = json.dumps(event, separators=(",", ":")) + "\n"
        with disk(self.events), open(self.events, "ab") as file:
            file.write(line.encode())

    def read(self) -> Iterator[dict[str, Any]]:
        """All events so far; a line that was cut short by a crash is left out."""
        return read_events(self.events)

    # Commits --------------------------------------------------------------------------------
    def commit(self, server: Server) -> None:
        """Make the state after ``server.t`` rounds, and all events so far, survive anything."""
        with disk(self.events), open(self.events, "ab") as file:
            os.fsync(file.fileno())
            written = file.tell()
        groups = {
            "model": server.model,
            "average": server.average,
            **{f"memory/{k}": v for k, v in server.memory.items()},
        }
        header = {
            "format": FORMAT,
            "t": server.t,
            "events": written,
        }
        blob = encode_groups(groups, header)
        write(self.commits / f"{server.t:07d}", blob + hashlib.sha256(blob).digest())
        self._prune()

    def newest(self, samples: Mapping[str, int]) -> Server | None:
        """The newest whole commit, with the events put back to that moment; None before any."""
        names = self._commits()
        for name in reversed(names):
            try:
                return self._load(self.commits / name, samples)
            except CodecError:
                continue
        if names:
            raise FolderError(
                f"{self.commits} is damaged: none of its commits can be read; start the run anew"
                f" with `heterophony run {self.config}`"
            )
        if self.events.exists():
            with disk(self.events):
                os.truncate(self.events, 0)
        return None

    def at(self, t: int, samples: Mapping[str, int]) -> Server:
        """The server after ``t`` rounds, whose commit must be one of those that are kept."""
        return served(self._decoded(self.commits / f"{t:07d}"), samples)

    def _load(self, path: Path, samples: Mapping[str, int]) -> Server:
        """The server of a commit, with the events put back to that moment."""
        groups, header = self._decoded(path)
        size = self.events.stat().st_size if self.events.exists() else 0
        if size < header["events"]:
            raise FolderError(f"{self.events} is shorter than its commit says: it was cut by hand")
        with disk(self.events):
            os.truncate(self.events, header["events"])
        return served((groups, header), samples)

    def _decoded(self, path: Path) -> tuple[dict[str, Tensors], dict[str, Any]]:
        with disk(path):
            content = path.read_bytes()
        blob, sha256 = content[:-32], content[-32:]
        if hashlib.sha256(blob).digest() != sha256:
            raise CodecError(f"{path} is damaged")
        groups, header = decode_groups(blob, finite=False)
        if header.get("format") != FORMAT:
            raise FolderError(
                f"{path} has format {header.get('format')}, this version reads {FORMAT};"
                " resume with the version that began the run"
            )
        return groups, header

    def _commits(self) -> list[str]:
        if not self.commits.is_dir():
            return []
        return sorted(f.name for f in self.commits.iterdir() if f.name.isdigit())

    def _prune(self) -> None:
        names = self._commits()
        for name in names[:-KEPT]:
            (self.commits / name).unlink(missing_ok=True)

    def oldest(self) -> int:
        """The oldest round a resume could go back to: memories before it are not needed."""
        names = self._commits()
        return int(names[0]) if names else 0


def served(
    commit: tuple[Mapping[str, Tensors], Mapping[str, Any]], samples: Mapping[str, int]
) -> Server:
    """The server as a commit tells it."""
    groups, header = commit
    memory = {k[7:]: v for k, v in groups.items() if k.startswith("memory/")}
    average = groups.get("average", Tensors())
    return Server(header["t"], samples, groups["model"], memory, average)


def empty(folder: Path) -> bool:
    """Nothing in it but what a run that died at its very beginning leaves."""
    return all(f.name == "lock" or f.name.startswith(".") for f in folder.iterdir())
