"""The run folder: its configuration, events and commits, from which a killed run resumes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ..core import files
from ..core.algorithm import Reply, Server
from ..core.codec import BLOB_LIMIT, decode_groups, encode_groups
from ..core.errors import CodecError, FolderError, simplify_name
from ..core.tensors import Tensors
from ..jobs.client_store import FolderClientStore
from .events import Event
from .run_index import CONFIG_FILE, EVENTS_FILE, RESULT_FILE, read_events

CHUNK_BYTES = 1 << 20
MemoryDigests = dict[str, tuple[int, str]]  # client -> (round of its newest memory, sha256)


class EventsDigest:
    """The sha256 of a run's growing ``events.jsonl``, updated as events are appended."""

    def __init__(self) -> None:
        self.size, self._sha256 = 0, hashlib.sha256()

    def update(self, content: bytes) -> None:
        """Add bytes that were appended to the events."""
        self.size += len(content)
        self._sha256.update(content)

    def get(self) -> str:
        """Return the sha256 of the events so far."""
        return self._sha256.hexdigest()


def digest_first_events(path: Path, size: int) -> EventsDigest:
    """Compute the digest of the first ``size`` bytes of ``events.jsonl``."""
    digest = EventsDigest()
    if not size:
        return digest  # there may be no file yet
    with files.open_regular_file(path) as file:
        while chunk := file.read(min(CHUNK_BYTES, size - digest.size)):
            digest.update(chunk)
    return digest


def digest_settings(text: str) -> str:
    """Compute the digest of the settings in ``config.toml``, without the section [engine]."""
    try:
        settings = {k: v for k, v in tomllib.loads(text).items() if k != "engine"}
    except tomllib.TOMLDecodeError:
        return hashlib.sha256(text.encode()).hexdigest()
    if isinstance(algorithm := settings.get("algorithm"), dict) and "name" in algorithm:
        algorithm["name"] = simplify_name(str(algorithm["name"]))  # may be spelt differently
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


# Memories ---------------------------------------------------------------------------------------


def record_memories(digests: MemoryDigests, t: int, replies: Iterable[Reply]) -> None:
    """Update the digests of client memories with those in the replies of round ``t``."""
    for reply in replies:
        digests.pop(reply.client, None)
        if reply.kept:
            digests[reply.client] = (t, reply.kept)


def encode_memory_digests(digests: MemoryDigests) -> Tensors:
    """Encode the digests of client memories as tensors; a commit's header is too small for many clients."""
    if not digests:
        return Tensors()
    names = json.dumps(list(digests)).encode()
    sha256 = b"".join(bytes.fromhex(digest) for _, digest in digests.values())
    return Tensors(
        {
            "clients": torch.frombuffer(bytearray(names), dtype=torch.uint8),
            "rounds": torch.tensor([t for t, _ in digests.values()], dtype=torch.int64),
            "sha256": torch.frombuffer(bytearray(sha256), dtype=torch.uint8).reshape(-1, 32),
        }
    )


def decode_memory_digests(tensors: Tensors) -> MemoryDigests:
    """Decode the digests of client memories in a commit; raise CodecError if they are damaged."""
    if not tensors:
        return {}
    try:
        names = [str(name) for name in json.loads(bytes(tensors["clients"].numpy()))]
        "".join(names).encode()  # raises for a name that no file can have
        rounds, rows = tensors["rounds"].tolist(), tensors["sha256"].numpy()
        columns = zip(names, rounds, rows, strict=True)
        return {name: (int(t), bytes(row).hex()) for name, t, row in columns}
    except (KeyError, TypeError, ValueError, RecursionError):
        raise CodecError("the digests of client memories are damaged") from None


def check_memories(store: FolderClientStore, digests: MemoryDigests, before: int) -> None:
    """Raise FolderError if a client memory that a commit needs is missing or has changed."""
    for client, (t, sha256) in digests.items():
        path = store.memory_file(client, t)
        try:
            newest = max((r for r in store.list_rounds(client) if r < before), default=None)
            right = (
                newest == t
                and hashlib.sha256(files.read_regular_file(path, BLOB_LIMIT)).hexdigest() == sha256
            )
        except OSError:  # for example, a name that is too long for a file
            right = False
        if not right:
            raise FolderError(
                f"the memory of client {client} ({path}) does not match its commit (its sha256 differs)"
            )


Commit = tuple[dict[str, Tensors], dict[str, Any]]  # groups of tensors, and the header
COMMIT_FORMAT = 1
KEPT_COMMITS = 2  # the newest commit, and one to fall back to


