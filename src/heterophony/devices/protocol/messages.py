"""Messages as bytes and back: JSON of a known form, and nothing else gets through."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, ClassVar, TypeVar

from ...core.errors import CodecError
from . import framing
from .message_fields import (
    BlobRefField,
    Boolean,
    ClientName,
    Count,
    FiniteNumber,
    Integers,
    NumberMap,
    Sha256,
    Text,
    TextMap,
    TopicName,
    integer,
    list_of,
    one_of,
    parse_record,
    record_of,
    text,
)
from .topics import PROTOCOL_VERSION

MAX_BYTES, MAX_HELLO_BYTES = 16 << 10, 256 << 10  # bytes of a message; of the one with all clients
MAX_WANTED_CHUNKS = 16  # chunks in one request


@dataclass(frozen=True)
class Message:
    """One of the kinds below."""

    max_bytes: ClassVar[int] = MAX_BYTES


@dataclass(frozen=True)
class Control(Message):
    """Server, retained: how the run stands. Memories of rounds before ``oldest`` are not needed."""

    run: TopicName
    epoch: Count  # how often the server has started
    state: Annotated[str, one_of("waiting", "playing", "ended")]
    t: Count
    rounds: Count
    oldest: Count
    config: BlobRefField


@dataclass(frozen=True)
class Status(Message):
    """Device, retained, and its last will: is it here?"""

    state: Annotated[str, one_of("here", "gone")]
    session: TopicName  # of this start of the device


@dataclass(frozen=True)
class ClientSummary:
    """A client on a device: how much data, of what kind; never the data."""

    name: ClientName
    train: Count
    test: Count
    validation: Count
    labels: Integers
    data_sha256: Sha256
    shape: Integers
    classes: Count
    type: Annotated[str, one_of("uint8", "float32", "int64")] = "uint8"  # of stored examples


@dataclass(frozen=True)
class Hello(Message):
    """Device: which clients it holds, and what it is."""

    max_bytes: ClassVar[int] = MAX_HELLO_BYTES
    session: TopicName
    epoch: Count  # of the server that is greeted
    version: Annotated[str, text(64)]  # of heterophony
    config_sha256: Sha256
    clients: Annotated[tuple[ClientSummary, ...], list_of(record_of(ClientSummary), 1024, least=1)]
    hardware: TextMap = field(default_factory=dict)
    home: Annotated[str, text(64)] = ""  # the folder where what its clients keep lies


@dataclass(frozen=True)
class Welcome(Message):
    """Server: the device takes part, with all its clients."""

    session: TopicName
    epoch: Count


@dataclass(frozen=True)
class Refused(Message):
    """Server: the device does not take part, and why."""

    session: TopicName
    epoch: Count
    why: Text


@dataclass(frozen=True)
class Task(Message):
    """Server: work for a client. The id is of the content: the same work is the same task."""

    id: Sha256
    client: ClientName
    job: Annotated[str, one_of("train", "evaluate", "join")]
    t: Count
    turn: Count
    keeps: Boolean
    tensors: BlobRefField
    average: BlobRefField
    attempt: Count  # how often it was given again; not part of the id


@dataclass(frozen=True)
class Done(Message):
    """Device: the reply to a task is there to be pulled."""

    id: Sha256
    attempt: Count
    t: Count
    reply: BlobRefField
    seconds: FiniteNumber  # of work; beside the reply, so that equal work is an equal blob


@dataclass(frozen=True)
class Want(Message):
    """Either side: these chunks of a blob, please. Pull, acknowledgement and resume in one."""

    sha256: Sha256
    chunks: Annotated[tuple[int, ...], list_of(integer(0, 1 << 32), MAX_WANTED_CHUNKS, least=1)]


@dataclass(frozen=True)
class Taken(Message):
    """Server: the reply has arrived and is good; no need to announce it any more."""

    id: Sha256


@dataclass(frozen=True)
class Rejected(Message):
    """Server: the reply is not taken, and why; the device drops it."""

    id: Sha256
    attempt: Count
    why: Text


@dataclass(frozen=True)
class Failed(Message):
    """Device: the task could not be done, and why; could it be, if tried again?"""

    id: Sha256
    attempt: Count
    why: Text
    again: Boolean


@dataclass(frozen=True)
class Metrics(Message):
    """Device: numbers to be shown live; they influence nothing."""

    values: NumberMap


FROM_SERVER = (Welcome, Refused, Task, Want, Taken, Rejected)
FROM_DEVICE = (Hello, Done, Want, Failed, Metrics)
M = TypeVar("M", bound=Message)


def encode_message(message: Message) -> bytes:
    """A sealed object; what ``decode`` would refuse is refused here already."""
    cls = type(message)
    content = {"v": PROTOCOL_VERSION, "kind": cls.__name__.lower(), **asdict(message)}
    payload = framing.encode_frame(content)
    decode_message(payload, cls)
    return payload


def decode_message(payload: bytes, *kinds: type[M]) -> M:
    """A message of one of these kinds, whole and in range."""
    if len(payload) > max(k.max_bytes for k in kinds):
        raise CodecError(f"a message of {len(payload)} bytes is too long")
    content = framing.decode_frame(payload)
    version = content.pop("v", None)
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise CodecError(f"a message is not of version {PROTOCOL_VERSION} of the protocol")
    kind = content.pop("kind", None)
    for cls in kinds:
        if kind == cls.__name__.lower() and len(payload) <= cls.max_bytes:
            return parse_record(cls, content, f"a {kind} message")
    raise CodecError(f"a message of kind {str(kind)[:40]!r} is not expected here, or too long")
