"""A fuzzing target for every decoder: valid inputs, changes to them, and the errors that it may raise.

Any error that is not a target's documented one is a defect of the decoder.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import tomli_w
import torch

from helpers import mutation
from helpers.made_runs import FIRST, played
from heterophony.boards.protocol import blobs as chunks
from heterophony.boards.protocol import job_codec
from heterophony.boards.protocol import messages as framing
from heterophony.boards.protocol import messages as m
from heterophony.config.reading import read_config
from heterophony.core import codec
from heterophony.core.algorithm import Reply, Server
from heterophony.core.errors import CodecError, ConfigError, DataError, FolderError
from heterophony.core.tensors import Tensors
from heterophony.jobs.plan import Job
from heterophony.results.runs import load_run
from heterophony.runs.folder import RunFolder
from heterophony.runs.run_index import read_events, read_last_event
from heterophony.runs.summary import summarise

A, B = "ab" * 32, "cd" * 32
MODEL = Tensors({"base.w": torch.arange(12.0).reshape(3, 4), "head.b": torch.tensor([1, 2])})
JOB = Job(kind="train", t=3, client="a", tensors=MODEL, turn=1, keeps_memory=False)
BLOB = bytes(range(256)) * 40
SETTINGS = """
seed = 3
rounds = 5
[algorithm]
name = "fedreg"
threshold = "mean"
[data]
name = "digits"
clients = 4
[data.partition]
kind = "dirichlet"
alpha = 0.5
[training]
optimizer = "adam"
lr = 0.01
[participation]
rate = 0.5
deadline = 3.0
[engine]
name = "pool"
workers = 2
accelerator = "cpu"
"""
ALL_KINDS = ((m.Control,), (m.Status,), m.FROM_SERVER, m.FROM_BOARD)


@dataclass(frozen=True)
class Target:
    """A decoder that is fuzzed. ``check`` raises an error only for a defect of the decoder."""

    check: Callable[[bytes], None]
    valid: Sequence[bytes]
    change_content: Callable[[Random, bytes], bytes]
    seal: Callable[[bytes], bytes] = lambda content: content

    def draw_input(self, draw: Random) -> bytes:
        return mutation.draw_input(draw, self.valid, self.change_content, self.seal)


@cache
def get_scratch() -> Path:
    """Return a folder for inputs that are files; it lasts as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix="fuzz-")
    FOLDERS.append(folder)
    return Path(folder.name)


FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


# Messages and chunks ----------------------------------------------------------------------------


def check_message(payload: bytes) -> None:
    for kinds in ALL_KINDS:
        with suppress(CodecError):
            found = m.decode_message(payload, *kinds)
            assert m.decode_message(m.encode_message(found), *kinds) == found


def change_frame(draw: Random, payload: bytes) -> bytes:
    return framing.encode_frame(mutation.change_json(draw, framing.decode_frame(payload)))


def seal_frame(payload: bytes) -> bytes:
    return framing.add_checksum(payload[:-9])


def list_messages() -> list[bytes]:
    ref, summary = m.BlobRef(A, 300), m.ClientSummary("c 0", 40, 10, 0, (4, 36), B, (1, 8, 8), 2)
    assigned = job_codec.make_assigned("run", JOB, ref, ref)
    return [
        m.encode_message(message)
        for message in (
            m.Control("run", "id", 2, "running", 3, 10, 1, ref),
            m.Status("here", "s1"),
            m.Hello("s1", 2, "0.1.0", A, (summary,), {"cpu": "arm"}),
            m.Welcome("s1", 2),
            m.Refused("s1", 2, "client 'a' is held by board 'pi-1'"),
            assigned,
            m.Done(A, 0, 3, ref, 1.5),
            m.Want(A, (0, 5)),
            m.Taken(A),
            m.Rejected(A, 0, "tensor 'w' holds NaN"),
            m.Failed(A, 0, "the disk is full", True),
            m.Metrics({"progress": 0.5, "rss": 200}),
        )
    ]


