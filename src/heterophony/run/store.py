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
from ..core.files import lock_folder, translate_disk_errors, write_atomically
from ..core.tensors import Tensors
from ..jobs.client_store import FolderClientStore
from .events import Event
from .run_index import CONFIG_FILE, EVENTS_FILE, RESULT_FILE, read_events

COMMIT_FORMAT = 1
KEPT_COMMITS = 2  # the newest commit, and one to fall back to


class RunFolder:
    """``config.toml``, ``partition.json``, ``events.jsonl``, ``result.json``, ``commits/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file, self.events_file = path / CONFIG_FILE, path / EVENTS_FILE
        self.partition_file = path / "partition.json"
        self.result_file, self.commits_folder = path / RESULT_FILE, path / "commits"
        self.scratch_folder = path / "scratch"
        self.client_store = FolderClientStore(self.commits_folder / "clients", self.scratch_folder)
        self._lock: int | None = None

    # Owning it ------------------------------------------------------------------------------
    def create(self, config: str) -> None:
        """A new run; a folder that holds anything already is refused."""
        if self.config_file.exists():
            raise FolderError(
                f"{self.path} already holds a run; go on with `heterophony resume {self.path}`"
                " or choose another --out"
            )
        if self.path.exists() and not (self.path.is_dir() and is_empty_folder(self.path)):
            raise FolderError(f"{self.path} is not empty; choose another --out")
        with translate_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        write_atomically(self.config_file, config.encode())

    def reopen(self) -> str:
        """An existing run; returns its configuration."""
        if not self.config_file.is_file():
            raise FolderError(f"{self.path} is not a run folder: it has no config.toml")
        self.lock()
        with translate_disk_errors(self.config_file):
            return self.config_file.read_text()

    def lock(self) -> None:
        """Refuse a second process, and clean up after an earlier one."""
        self._lock = lock_folder(self.path)
        shutil.rmtree(self.scratch_folder, ignore_errors=True)

    def close(self) -> None:
        """Give the folder back; what can be computed again is removed."""
        if self._lock is not None:
            shutil.rmtree(self.scratch_folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    # Events ---------------------------------------------------------------------------------
    def append_event(self, event: Event) -> None:
        """Append one line."""
        line = json.dumps(event, separators=(",", ":")) + "\n"
        with translate_disk_errors(self.events_file), open(self.events_file, "ab") as file:
            file.write(line.encode())

    def iterate_events(self) -> Iterator[Event]:
        """All events so far; a line that was cut short by a crash is left out."""
        return read_events(self.events_file)

    # Commits --------------------------------------------------------------------------------
    def commit(self, server: Server) -> None:
        """Make the state after ``server.t`` rounds, and all events so far, survive anything."""
        with translate_disk_errors(self.events_file), open(self.events_file, "ab") as file:
            os.fsync(file.fileno())
            written = file.tell()
        groups = {
            "model": server.model,
            "average": server.average,
            **{f"memory/{k}": v for k, v in server.memory.items()},
        }
        header = {
            "format": COMMIT_FORMAT,
            "t": server.t,
            "events": written,
        }
        blob = encode_groups(groups, header)
        write_atomically(
            self.commits_folder / f"{server.t:07d}", blob + hashlib.sha256(blob).digest()
        )
        self._prune_commits()

    def restore_newest_commit(self, samples: Mapping[str, int]) -> Server | None:
        """The newest whole commit, with the events put back to that moment; None before any."""
        names = self._list_commits()
        for name in reversed(names):
            try:
                return self._restore_commit(self.commits_folder / name, samples)
            except CodecError:
                continue
        if names:
            raise FolderError(
                f"{self.commits_folder} is damaged: none of its commits can be read; start the run anew"
                f" with `heterophony run {self.config_file}`"
            )
        if self.events_file.exists():
            with translate_disk_errors(self.events_file):
                os.truncate(self.events_file, 0)
        return None

    def load_commit(self, t: int, samples: Mapping[str, int]) -> Server:
        """The server after ``t`` rounds, whose commit must be one of those that are kept."""
        return build_server(self._decode_commit(self.commits_folder / f"{t:07d}"), samples)

    def _restore_commit(self, path: Path, samples: Mapping[str, int]) -> Server:
        """The server of a commit, with the events put back to that moment."""
        groups, header = self._decode_commit(path)
        size = self.events_file.stat().st_size if self.events_file.exists() else 0
        if size < header["events"]:
            raise FolderError(
                f"{self.events_file} is shorter than its commit says: it was cut by hand"
            )
        with translate_disk_errors(self.events_file):
            os.truncate(self.events_file, header["events"])
        return build_server((groups, header), samples)

    def _decode_commit(self, path: Path) -> tuple[dict[str, Tensors], dict[str, Any]]:
        with translate_disk_errors(path):
            content = path.read_bytes()
        blob, sha256 = content[:-32], content[-32:]
        if hashlib.sha256(blob).digest() != sha256:
            raise CodecError(f"{path} is damaged")
        groups, header = decode_groups(blob, finite=False)
        if header.get("format") != COMMIT_FORMAT:
            raise FolderError(
                f"{path} has format {header.get('format')}, this version reads {COMMIT_FORMAT};"
                " resume with the version that began the run"
            )
        return groups, header

    def _list_commits(self) -> list[str]:
        if not self.commits_folder.is_dir():
            return []
        return sorted(f.name for f in self.commits_folder.iterdir() if f.name.isdigit())

    def _prune_commits(self) -> None:
        names = self._list_commits()
        for name in names[:-KEPT_COMMITS]:
            (self.commits_folder / name).unlink(missing_ok=True)

    def find_oldest_commit(self) -> int:
        """The oldest round a resume could go back to: memories before it are not needed."""
        names = self._list_commits()
        return int(names[0]) if names else 0


def build_server(
    commit: tuple[Mapping[str, Tensors], Mapping[str, Any]], samples: Mapping[str, int]
) -> Server:
    """The server as a commit tells it."""
    groups, header = commit
    memory = {k[7:]: v for k, v in groups.items() if k.startswith("memory/")}
    average = groups.get("average", Tensors())
    return Server(header["t"], samples, groups["model"], memory, average)


def is_empty_folder(folder: Path) -> bool:
    """Nothing in it but what a run that died at its very beginning leaves."""
    return all(f.name == "lock" or f.name.startswith(".") for f in folder.iterdir())
