"""A run folder: configuration, events, commits. One process owns it; a crash can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.algorithm import Server
from ..core.codec import BLOB_LIMIT, decode_groups, encode_groups
from ..core.errors import CodecError, FolderError
from ..core.files import (
    UnsuitableFileError,
    lock_folder,
    open_to_append,
    read_regular_file,
    read_text_file,
    translate_disk_errors,
    truncate_file,
    write_atomically,
)
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

    # Ownership ------------------------------------------------------------------------------
    def create(self, config: str, from_python: bool = False) -> None:
        """Create a new run; refuse a folder that is not empty."""
        option = "out=" if from_python else "--out"
        if self.config_file.exists():
            how = "resume=True" if from_python else f"`heterophony resume {self.path}`"
            raise FolderError(
                f"{self.path} already holds a run; continue it with {how} or choose another {option}"
            )
        if self.path.exists() and not (self.path.is_dir() and is_empty_folder(self.path)):
            raise FolderError(f"{self.path} is not empty; choose another {option}")
        with translate_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        write_atomically(self.config_file, config.encode())

    def reopen(self) -> str:
        """Open an existing run and return its configuration."""
        if not self.config_file.is_file():
            raise FolderError(f"{self.path} is not a run folder: it has no config.toml")
        self.lock()
        return self.read_config_text()

    def read_config_text(self) -> str:
        """Read the configuration of the run."""
        with translate_disk_errors(self.config_file):
            try:
                return read_text_file(self.config_file)
            except UnicodeDecodeError:
                raise FolderError(f"{self.config_file} is damaged: it is not text") from None

    def lock(self) -> None:
        """Refuse if another process owns the folder; delete temporary files of an earlier one."""
        folders = (self.commits_folder, self.client_store.memory_folder, self.scratch_folder)
        for path in (self.events_file, *folders):
            if path.is_symlink():
                raise FolderError(f"{path} is a link; a run writes only into its own folder")
        self._lock = lock_folder(self.path)
        shutil.rmtree(self.scratch_folder, ignore_errors=True)

    def close(self) -> None:
        """Release the folder and delete its temporary files."""
        if self._lock is not None:
            shutil.rmtree(self.scratch_folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    # Events ---------------------------------------------------------------------------------
    def append_event(self, event: Event) -> None:
        """Append an event as one line."""
        line = json.dumps(event, separators=(",", ":")) + "\n"
        with translate_disk_errors(self.events_file), open_to_append(self.events_file) as file:
            file.write(line.encode())

    def iterate_events(self) -> Iterator[Event]:
        """Read all events so far; skip a last line that a crash cut short."""
        return read_events(self.events_file)

    # Commits --------------------------------------------------------------------------------
    def commit(self, server: Server) -> None:
        """Store the state after ``server.t`` rounds, and all events so far, durably on disk."""
        with translate_disk_errors(self.events_file), open_to_append(self.events_file) as file:
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
        """Load the newest undamaged commit and truncate the events to it; None without commits."""
        names = self._list_commits()
        for name in reversed(names):
            try:
                return self._restore_commit(self.commits_folder / name, samples)
            except CodecError:
                continue
        if names:
            raise FolderError(
                f"{self.commits_folder} is damaged: none of its commits can be read;"
                f" start the run again with `heterophony run {self.config_file}`"
            )
        if self.events_file.exists():
            with translate_disk_errors(self.events_file):
                truncate_file(self.events_file, 0)
        return None

    def load_newest_commit(self, samples: Mapping[str, int]) -> Server | None:
        """Load the newest undamaged commit and change nothing: another process may be writing."""
        for name in reversed(self._list_commits()):
            try:
                return build_server(self._decode_commit(self.commits_folder / name), samples)
            except CodecError:
                continue
        return None

    def load_commit(self, t: int, samples: Mapping[str, int]) -> Server:
        """Load the server after ``t`` rounds; its commit must be one of those still kept."""
        return build_server(self._decode_commit(self.commits_folder / f"{t:07d}"), samples)

    def _restore_commit(self, path: Path, samples: Mapping[str, int]) -> Server:
        """Load a commit and truncate the events to what was recorded before it."""
        groups, header = self._decode_commit(path)
        size = self.events_file.stat().st_size if self.events_file.exists() else 0
        if size < header["events"]:
            raise FolderError(
                f"{self.events_file} is shorter than its commit says: it was edited;"
                " restore it, or start the run again"
            )
        with translate_disk_errors(self.events_file):
            truncate_file(self.events_file, header["events"])
        return build_server((groups, header), samples)

    def _decode_commit(self, path: Path) -> tuple[dict[str, Tensors], dict[str, Any]]:
        with translate_disk_errors(path):
            try:
                content = read_regular_file(path, BLOB_LIMIT)
            except UnsuitableFileError as error:
                raise CodecError(f"{path} is damaged: {error.strerror}") from None
        blob, sha256 = content[:-32], content[-32:]
        if hashlib.sha256(blob).digest() != sha256:
            raise CodecError(f"{path} is damaged")
        groups, header = decode_groups(blob, finite=False)
        if header.get("format") != COMMIT_FORMAT:
            raise FolderError(
                f"{path} has format {header.get('format')}, this version reads {COMMIT_FORMAT};"
                " resume with the version that started the run"
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
        """Find the oldest round that a resume may return to; it needs no older memories."""
        names = self._list_commits()
        return int(names[0]) if names else 0


def build_server(
    commit: tuple[Mapping[str, Tensors], Mapping[str, Any]], samples: Mapping[str, int]
) -> Server:
    """Build the server from the content of a commit."""
    groups, header = commit
    memory = {k[7:]: v for k, v in groups.items() if k.startswith("memory/")}
    average = groups.get("average", Tensors())
    return Server(header["t"], samples, groups["model"], memory, average)


def is_empty_folder(folder: Path) -> bool:
    """Tell whether a folder is empty, or has only files of a run that crashed at its creation."""
    return all(f.name == "lock" or f.name.startswith(".") for f in folder.iterdir())