def check_chunk(payload: bytes) -> None:
    with suppress(CodecError):
        chunk = chunks.decode_chunk(payload)
        assert chunks.encode_chunk(chunk) == payload
        incoming = chunks.IncomingBlob(m.BlobRef.from_bytes(BLOB), len(BLOB), 0.0)
        incoming.request_next()
        incoming.add_chunk(chunk, 0.0)
        assert incoming.assemble() in (None, BLOB)


def list_chunks() -> list[bytes]:
    pieces = ((hashlib.sha256(BLOB).hexdigest(), 0, BLOB), (A, 1, b"x"))
    return [chunks.encode_chunk(chunks.Chunk(*piece)) for piece in pieces]


def change_chunk(draw: Random, payload: bytes) -> bytes:
    sha256 = draw.choice((hashlib.sha256(BLOB).hexdigest(), A))
    index = draw.choice((0, 1, 2**32 - 1))
    data = mutation.change_bytes(draw, draw.choice((BLOB, b"", b"x")), [BLOB])
    return chunks.encode_chunk(chunks.Chunk(sha256, index, data))


def seal_chunk(payload: bytes) -> bytes:
    head, data = payload[: chunks.HEADER.size], payload[chunks.HEADER.size + 4 :]
    checksum = zlib.crc32(data, zlib.crc32(head))
    return head + chunks.CHECKSUM.pack(checksum) + data


# Tensors ----------------------------------------------------------------------------------------


def check_blob(blob: bytes) -> None:
    assigned = job_codec.make_assigned("run", JOB, m.BlobRef(A, 300), m.BlobRef(A, 300))
    for decode in (
        codec.decode_blob,
        lambda b: codec.decode_blob(b, like=MODEL),
        codec.decode_groups,
        lambda b: job_codec.decode_reply(b, assigned, 1.0),
        lambda b: codec.decode_blob(b, finite=False),
    ):
        with suppress(CodecError):
            decode(blob)


def list_blobs() -> list[bytes]:
    metrics = {"loss/own": 0.25, "P_local": 3, "seconds": 1.5}
    aside = Tensors({"head.w": torch.ones(2)})
    reply = Reply("a", "train", MODEL, 40, 40, metrics, aside, 1, 80, A)
    return [
        job_codec.encode_reply(reply, share_personal=True),
        codec.encode_groups({"model": MODEL, "other": aside}, {"t": 3}),
        codec.encode_blob(Tensors()),
    ]


def change_blob(draw: Random, blob: bytes) -> bytes:
    """Change the header of a blob, or that of the safetensors within."""
    size = int.from_bytes(blob[4:8], "big")
    head, body = blob[8 : 8 + size], blob[8 + size :]
    if draw.randrange(2):
        head = dump(mutation.change_json(draw, json.loads(head)))
    else:
        body = change_safetensors(draw, body)
    return blob[:4] + len(head).to_bytes(4, "big") + head + body


def check_safetensors(body: bytes) -> None:
    with suppress(CodecError):
        found = codec.from_safetensors(body)
        again = codec.from_safetensors(codec.to_safetensors(found))
        assert again.keys() == found.keys()
    with suppress(CodecError):
        codec.from_safetensors(body, finite=False)


def list_safetensors() -> list[bytes]:
    return [codec.to_safetensors(MODEL), codec.to_safetensors(Tensors())]


def change_safetensors(draw: Random, body: bytes) -> bytes:
    size = int.from_bytes(body[:8], "little")
    head = dump(mutation.change_json(draw, json.loads(body[8 : 8 + size])))
    return len(head).to_bytes(8, "little") + head + body[8 + size :]


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


# Files of a run ---------------------------------------------------------------------------------


def check_events(content: bytes) -> None:
    folder = get_scratch() / "run"
    folder.mkdir(exist_ok=True)
    path = folder / "events.jsonl"
    (folder / "config.toml").write_text(SETTINGS)
    path.write_bytes(content)
    with suppress(FolderError):
        read_last_event(path)
    with suppress(FolderError):
        summarise(list(read_events(path)))
    with suppress(FolderError):
        load_run(folder)