class RunFolder:
    """The folder of one run: its configuration, partition, events, commits, client memories and result."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file, self.events_file = path / CONFIG_FILE, path / EVENTS_FILE
        self.partition_file = path / "partition.json"
        self.result_file, self.commits_folder = path / RESULT_FILE, path / "commits"
        self.scratch_folder = path / "scratch"
        self.client_store = FolderClientStore(self.commits_folder / "clients", self.scratch_folder)
        self.memory_digests: MemoryDigests = {}  # needed by the next commit
        self._events_digest, self._settings_sha256 = EventsDigest(), ""
        self._events_named = False  # whether the folder entry of the events file is synced
        self._lock: int | None = None

    # Ownership ------------------------------------------------------------------------------
    def create(self, config: str, from_python: bool = False) -> None:
        """Create and lock the folder of a new run; raise FolderError if it is not empty."""
        option = "out=" if from_python else "--out"
        if self.config_file.exists():
            how = "resume=True" if from_python else f"`heterophony resume {self.path}`"
            raise FolderError(
                f"{self.path} already holds a run; continue it with {how} or choose another {option}"
            )
        if self.path.exists() and not (self.path.is_dir() and is_empty_folder(self.path)):
            raise FolderError(f"{self.path} is not empty; choose another {option}")
        with files.translate_disk_errors(self.path):
            files.make_folder(self.path)
        self.lock()
        files.write_atomically(self.config_file, config.encode())

    def reopen(self) -> str:
        """Lock the folder of an existing run; return the text of its configuration."""
        if not self.config_file.is_file():
            raise FolderError(f"{self.path} is not a run folder: it has no config.toml")
        self.lock()
        return self.read_config_text()

    def read_config_text(self) -> str:
        """Return the text of the run's ``config.toml``."""
        with files.translate_disk_errors(self.config_file):
            try:
                return files.read_text_file(self.config_file)
            except UnicodeDecodeError:
                raise FolderError(f"{self.config_file} is damaged: it is not text") from None

    def lock(self) -> None:
        """Lock the run folder, and delete files of killed processes; raise BusyError if it is in use."""
        folders = (self.commits_folder, self.client_store.memory_folder, self.scratch_folder)
        for path in (self.events_file, *folders):
            if path.is_symlink():
                raise FolderError(f"{path} is a link; a run writes only into its own folder")
        self._lock = files.lock_folder(self.path)
        shutil.rmtree(self.scratch_folder, ignore_errors=True)
        files.remove_unfinished_files(self.path)

    def close(self) -> None:
        """Release the run folder and delete its temporary files."""
        if self._lock is not None:
            shutil.rmtree(self.scratch_folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    # Events ---------------------------------------------------------------------------------
    def append_event(self, event: Event) -> None:
        """Append an event to ``events.jsonl``, as one line."""
        line = (json.dumps(event, separators=(",", ":")) + "\n").encode()
        with (
            files.translate_disk_errors(self.events_file),
            files.open_to_append(self.events_file) as file,
        ):
            file.write(line)
        self._events_digest.update(line)

    def iterate_events(self) -> Iterator[Event]:
        """Read all events of the run so far; skip an incomplete last line, which a crash may leave."""
        return read_events(self.events_file)

    # Commits --------------------------------------------------------------------------------
    def commit(self, server: Server, keep: int | None = None) -> None:
        """Durably commit the state after ``server.t`` rounds, and all events so far, to the run folder.

        Older commits are deleted, except the one after round ``keep``.
        """
        with (
            files.translate_disk_errors(self.events_file),
            files.open_to_append(self.events_file) as file,
        ):
            os.fsync(file.fileno())
            written = file.tell()
            if not self._events_named:  # sync the folder entry of a new file
                files.sync_folder(self.path)
                self._events_named = True
            if written != self._events_digest.size:  # events of an earlier process
                self._events_digest = digest_first_events(self.events_file, written)
        self._settings_sha256 = self._settings_sha256 or digest_settings(self.read_config_text())
        groups = {
            "model": server.model,
            "average": server.average,
            "client memories": encode_memory_digests(self.memory_digests),
            **{f"memory/{k}": v for k, v in server.memory.items()},
        }
        header = {
            "format": COMMIT_FORMAT,
            "t": server.t,
            "events": written,
            "events_sha256": self._events_digest.get(),
            "settings_sha256": self._settings_sha256,
            "secret_sha256": files.digest_secret(self.path),
        }
        blob = encode_groups(groups, header)
        files.write_atomically(
            self.commits_folder / f"{server.t:07d}", blob + hashlib.sha256(blob).digest()
        )
        for name in self._list_commits()[:-KEPT_COMMITS]:
            if int(name) != keep:
                (self.commits_folder / name).unlink(missing_ok=True)

    def restore_newest_commit(self, samples: Mapping[str, int]) -> Server | None:
        """Load the newest undamaged commit and delete later events; return None if there is no commit."""
        names = self._list_commits()
        for i, name in reversed(list(enumerate(names))):
            try:
                commit = self._decode_commit(self.commits_folder / name)
            except CodecError:
                continue
            try:
                return self._restore_commit(commit, samples)
            except FolderError as error:
                raise FolderError(f"{error}; {self._advise(names[: i + 1])}") from None
        if names:
            raise FolderError(
                f"{self.commits_folder} is damaged: none of its commits can be read;"
                f" start the run again with `heterophony run {self.config_file}`"
            )
        if self.events_file.exists():
            with files.translate_disk_errors(self.events_file):
                files.truncate_file(self.events_file, 0)
        self._events_digest, self.memory_digests = EventsDigest(), {}
        return None

    def load_newest_commit(self, samples: Mapping[str, int]) -> Server | None:
        """Load the newest undamaged commit without changing the run folder; return None if there is none."""
        for name in reversed(self._list_commits()):
            try:
                return build_server(self._decode_commit(self.commits_folder / name), samples)
            except CodecError:
                continue
        return None

    def load_commit(self, t: int, samples: Mapping[str, int]) -> Server:
        """Load the server's state after ``t`` rounds from a commit that was kept."""
        return build_server(self._decode_commit(self.commits_folder / f"{t:07d}"), samples)

    def _restore_commit(self, commit: Commit, samples: Mapping[str, int]) -> Server:
        """Return to the state of a commit: check the files that it needs, and delete later events."""
        self._events_digest, self.memory_digests = self._check_commit(commit)
        with files.translate_disk_errors(self.events_file):
            files.truncate_file(self.events_file, commit[1]["events"])
        return build_server(commit, samples)

    def _check_commit(self, commit: Commit) -> tuple[EventsDigest, MemoryDigests]:
        """Raise FolderError if the settings, secret, events or client memories do not match a commit's digests."""
        groups, header = commit
        settings = digest_settings(self.read_config_text())
        if header["settings_sha256"] != settings:
            raise FolderError(f"{self.config_file} was edited after the run started")
        if header.get("secret_sha256", "") != files.digest_secret(self.path):
            raise FolderError(f"{self.path / files.SECRET_FILE} was replaced after the run started")
        size = self.events_file.stat().st_size if self.events_file.exists() else 0
        if size < header["events"]:
            raise FolderError(f"{self.events_file} is shorter than its commit says: it was edited")
        with files.translate_disk_errors(self.events_file):
            events = digest_first_events(self.events_file, header["events"])
        if header["events_sha256"] != events.get():
            raise FolderError(f"{self.events_file} does not match its commit: it was edited")
        memories = decode_memory_digests(groups["client memories"])
        check_memories(self.client_store, memories, header["t"])
        return events, memories

    def _advise(self, names: Sequence[str]) -> str:
        """Return advice for a user whose run files do not match the newest of these commits."""
        for name in names[-2:-1]:  # the older commit
            with suppress(CodecError, FolderError):
                self._check_commit(self._decode_commit(self.commits_folder / name))
                newest = self.commits_folder / names[-1]
                return f"restore it, or delete {newest} to go back to round {int(name)}"
        return "restore it, or start the run again"

    def _decode_commit(self, path: Path) -> Commit:
        """Read a commit; raise CodecError if it is damaged, FolderError if its format is unknown."""
        with files.translate_disk_errors(path):
            try:
                content = files.read_regular_file(path, BLOB_LIMIT)
            except files.UnsuitableFileError as error:
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
        numbers = [header.get(key) for key in ("t", "events")]
        texts = [header.get(key) for key in ("events_sha256", "settings_sha256")]
        complete = {"model", "client memories"} <= groups.keys()
        if (
            not complete
            or not all(isinstance(text, str) for text in texts)
            or any(type(n) is not int or n < 0 for n in numbers)
        ):
            raise CodecError(f"{path} is damaged: it is not the state of a server")
        return groups, header

    def _list_commits(self) -> list[str]:
        """List the names of the run's commits, oldest first."""
        if not self.commits_folder.is_dir():
            return []
        return sorted(f.name for f in self.commits_folder.iterdir() if f.name.isdigit())

    def find_oldest_commit(self) -> int:
        """Return the round of the oldest commit that a resume may need; older memories can be deleted."""
        names = self._list_commits()[-KEPT_COMMITS:]
        return int(names[0]) if names else 0


def build_server(
    commit: tuple[Mapping[str, Tensors], Mapping[str, Any]], samples: Mapping[str, int]
) -> Server:
    """Build the server's state from the content of a commit."""
    groups, header = commit
    memory = {k[7:]: v for k, v in groups.items() if k.startswith("memory/")}
    average = groups.get("average", Tensors())
    return Server(header["t"], samples, groups["model"], memory, average)


def is_empty_folder(folder: Path) -> bool:
    """Return True if a folder is empty, apart from files left by a run that crashed while it was created."""
    return all(f.name == "lock" or f.name.startswith(".") for f in folder.iterdir())
