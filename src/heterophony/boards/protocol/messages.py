"""The messages of the protocol: their fields and their encoding.

A frame has two lines: canonical JSON and its crc32, because a network without TLS may alter a digit.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

from ...core.errors import CodecError
from ...core.files import NAME_PATTERN
from .message_fields import (
    Boolean,
    ClientName,
    Count,
    FiniteNumber,
    Integers,
    JobKind,
    NumberMap,
    OptionalSha256,
    Seconds,
    Sha256,
    Text,
    TextMap,
    TopicName,
    make_choice_rule,
    make_integer_rule,
    make_list_rule,
    make_record_rule,
    make_text_rule,
    parse_record,
)
from .topics import PROTOCOL_VERSION, Publication

MAX_RUN_BYTES = 64  # longest name of a run


def encode_frame(content: Mapping[str, Any]) -> bytes:
    """Encode an object as a frame; equal objects give equal bytes."""
    return add_checksum(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def add_checksum(text: bytes) -> bytes:
    """Append the second line of a frame: the crc32 of the first."""
    return b"%s\n%08x" % (text, zlib.crc32(text))


def decode_frame(payload: bytes) -> dict[str, Any]:
    """Decode the object in a frame; raise CodecError if the frame is damaged."""
    text = payload[:-9]
    if add_checksum(text) != payload:
        raise CodecError("a message was damaged in transit")
    try:
        content = json.loads(text, object_pairs_hook=reject_duplicate_keys)
    except (ValueError, RecursionError):
        raise CodecError("a message is not JSON") from None
    if not isinstance(content, dict):
        raise CodecError("a message is not a JSON object")
    return content


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a decoded JSON object; raise ValueError if a key occurs twice."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key occurs twice")
    return content


def add_run(run: str, payload: bytes) -> bytes:
    """Prefix a payload with the name of its run; all messages on a board's topics have this prefix."""
    return run.encode() + b"\n" + payload


def split_run(payload: bytes) -> tuple[str, bytes]:
    """Split a payload into the name of its run and the rest; raise CodecError if there is no name."""
    end = payload.find(b"\n", 0, MAX_RUN_BYTES + 1)
    run = payload[: max(end, 0)].decode("latin-1")
    if not NAME_PATTERN.fullmatch(run):
        raise CodecError("a message does not begin with the name of a run")
    return run, payload[end + 1 :]


# longest message, and longest Hello, which lists clients
MAX_BYTES, MAX_HELLO_BYTES = 16 << 10, 256 << 10
MAX_WANTED_CHUNKS = 16  # in one request
RUN_STATES = ("waiting", "running", "ended")  # in the order in which a server enters them


# Records within messages and replies --------------------------------------------------------
@dataclass(frozen=True)
class BlobRef:
    """The sha256 and size of a blob, by which the other side requests its chunks."""

    sha256: Sha256
    size: Annotated[int, make_integer_rule(1, 1 << 40)]

    @staticmethod
    def from_bytes(content: bytes) -> BlobRef:
        """Return the reference to a blob with this content."""
        return BlobRef(hashlib.sha256(content).hexdigest(), len(content))


BlobRefField = Annotated[BlobRef, make_record_rule(BlobRef)]


@dataclass(frozen=True)
class ClientSummary:
    """The size and format of the data of a client on a board, without the data."""

    name: ClientName
    train: Count
    test: Count
    validation: Count
    labels: Integers  # training examples of each class
    data_sha256: Sha256
    shape: Integers
    classes: Count
    # type of the stored examples
    type: Annotated[str, make_choice_rule("uint8", "float32", "int64", "int32")] = "uint8"
    record: Annotated[str, make_text_rule(4096)] = ""  # the arrays of packed examples, as JSON


@dataclass(frozen=True)
class ReplyHeader:
    """Everything in a reply except its tensors."""

    client: ClientName
    kind: JobKind
    samples: Count
    weight: FiniteNumber
    metrics: NumberMap
    turn: Count
    examples: Count
    kept: OptionalSha256


# Messages -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Message:
    """Base class of all protocol messages."""

    max_bytes: ClassVar[int] = MAX_BYTES


@dataclass(frozen=True)
class Control(Message):
    """From the server, retained: the state of the run.

    Memories of rounds before ``oldest`` are no longer needed. ``given`` is the checkpoint that the
    run starts from, if there is one.
    """

    run: TopicName
    run_id: TopicName  # random: a new run with the same name has a different one
    start: Count  # how often the server has started
    state: Annotated[str, make_choice_rule(*RUN_STATES)]
    t: Count
    rounds: Count
    oldest: Count
    config: BlobRefField
    given: Annotated[
        tuple[BlobRef, ...], make_list_rule(make_record_rule(BlobRef), 1)
    ] = ()  # initial weights