def change_events(draw: Random, content: bytes) -> bytes:
    events = mutation.change_json(draw, [json.loads(line) for line in content.splitlines()])
    return b"".join(dump(e) + b"\n" for e in events) if isinstance(events, list) else b""


def list_events() -> list[bytes]:
    return [
        b"".join(dump(e) + b"\n" for e in events)
        for events in (played(FIRST), played(FIRST, "fedper", finished=False))
    ]


def check_commit(content: bytes) -> None:
    folder = RunFolder(get_scratch() / "commits")
    folder.commits_folder.mkdir(parents=True, exist_ok=True)
    folder.config_file.write_text(SETTINGS)
    folder.events_file.write_bytes(b"")
    (folder.commits_folder / "0000003").write_bytes(content)
    for load in (folder.restore_newest_commit, folder.load_newest_commit):
        with suppress(FolderError, CodecError):
            load({"a": 40})


@cache
def list_commits() -> list[bytes]:
    folder = RunFolder(get_scratch() / "valid")
    folder.create(SETTINGS)
    folder.memory_digests = {"a": (2, A)}
    folder.commit(Server(3, {"a": 40}, MODEL, {"control": MODEL}, Tensors()))
    folder.memory_digests = {}
    folder.commit(Server(4, {"a": 40}, MODEL, {}, Tensors()))
    folder.close()
    return [file.read_bytes() for file in sorted(folder.commits_folder.glob("0*"))]


def change_commit(draw: Random, content: bytes) -> bytes:
    """Change the headers of a commit, or the digests of client memories in it."""
    if draw.randrange(3):
        return change_blob(draw, content[:-32]) + content[-32:]
    groups, header = codec.decode_groups(content[:-32])
    names = dump(mutation.change_json(draw, ["a", "b" * 300]))
    digests = {
        "clients": torch.frombuffer(bytearray(names), dtype=torch.uint8),
        "rounds": torch.tensor([draw.choice((-1, 2, 2**62)) for _ in range(2)]),
        "sha256": torch.zeros(2, draw.choice((0, 32)), dtype=torch.uint8),
    }
    groups["client memories"] = Tensors(digests)
    return codec.encode_groups(groups, header) + content[-32:]


def seal_commit(content: bytes) -> bytes:
    return content[:-32] + hashlib.sha256(content[:-32]).digest()


def check_config(content: bytes) -> None:
    path = get_scratch() / "config.toml"
    path.write_bytes(content)
    with suppress(ConfigError, DataError):
        config = read_config(path)
        text = config.to_toml()
        path.write_text(text)
        assert read_config(path).to_toml() == text
    override = content.decode(errors="replace")[:200].strip()
    with suppress(ConfigError, DataError):
        read_config(None, [override])


def change_config(draw: Random, content: bytes) -> bytes:
    changed = mutation.change_json(draw, tomllib.loads(content.decode()))
    with suppress(TypeError, ValueError, AttributeError):  # values that TOML cannot represent
        return tomli_w.dumps(changed).encode()
    return content


# All --------------------------------------------------------------------------------------------

OVERRIDES = (b"training.lr=0.1", b"data.partition.kind='shards'", b"participation.count=2")
TARGETS: dict[str, Callable[[], Target]] = {
    "messages": lambda: Target(check_message, list_messages(), change_frame, seal_frame),
    "chunks": lambda: Target(check_chunk, list_chunks(), change_chunk, seal_chunk),
    "codec": lambda: Target(check_blob, list_blobs(), change_blob),
    "safetensors": lambda: Target(check_safetensors, list_safetensors(), change_safetensors),
    "events": lambda: Target(check_events, list_events(), change_events),
    "commits": lambda: Target(check_commit, list_commits(), change_commit, seal_commit),
    "config": lambda: Target(check_config, [SETTINGS.encode(), *OVERRIDES], change_config),
}
