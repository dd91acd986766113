"""Mutations that each remove one safeguard; the simulator must notice every one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from heterophony.boards import board as board_module
from heterophony.boards import server as server_module
from heterophony.boards.board import BoardFolder
from heterophony.boards.protocol import blobs, board_session, messages, server_session
from heterophony.boards.protocol.assignments import Assignments
from heterophony.boards.protocol.blobs import (
    IncomingBlob,
    ResendTimer,
)
from heterophony.boards.protocol.board_session import BoardSession, JobQueue
from heterophony.boards.protocol.server_session import ServerSession
from heterophony.boards.server import BoardsRecord
from heterophony.core import files
from heterophony.core.errors import CodecError
from heterophony.jobs import client_store
from heterophony.jobs.client_store import FolderClientStore
from heterophony.runs import folder as run_folder
from heterophony.runs.folder import RunFolder

from . import fault_world
from .fault_world import draw_faults, is_broken

Patch = Callable[[], AbstractContextManager[Any]]
MUTATIONS: dict[str, Patch] = {}


Replacement = tuple[
    Any, str, Callable[[Any], Any]
]  # owner, name, and a function that makes the new value from the old one


def take_out(words: str, *replacements: Replacement) -> None:
    """Add a mutation that removes a safeguard by these replacements."""

    @contextmanager
    def patched() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, make in replacements:
                new = make(getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, new))
            yield

    MUTATIONS[words] = patched


class FilesBut:
    """A stand-in for the module ``files``, with one function replaced, for one module that imports it."""

    def __init__(self, name: str, new: Any) -> None:
        setattr(self, name, new)

    def __getattr__(self, name: str) -> Any:
        return getattr(files, name)


def of_files(owner: Any, name: str, make: Callable[[Any], Any]) -> Replacement:
    """Replace a function of ``files`` for one module that calls it as ``files.name``."""
    return owner, "files", lambda module: FilesBut(name, make(getattr(module, name)))


def write_in_place(path: Path, content: bytes, durable: bool = True, private: bool = False) -> None:
    with files.translate_disk_errors(path):
        files.make_folder(path.parent)
        path.unlink(missing_ok=True)
        with files.open(path, "xb") as file:  # type: ignore[attr-defined]
            file.write(content)
            os.fsync(file.fileno())
        files.sync_folder(path.parent)


def write_unsynced(write: Any) -> Any:
    return lambda path, content, durable=True, private=False: write(path, content, False, private)


def lock_only(_: Any) -> Any:
    return lambda folder: os.open(folder / "lock", os.O_RDWR | os.O_CREAT)


def make_unsynced(make: Any) -> Any:
    return lambda folder, durable=True: make(folder, False)


ATOMIC = "write_atomically"
take_out("fsync commits and settings", of_files(run_folder, ATOMIC, write_unsynced))
take_out("fsync client memories", (client_store, ATOMIC, write_unsynced))
take_out("fsync a board's ids", of_files(board_module, ATOMIC, write_unsynced))
take_out(
    "rename commits and settings into place", of_files(run_folder, ATOMIC, lambda _: write_in_place)
)
take_out(
    "rename a board's ids into place", of_files(board_module, ATOMIC, lambda _: write_in_place)
)
take_out("rename the secret of the noise into place", (files, ATOMIC, lambda _: write_in_place))
take_out("sync names after a rename", (files, "sync_folder", lambda _: lambda folder: None))
take_out("sync the names of new folders", (files, "make_folder", make_unsynced))
take_out("sync a run folder when it is locked", of_files(run_folder, "lock_folder", lock_only))
take_out("report disk errors as such", (files, "translate_disk_errors", lambda _: nullcontext))


# The run folder ---------------------------------------------------------------------------------


def without_event_sync(commit: Any) -> Any:
    def mutant(folder: RunFolder, server: Any, keep: int | None = None) -> None:
        fsync = os.fsync

        def skip(fd: int) -> None:
            if not os.readlink(f"/proc/self/fd/{fd}").endswith("events.jsonl"):  # noqa: PTH115
                fsync(fd)

        with mock.patch.object(os, "fsync", skip):
            commit(folder, server, keep)

    return mutant


def truncate_nothing(_: Any) -> Any:
    return lambda path, size: None


def decode_unchecked(_: Any) -> Any:
    def mutant(folder: RunFolder, path: Path) -> Any:
        content = files.read_regular_file(path, 1 << 30)
        return run_folder.decode_groups(content[:-32], finite=False)

    return mutant


def read_newest(_: Any) -> Any:
    def mutant(store: FolderClientStore, client: str, before: int) -> bytes:
        rounds = store.list_rounds(client)
        if not rounds:
            return b""
        return files.read_regular_file(store.memory_file(client, rounds[-1]), 1 << 30)

    return mutant


def delete_all_old(_: Any) -> Any:
    def mutant(
        store: FolderClientStore, clients: Any, before: int, keep: int | None = None
    ) -> None:
        for client in clients:
            for t in store.list_rounds(client)[:-1]:
                store.memory_file(client, t).unlink(missing_ok=True)

    return mutant


def redraw_secret(load: Any) -> Any:
    def mutant(folder: Path, create: bool, warn: Any) -> bytes:
        if create:
            (folder / files.SECRET_FILE).unlink(missing_ok=True)
        return load(folder, create, warn)  # type: ignore[no-any-return]

    return mutant


def commit_first(_: Any) -> Any:
    """Commit only every second round."""

    def mutant(folder: RunFolder, server: Any, keep: int | None = None) -> None:
        if server.t % 2 == 0:
            COMMIT(folder, server, keep)

    return mutant


COMMIT = RunFolder.commit
take_out("fsync the events before a commit", (RunFolder, "commit", without_event_sync))
take_out(
    "cut off events after the last commit", of_files(run_folder, "truncate_file", truncate_nothing)
)
take_out("check the sha256 of a commit", (RunFolder, "_decode_commit", decode_unchecked))
take_out("commit every round", (RunFolder, "commit", commit_first))
take_out("read the memory from before the round", (FolderClientStore, "read_blob", read_newest))
take_out(
    "keep memories that a resume may need",
    (FolderClientStore, "delete_old_memories", delete_all_old),
)
take_out("keep the secret of the noise", (files, "load_secret", redraw_secret))


# The protocol -----------------------------------------------------------------------------------


def without_frame_checksum(_: Any) -> Any:
    """Parse a message without checking its checksum."""

    def mutant(payload: bytes) -> dict[str, Any]:
        try:
            content = json.loads(payload.split(b"\n")[0])
        except ValueError:
            raise CodecError("not JSON") from None
        if not isinstance(content, dict):
            raise CodecError("not an object")
        return content

    return mutant


def without_control(tick: Any) -> Any:
    def mutant(session: ServerSession, now: float) -> Any:
        session.control_timer.reset(now)
        return tick(session, now)

    return mutant


def without_hello(tick: Any) -> Any:
    def mutant(session: BoardSession, now: float) -> Any:
        session.hello_timer.reset(now)
        return tick(session, now)

    return mutant


def newest_only(restore: Any) -> Any:
    def mutant(folder: RunFolder, samples: Any) -> Any:
        names = folder._list_commits()[-1:]
        with mock.patch.object(folder, "_list_commits", return_value=names):
            return restore(folder, samples)

    return mutant


def same_start(init: Any) -> Any:
    def mutant(record: BoardsRecord, folder: Path) -> None:
        init(record, folder)
        record.start = 1

    return mutant


def fail_silently(_: Any) -> Any:
    def mutant(queue: JobQueue, why: object, again: bool, now: float) -> Any:
        return queue.request_blobs(now)

    return mutant


def nothing_again(_: Any) -> Any:
    return lambda self, *args, **kwargs: []


def never_due(_: Any) -> Any:
    return lambda timer, now: False


def nothing(_: Any) -> Any:
    return lambda *args: []


def count_again(handle_done: Any) -> Any:
    """Reopen a job whose reply has been taken."""
    taken: dict[int, dict[str, Any]] = {}  # by session: the jobs of its round

    def mutant(self: Assignments, board: str, record: Any, done: Any, now: float) -> Any:
        jobs = taken.setdefault(id(self), {})
        jobs.update(self.open_jobs)
        if done.id in self.taken_ids and done.id in jobs and self.open_jobs:
            self.open_jobs[done.id] = jobs[done.id]
        return handle_done(self, board, record, done, now)

    return mutant


def work_again(handle_assigned: Any) -> Any:
    """Execute a job again if it is assigned again."""

    def mutant(queue: JobQueue, assigned: Any, now: float) -> Any:
        if queue.reply_store.announcements.pop(assigned.id, None):
            queue.announcement_timers.pop(assigned.id, None)
        return handle_assigned(queue, assigned, now)

    return mutant


def store_later(put: Any) -> Any:
    """Announce a reply at once, but store it only with the next one."""
    waiting: dict[int, tuple[Any, bytes]] = {}

    def mutant(store: blobs.ReplyStore, done: Any, reply: bytes) -> None:
        if earlier := waiting.pop(id(store), None):
            put(store, *earlier)
        waiting[id(store)] = done, reply
        store.announcements[done.id] = done

    def find_reply(store: blobs.ReplyStore, sha256: str) -> Any:
        for done, reply in waiting.values():
            if done.reply.sha256 == sha256:
                return blobs.OutgoingBlob.from_bytes(reply)
        return FIND_REPLY(store, sha256)

    store_later.find_reply = find_reply  # type: ignore[attr-defined]
    return mutant


def load_any(_: Any) -> Any:
    def mutant(store: blobs.ReplyStore, path: Path) -> None:
        text, checksum, _ = [*path.read_bytes().split(b"\n", 2), b"", b""][:3]
        try:
            done = messages.decode_message(text + b"\n" + checksum, messages.Done)
        except CodecError:
            path.unlink()
            return
        store.announcements[done.id] = done

    return mutant


def any_order(_: Any) -> Any:
    return lambda control: (0, 0, 0)


def names_known(init: Any) -> Any:
    def mutant(folder: RunFolder, *args: Any, **kwargs: Any) -> None:
        init(folder, *args, **kwargs)
        folder._events_named = True

    return mutant


FIND_REPLY = blobs.ReplyStore.find_reply


def accept_any_digest(_: Any) -> Any:
    def mutant(blob: IncomingBlob) -> bytes | None:
        count = blobs.count_chunks(blob.blob)
        if len(blob.received) < count:
            return None
        return b"".join(blob.received[i] for i in range(count))

    return mutant


def without_chunk_checksum(_: Any) -> Any:
    def mutant(payload: bytes) -> blobs.Chunk:
        start = blobs.HEADER.size + blobs.CHECKSUM.size
        if len(payload) <= start or payload[:4] != blobs.MAGIC:
            raise CodecError("not a chunk")
        _, sha256, index = blobs.HEADER.unpack(payload[: blobs.HEADER.size])
        return blobs.Chunk(sha256.hex(), index, payload[start:])

    return mutant


def new_id(_: Any) -> Any:
    INIT = BoardFolder.__init__

    def mutant(folder: BoardFolder, path: Path) -> None:
        (path / board_module.ID_FILE).unlink(missing_ok=True)
        INIT(folder, path)

    return mutant


def forget_record(_: Any) -> Any:
    INIT = BoardsRecord.__init__

    def mutant(record: BoardsRecord, folder: Path) -> None:
        (folder / server_module.BOARDS_RECORD).unlink(missing_ok=True)
        INIT(record, folder)

    return mutant


def save_nothing(_: Any) -> Any:
    return lambda record: None


take_out("repeat what got no answer", (ResendTimer, "advance_if_due", never_due))
take_out("repeat requests for chunks", (IncomingBlob, "repeat_overdue_request", nothing))
take_out("repeat jobs", (Assignments, "repeat_overdue", nothing))
take_out("repeat announcements of replies", (JobQueue, "repeat_overdue", nothing))
take_out("repeat a Hello", (BoardSession, "tick", without_hello))
take_out("keep the id of a board's folder", (BoardFolder, "__init__", new_id))
take_out("keep the run's id and the boards' clients", (BoardsRecord, "__init__", forget_record))
take_out("save which board holds which client", (BoardsRecord, "save", save_nothing))
take_out(
    "check the checksums of chunks and blobs",
    (IncomingBlob, "assemble", accept_any_digest),
    (board_session, "decode_chunk", without_chunk_checksum),
    (server_session, "decode_chunk", without_chunk_checksum),
)
take_out("check the checksum of a message", (messages, "decode_frame", without_frame_checksum))
take_out("repeat the state of the run", (ServerSession, "tick", without_control))
take_out(
    "fall back to the commit before a damaged one",
    (RunFolder, "restore_newest_commit", newest_only),
)
take_out("count the server's starts", (BoardsRecord, "__init__", same_start))
take_out("report a failed job", (JobQueue, "fail_current", fail_silently))
take_out("assign a failed job again", (Assignments, "retry_or_give_up", nothing_again))
take_out("number the attempts of a job", (JobQueue, "handle_rejected", nothing))

take_out("take each reply once", (Assignments, "handle_done", count_again))
take_out("answer a repeated job with its reply", (JobQueue, "handle_assigned", work_again))
take_out(
    "store a reply before it is announced",
    (blobs.ReplyStore, "put", store_later),
    (blobs.ReplyStore, "find_reply", lambda _: store_later.find_reply),  # type: ignore[attr-defined]
)
take_out("check the sha256 of a stored reply", (blobs.ReplyStore, "load_file", load_any))
take_out("keep Control messages in order", (board_session, "rank_control_message", any_order))
take_out("sync the name of events.jsonl", (RunFolder, "__init__", names_known))


def count_seeds(words: str, first: int, count: int) -> int | None:
    """Return the number of seeds until a missing safeguard is noticed; None if it is not."""
    with MUTATIONS[words]():
        for seed in range(first, first + count):
            if is_broken(seed, draw_faults(seed)):
                return seed - first + 1
    return None


def print_table(first: int, count: int) -> int:
    """Print the number of seeds until each mutation is noticed; return exit code 1 if one is not."""
    for setup in fault_world.SETUPS:  # before any safeguard is removed
        fault_world.run_undisturbed(setup)
    print(f"| safeguard | seeds until its absence is noticed (of {count}) |\n|---|---|")
    missed = 0
    for words in MUTATIONS:
        found = count_seeds(words, first, count)
        missed += found is None
        print(f"| {words} | {found if found else 'not noticed'} |", flush=True)
    return int(missed > 0)