@dataclass(frozen=True)
class Status(Message):
    """From a board, retained, and also its last will: whether the board is connected."""

    state: Annotated[str, make_choice_rule("here", "gone")]
    session: TopicName  # changes with each start of the board


@dataclass(frozen=True)
class Hello(Message):
    """From a board: its clients, its version of heterophony and its hardware."""

    max_bytes: ClassVar[int] = MAX_HELLO_BYTES
    session: TopicName
    start: Count  # number of the server's start that the Hello is meant for
    version: Annotated[str, make_text_rule(64)]  # version of heterophony
    config_sha256: Sha256
    clients: Annotated[
        tuple[ClientSummary, ...],
        make_list_rule(make_record_rule(ClientSummary), 1024, min_length=1),
    ]
    hardware: TextMap = field(default_factory=dict)
    folder_id: Annotated[str, make_text_rule(64)] = (
        ""  # id of the folder with the clients' memories
    )


@dataclass(frozen=True)
class Welcome(Message):
    """From the server: the board takes part with all its clients."""

    session: TopicName
    start: Count


@dataclass(frozen=True)
class Refused(Message):
    """From the server: the board may not take part, with the reason."""

    session: TopicName
    start: Count
    why: Text


@dataclass(frozen=True)
class Assigned(Message):
    """From the server: a job for a client. The id is a digest of the content; equal jobs have equal ids."""

    id: Sha256
    client: ClientName
    job: JobKind
    t: Count
    turn: Count
    keeps: Boolean
    tensors: BlobRefField
    average: BlobRefField
    attempt: Count  # how often it was assigned again; not part of the id


@dataclass(frozen=True)
class Done(Message):
    """From a board: the reply to a job is ready to be pulled."""

    id: Sha256
    attempt: Count
    t: Count
    reply: BlobRefField
    seconds: Seconds  # duration of the job; not in the reply, so that equal work gives equal blobs


@dataclass(frozen=True)
class Want(Message):
    """From either side: the request for chunks of a blob, which also acknowledges earlier chunks."""

    sha256: Sha256
    chunks: Annotated[
        tuple[int, ...],
        make_list_rule(make_integer_rule(0, 1 << 32), MAX_WANTED_CHUNKS, min_length=1),
    ]


@dataclass(frozen=True)
class Taken(Message):
    """From the server: the reply arrived and is valid; the board need not announce it again."""

    id: Sha256


@dataclass(frozen=True)
class Rejected(Message):
    """From the server: the reply is rejected, with the reason; the board deletes the reply."""

    id: Sha256
    attempt: Count
    why: Text


@dataclass(frozen=True)
class Failed(Message):
    """From a board: the job failed, with the reason; ``again`` is true if another attempt can help."""

    id: Sha256
    attempt: Count
    why: Text
    again: Boolean


@dataclass(frozen=True)
class Metrics(Message):
    """From a board: its measurements, to be displayed; they do not influence the run."""

    values: NumberMap


FROM_SERVER = (Welcome, Refused, Assigned, Want, Taken, Rejected)
FROM_BOARD = (Hello, Done, Want, Failed, Metrics)
M = TypeVar("M", bound=Message)


def make_publications(run: str, topic: str, items: Iterable[Message | bytes]) -> list[Publication]:
    """Wrap a run's messages for a board's topic; bytes are encoded chunks, for the topic below it."""
    return [
        Publication(f"{topic}/chunk", add_run(run, item))
        if isinstance(item, bytes)
        else Publication(topic, add_run(run, encode_message(item)))
        for item in items
    ]


def encode_message(message: Message) -> bytes:
    """Encode a message; raise CodecError if ``decode_message`` would refuse it."""
    cls = type(message)
    content = {"v": PROTOCOL_VERSION, "kind": cls.__name__.lower(), **asdict(message)}
    payload = encode_frame(content)
    decode_message(payload, cls)
    return payload


def decode_message(payload: bytes, *kinds: type[M]) -> M:
    """Decode a valid message of one of these kinds; raise CodecError for anything else."""
    if len(payload) > max(k.max_bytes for k in kinds):
        raise CodecError(f"a message of {len(payload)} bytes is too long")
    content = decode_frame(payload)
    version = content.pop("v", None)
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise CodecError(f"a message is not of version {PROTOCOL_VERSION} of the protocol")
    kind = content.pop("kind", None)
    for cls in kinds:
        if kind == cls.__name__.lower() and len(payload) <= cls.max_bytes:
            return parse_record(cls, content, f"a {kind} message")
    raise CodecError(f"a message of kind {str(kind)[:40]!r} is not expected here, or too long")
