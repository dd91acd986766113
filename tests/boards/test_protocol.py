"""Bytes and messages: what is sent comes back, and nothing else gets through (P4)."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heterophony
from heterophony.boards.broker import process as mosquitto
from heterophony.boards.protocol import blobs as chunks
from heterophony.boards.protocol import job_codec, topics
from heterophony.boards.protocol import messages as framing
from heterophony.boards.protocol.blobs import (
    CHUNK_BYTES,
    Chunk,
    IncomingBlob,
    OutgoingBlob,
    ResendTimer,
)
from heterophony.boards.protocol.message_fields import to_single_line
from heterophony.boards.protocol.messages import (
    FROM_BOARD,
    FROM_SERVER,
    MAX_BYTES,
    MAX_HELLO_BYTES,
    MAX_WANTED_CHUNKS,
    Assigned,
    BlobRef,
    ClientSummary,
    Control,
    Done,
    Failed,
    Hello,
    Metrics,
    Refused,
    Rejected,
    Status,
    Taken,
    Want,
    Welcome,
    decode_message,
    encode_message,
)
from heterophony.core import codec
from heterophony.core.algorithm import Reply
from heterophony.core.errors import CodecError, ConfigError
from heterophony.core.tensors import Tensors
from heterophony.jobs.plan import Job

A, B = "ab" * 32, "cd" * 32
MODEL = Tensors({"base.w": torch.arange(12.0).reshape(3, 4), "head.b": torch.tensor([1, 2])})
JOB = Job(kind="train", t=3, client="a", tensors=MODEL, turn=1, keeps_memory=False)
DOWN = codec.encode_blob(MODEL)
EMPTY = codec.encode_blob(Tensors())
ASSIGNED = job_codec.make_assigned("run", JOB, BlobRef.from_bytes(DOWN), BlobRef.from_bytes(EMPTY))
REPLY = Reply("a", "train", MODEL, 40, 40, {"loss/own": 0.25, "P_local": 3, "seconds": 1.5},
              Tensors({"head.w": torch.ones(2)}), 1, 80, A)  # fmt: skip
UP = job_codec.encode_reply(REPLY)
HELLO = Hello(
    "s1",
    2,
    "0.1.0",
    A,
    (ClientSummary("client 0", 40, 10, 0, (4, 36), B, (1, 8, 8), 2),),
    {"cpu": "arm"},
)
ALL = [
    Control("run", "id", 2, "running", 3, 10, 1, BlobRef(A, 300)),
    Status("here", "s1"),
    HELLO,
    Welcome("s1", 2),
    Refused("s1", 2, "client 'a' is held by board 'pi-1'"),
    ASSIGNED,
    Done(A, 0, 3, BlobRef(B, 10), 1.5),
    Want(A, (0, 5)),
    Taken(A),
    Rejected(A, 0, "tensor 'w' holds NaN"),
    Failed(A, 0, "the disk is full", True),
    Metrics({"progress": 0.5, "rss": 200}),
]
KINDS = sorted({type(m) for m in ALL}, key=lambda k: k.__name__)

# Topics -------------------------------------------------------------------------------------

names = st.text("aZ09._-", min_size=1, max_size=64).filter(lambda s: s[0] != ".")


@settings(derandomize=True, deadline=None, max_examples=50)
@given(names, names, st.sampled_from(sorted(topics.CHANNELS)))
def test_a_topic_says_run_or_board_and_channel(run, board, channel):
    assert topics.parse_topic(topics.make_board_topic(board, channel)) == ("", board, channel)
    assert topics.parse_topic(topics.make_control_topic(run)) == (run, "", "ctl")


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "+", "#", "$", "a b", "ä", "x" * 65])
def test_a_name_that_could_be_another_topic_is_no_name(name):
    with pytest.raises(ConfigError, match="cannot be a name"):
        topics.make_board_topic(name, "up")
    with pytest.raises(ConfigError, match="cannot be a name"):
        topics.make_control_topic(name)
    with pytest.raises(CodecError):
        topics.parse_topic(f"het/3/b/{name}/up")


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text(max_size=40) | st.text("het/3dup.cl+#r", max_size=30).map(lambda s: "het/3/" + s))
def test_any_other_topic_is_refused_or_comes_back_as_it_was(topic):
    with suppress(CodecError):
        run, board, channel = topics.parse_topic(topic)
        again = topics.make_board_topic(board, channel) if board else topics.make_control_topic(run)
        assert again == topic


def test_a_board_subscribes_to_its_own_topics_and_the_control_alone():
    assert topics.list_board_subscriptions("r", "pi") == ["het/3/r/r/ctl", "het/3/b/pi/down/#"]
    assert topics.list_server_subscriptions() == [
        "het/3/b/+/status",
        "het/3/b/+/up",
        "het/3/b/+/up/chunk",
    ]


def test_the_brokers_rights_follow_the_version_of_the_topics():
    """A new version of the protocol has other topics; the access list must grant those."""
    rights = [line.split()[-1] for line in mosquitto.format_acl([]).splitlines() if "het/" in line]
    assert len(rights) == 2 + len(topics.list_board_rights("%u"))
    assert all(topic.startswith(f"{topics.TOPIC_ROOT}/") for topic in rights)
    assert topics.make_board_topic("pi", "up").startswith(f"{topics.TOPIC_ROOT}/")


@pytest.mark.parametrize("literal", [r'"het/', r"[A-Za-z0-9._-]", r"{0,63}"])
def test_the_topic_root_and_the_pattern_of_names_are_written_once(literal):
    source = Path(heterophony.__file__).parent
    assert sum(path.read_text().count(literal) for path in source.rglob("*.py")) <= 1


# Messages -----------------------------------------------------------------------------------


def test_every_kind_comes_back_as_it_was_and_has_one_form():
    for message in ALL:
        payload = encode_message(message)
        assert decode_message(payload, *KINDS) == message
        assert encode_message(decode_message(payload, *KINDS)) == payload
        assert len(payload) < 1000


counts = st.integers(0, 1 << 53)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
lines = st.text(max_size=300).filter(str.isprintable)
blobs = st.builds(BlobRef, digests, st.integers(1, 1 << 40))
kinds = st.one_of(
    st.builds(
        Control, names, names, counts, st.sampled_from(["waiting", "running", "ended"]), counts, counts,
        counts, blobs,
    ),
    st.builds(Status, st.sampled_from(["here", "gone"]), names),
    st.builds(
        Assigned, digests, lines.filter(lambda s: len(s) < 256), st.sampled_from(["train", "join"]),
        counts, counts, st.booleans(), blobs, blobs, counts,
    ),
    st.builds(Done, digests, counts, counts, blobs, st.floats(0, 1e9)),
    st.builds(Want, digests, st.lists(st.integers(0, 1 << 32), min_size=1, max_size=MAX_WANTED_CHUNKS).map(tuple)),
    st.builds(Failed, digests, counts, lines, st.booleans()),
    st.builds(
        Metrics,
        st.dictionaries(st.text("az_./ ", min_size=1, max_size=20), st.floats(-9, 9), max_size=9),
    ),
)  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=150)
@given(kinds)
def test_any_message_comes_back(message):
    assert decode_message(encode_message(message), *KINDS) == message


def test_every_flipped_byte_of_every_message_is_refused():
    for message in ALL:
        payload = encode_message(message)
        for mask in (0x01, 0x20, 0x80):
            for i in range(len(payload)):
                with pytest.raises(CodecError):
                    decode_message(
                        payload[:i] + bytes([payload[i] ^ mask]) + payload[i + 1 :], *KINDS
                    )
        for n in range(len(payload)):
            with pytest.raises(CodecError):
                decode_message(payload[:n], *KINDS)


def test_a_message_is_only_understood_from_whom_it_may_come():
    for message in ALL:
        for expected in (FROM_SERVER, FROM_BOARD, (Control,), (Status,)):
            if not isinstance(message, expected):
                with pytest.raises(CodecError, match="not expected here"):
                    decode_message(encode_message(message), *expected)


def told(message, **changes) -> bytes:
    """The message with some fields replaced, sealed rightly."""
    content = {"v": 3, "kind": type(message).__name__.lower(), **asdict(message), **changes}
    return framing.encode_frame({k: v for k, v in content.items() if v is not ...})


WRONG = [
    (ASSIGNED, {"v": 2}, "version 3"),
    (ASSIGNED, {"v": True}, "version 3"),
    (ASSIGNED, {"v": ...}, "version 3"),
    (ASSIGNED, {"kind": "assignedd"}, "not expected"),
    (ASSIGNED, {"kind": ["assigned"]}, "not expected"),
    (ASSIGNED, {"extra": 1}, "exactly the fields"),
    (ASSIGNED, {"turn": ...}, "exactly the fields"),
    (ASSIGNED, {"t": -1}, "'t' is not a whole number"),
    (ASSIGNED, {"t": 1.0}, "'t' is not a whole number"),
    (ASSIGNED, {"t": True}, "'t' is not a whole number"),
    (ASSIGNED, {"t": 1 << 60}, "'t' is not a whole number"),
    (ASSIGNED, {"keeps": 1}, "'keeps' is not true or false"),
    (ASSIGNED, {"job": "exec"}, "'job' is not one of"),
    (ASSIGNED, {"id": A.upper()}, "'id' is not a sha256"),
    (ASSIGNED, {"id": A + "\n"}, "'id' is not a sha256"),
    (ASSIGNED, {"tensors": {"sha256": A, "size": 0}}, "'tensors' 'size' is not a whole number"),
    (ASSIGNED, {"tensors": {"sha256": A, "size": 1 << 50}}, "'size' is not a whole number"),
    (ASSIGNED, {"tensors": [A, 3]}, "exactly the fields"),
    (ASSIGNED, {"client": "x" * 257}, "'client' is not a line"),
    (ASSIGNED, {"client": "a\x1b[2J"}, "'client' is not a line"),
    (ASSIGNED, {"client": "\ud800"}, "'client' is not a line"),
    (HELLO, {"clients": []}, "'clients' is not a list"),
    (HELLO, {"clients": [1]}, "exactly the fields"),
    (HELLO, {"hardware": {"a" * 129: "x"}}, "not a name of a fact"),
    (HELLO, {"hardware": {"a": 1}}, "not a line"),
    (ALL[7], {"chunks": list(range(MAX_WANTED_CHUNKS + 1))}, "'chunks' is not a list"),
    (ALL[7], {"chunks": [-1]}, "not a whole number"),
    (ALL[11], {"values": {"x": float("nan")}}, "not a finite number"),
    (ALL[11], {"values": {"x": float("inf")}}, "not a finite number"),
    (ALL[11], {"values": {"x": 10**400}}, "not a finite number"),
    (ALL[11], {"values": {"x": "1"}}, "not a finite number"),
    (ALL[11], {"values": {f"x{i}": 0 for i in range(300)}}, "at most 256"),
]


@pytest.mark.parametrize(("message", "changes", "words"), WRONG)
def test_a_field_that_is_missing_foreign_or_out_of_range_is_refused(message, changes, words):
    with pytest.raises(CodecError, match=words):
        decode_message(told(message, **changes), *KINDS)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b"3", b"{", b"\xff\xfe{}", b"[" * 8000, b'{"a":' * 2000, b"1" * 9999,
     b'{"v":3,"v":3,"kind":"taken","id":"%s"}' % A.encode()],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(CodecError, match=r"not JSON|not a JSON object"):
        decode_message(framing.add_checksum(text), *KINDS)


def test_a_message_that_is_too_long_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(framing, "decode_frame", lambda _: pytest.fail("read"))
    with pytest.raises(CodecError, match="too long"):
        decode_message(b"x" * (MAX_BYTES + 1), Assigned, Done)
    with pytest.raises(CodecError, match="too long"):
        decode_message(b"x" * (MAX_HELLO_BYTES + 1), *KINDS)


@pytest.mark.parametrize("seconds", [-1.0, 1e300])
def test_the_seconds_of_a_job_are_bounded(seconds):
    with pytest.raises(CodecError, match="'seconds' is not a number of seconds"):
        encode_message(Done(A, 0, 3, BlobRef(B, 10), seconds))


def test_only_a_greeting_may_be_long():
    many = replace(HELLO, clients=HELLO.clients * 900)
    assert MAX_BYTES < len(encode_message(many)) <= MAX_HELLO_BYTES
    assert decode_message(encode_message(many), *FROM_BOARD) == many
    with pytest.raises(CodecError, match="too long"):
        encode_message(replace(many, hardware={str(i): "y" * 200 for i in range(32)},
                       clients=tuple(replace(c, name="x" * 250) for c in many.clients)))  # fmt: skip
    padded = framing.add_checksum(json.dumps({**asdict(ASSIGNED), "v": 3, "kind": "assigned"}).encode()
                             + b" " * MAX_BYTES)  # fmt: skip
    with pytest.raises(CodecError, match="too long"):
        decode_message(padded, *KINDS)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=10,
), st.sampled_from(ALL), st.integers(0, 20))  # fmt: skip
def test_any_json_in_any_field_is_refused_or_of_the_right_form(value, message, which):
    content = {"v": 3, "kind": type(message).__name__.lower(), **asdict(message)}
    field = sorted(content)[which % len(content)]
    with suppress(CodecError):
        found = decode_message(framing.encode_frame({**content, field: value}), *KINDS)
        assert decode_message(encode_message(found), *KINDS) == found


def test_words_become_a_line():
    assert to_single_line("a\nb\x1b[2J\ud800") == "a b [2J "
    assert len(to_single_line("x" * 5000)) == 1000


# Chunks -------------------------------------------------------------------------------------


def pulled(content: bytes, order=lambda chunks: chunks) -> tuple[bytes, int]:
    """The content after its way in chunks, and all bytes that it took."""
    out, into, spent = (
        OutgoingBlob.from_bytes(content),
        IncomingBlob(BlobRef.from_bytes(content), len(content), 0.0),
        0,
    )
    while (whole := into.assemble()) is None:
        (want,) = into.request_next()
        answer = order(out.encode_wanted_chunks(decode_message(encode_message(want), Want)))
        spent += len(encode_message(want)) + sum(map(len, answer))
        for payload in answer:
            into.add_chunk(chunks.decode_chunk(payload), 0.0)
    return whole, spent


@pytest.mark.parametrize(
    "size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 20 * CHUNK_BYTES + 7]
)
def test_a_blob_comes_through_in_any_order_and_repeated(size):
    content = bytes(range(251)) * (size // 251 + 1)
    content = content[:size]
    for order in (list, lambda c: c[::-1], lambda c: c + c[::2]):
        assert pulled(content, order)[0] == content


def test_chunks_and_requests_for_a_megabyte_cost_less_than_2_percent():
    _, spent = pulled(b"x" * 1_000_000)
    assert 1_000_000 < spent < 1_002_000


def test_at_most_a_window_is_on_its_way_and_what_was_lost_is_asked_for_again():
    into = IncomingBlob(BlobRef(A, 100 * CHUNK_BYTES), 100 * CHUNK_BYTES, 0.0)
    assert into.request_next() == [Want(A, tuple(range(MAX_WANTED_CHUNKS)))]
    assert into.request_next() == []
    for i in range(MAX_WANTED_CHUNKS // 2):
        assert into.add_chunk(Chunk(A, i, bytes(CHUNK_BYTES)), 0.0)
    lost = range(MAX_WANTED_CHUNKS // 2, MAX_WANTED_CHUNKS)
    assert into.repeat_request() == [Want(A, tuple(lost))]
    new = range(MAX_WANTED_CHUNKS, MAX_WANTED_CHUNKS + MAX_WANTED_CHUNKS // 2)
    assert into.request_next() == [Want(A, tuple(new))]


def test_every_flipped_byte_of_a_chunk_is_refused():
    payload = chunks.encode_chunk(Chunk(A, 3, bytes(range(100))))
    assert chunks.decode_chunk(payload) == Chunk(A, 3, bytes(range(100)))
    for i in range(len(payload)):
        for mask in (0x01, 0x80):
            with pytest.raises(CodecError):
                chunks.decode_chunk(payload[:i] + bytes([payload[i] ^ mask]) + payload[i + 1 :])
    for n in range(len(payload)):
        with pytest.raises(CodecError):
            chunks.decode_chunk(payload[:n])


def test_a_chunk_of_the_wrong_blob_index_or_length_is_not_taken():
    into = IncomingBlob(BlobRef(A, CHUNK_BYTES + 5), 1 << 20, 0.0)
    assert into.request_next() == [Want(A, (0, 1))]
    assert not into.add_chunk(Chunk(B, 0, bytes(CHUNK_BYTES)), 0.0)
    assert not into.add_chunk(Chunk(A, 2, bytes(CHUNK_BYTES)), 0.0)
    for index, size in ((0, CHUNK_BYTES - 1), (1, CHUNK_BYTES), (1, 4), (1, 6)):
        with pytest.raises(CodecError, match="wrong size"):
            into.add_chunk(Chunk(A, index, bytes(size)), 0.0)
    with pytest.raises(CodecError, match="too long"):
        chunks.decode_chunk(chunks.encode_chunk(Chunk(A, 0, bytes(CHUNK_BYTES + 1))))
    assert into.received == {}


def test_a_chunk_that_does_not_exist_is_not_sent():
    with pytest.raises(CodecError, match="chunk 2 was requested, but the blob has 2"):
        OutgoingBlob.from_bytes(bytes(CHUNK_BYTES + 1)).encode_wanted_chunks(Want(A, (0, 2)))


def test_a_whole_that_is_not_what_its_name_says_begins_anew():
    content = b"right"
    into = IncomingBlob(BlobRef.from_bytes(content), 100, 0.0)
    into.request_next()
    assert into.add_chunk(Chunk(into.blob.sha256, 0, b"wrong"), 0.0)
    assert into.assemble() is None
    assert into.digest_failures == 1
    assert into.request_next() == [Want(into.blob.sha256, (0,))]
    assert into.add_chunk(Chunk(into.blob.sha256, 0, b"right"), 0.0)
    assert into.assemble() == content


def test_a_claimed_size_costs_no_memory():
    with pytest.raises(CodecError, match="over the limit of 1000"):
        IncomingBlob(BlobRef(A, 1001), 1000, 0.0)
    tracemalloc.start()
    IncomingBlob(BlobRef(A, 1 << 40), 1 << 40, 0.0).request_next()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


# Jobs and replies ---------------------------------------------------------------------------


def same(a: Tensors, b: Tensors) -> bool:
    return a.digest() == b.digest()


def test_a_job_comes_back_and_its_message_is_named_by_its_content():
    job = job_codec.make_job(decode_message(encode_message(ASSIGNED), Assigned), MODEL, Tensors())
    assert same(job.tensors, JOB.tensors)
    assert same(job.generic_model, Tensors())
    assert (job.kind, job.t, job.client, job.turn, job.keeps_memory) == ("train", 3, "a", 1, False)
    assert (
        job_codec.make_assigned("run", JOB, BlobRef.from_bytes(DOWN), BlobRef.from_bytes(EMPTY))
        == ASSIGNED
    )
    others = [replace(JOB, **c) for c in ({"t": 4}, {"client": "b"}, {"turn": 0}, {"keeps_memory": True},
                                          {"kind": "evaluate"})]  # fmt: skip
    ids = {
        job_codec.make_assigned("run", j, BlobRef.from_bytes(DOWN), BlobRef.from_bytes(EMPTY)).id
        for j in others
    }
    ids |= {
        job_codec.make_assigned(
            "other", JOB, BlobRef.from_bytes(DOWN), BlobRef.from_bytes(EMPTY)
        ).id
    }
    ids |= {
        job_codec.make_assigned("run", JOB, BlobRef.from_bytes(EMPTY), BlobRef.from_bytes(EMPTY)).id
    }
    assert len(ids | {ASSIGNED.id}) == 8


def test_a_reply_comes_back_with_the_seconds_that_travel_beside_it():
    found = job_codec.decode_reply(UP, ASSIGNED, 1.5)
    assert same(found.tensors, REPLY.tensors)
    assert found.aside == Tensors()
    assert dict(found.metrics) == REPLY.metrics
    assert type(found.metrics["P_local"]) is int
    plain = [replace(r, tensors=Tensors(), aside=Tensors()) for r in (found, REPLY)]
    assert plain[0] == plain[1]
    slow = replace(REPLY, metrics={**REPLY.metrics, "seconds": 99.0})
    assert job_codec.encode_reply(slow) == UP


def forged(tensors=MODEL, **changes) -> bytes:
    header = {k: v for k, v in vars(REPLY).items() if k not in ("tensors", "aside")}
    header = {**header, "metrics": {"P": 1}, **changes}
    header = {k: v for k, v in header.items() if v is not ...}
    return codec.encode_blob(tensors, header)


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (forged(client="b"), "does not belong to the job"),
        (forged(turn=0), "does not belong to the job"),
        (forged(kind="evaluate"), "does not belong to the job"),
        (forged(samples=-1), "'samples' is not a whole number"),
        (forged(samples=2.5), "'samples' is not a whole number"),
        (forged(weight="1"), "'weight' is not a finite number"),
        (forged(weight=float("nan")), "'weight' is not a finite number"),
        (forged(metrics={"P": float("inf")}), "not a finite number"),
        (forged(metrics={"P": [1]}), "not a finite number"),
        (forged(metrics={"<b>": 1}), "not a name of a fact or number"),
        (forged(metrics={f"{i}": 1 for i in range(257)}), "at most 256"),
        (forged(kept="x"), "'kept' is not a sha256"),
        (forged(kept=...), "exactly the fields"),
        (forged(more=1), "exactly the fields"),
        (forged(Tensors({"w": torch.tensor([float("nan")])})), "NaN"),
        (codec.encode_groups({"up": MODEL}), "exactly the fields"),
        (b"", "not from heterophony"),
    ],
)
def test_a_reply_of_another_form_is_refused(blob, words):
    with pytest.raises(CodecError, match=words):
        job_codec.decode_reply(blob, ASSIGNED, 1.0)


def test_what_stays_on_the_board_does_not_travel_even_to_be_measured():
    assert "own.head" not in MODEL
    personal = Tensors({"own.head": torch.tensor([3.14159, 2.71828])})
    up = job_codec.encode_reply(replace(REPLY, aside=personal))
    assert up == job_codec.encode_reply(replace(REPLY, aside=Tensors()))
    assert b"own.head" not in up


def test_what_may_be_measured_travels_aside_and_apart_from_what_is_learnt_from():
    personal = Tensors({"own.head": torch.tensor([3.14159, 2.71828])})
    reply = job_codec.decode_reply(
        job_codec.encode_reply(replace(REPLY, aside=personal), share_personal=True), ASSIGNED, 1.0
    )
    assert torch.equal(reply.aside["own.head"], personal["own.head"])
    assert reply.tensors.keys() == REPLY.tensors.keys()
    assert reply.aside.keys() == personal.keys()


def test_a_reply_with_odd_numbers_is_not_sent():
    with pytest.raises(CodecError, match="not a finite number"):
        job_codec.encode_reply(replace(REPLY, metrics={"loss/own": float("nan")}))


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_of_a_job_or_reply_is_refused_or_keeps_the_form(mask):
    for blob, read in ((UP, lambda b: job_codec.decode_reply(b, ASSIGNED, 1.0)),
                       (DOWN, lambda b: codec.decode_blob(b, finite=False))):  # fmt: skip
        for i in range(len(blob)):
            with suppress(CodecError):
                read(blob[:i] + bytes([blob[i] ^ mask]) + blob[i + 1 :])


# Patience -----------------------------------------------------------------------------------


def test_silence_is_answered_ever_more_slowly_and_at_least_once_a_minute():
    timer = ResendTimer(0.0)
    assert [t for t in range(300) if timer.advance_if_due(float(t))] == [
        2,
        6,
        14,
        30,
        62,
        122,
        182,
        242,
    ]
    timer.reset(300.0)
    assert not timer.advance_if_due(301.9)
    assert timer.advance_if_due(302.0)


# No code comes from the wire ----------------------------------------------------------------

WATCHED = """
import sys, pathlib
from heterophony.core import codec
from heterophony.core.errors import CodecError
from heterophony.boards.protocol import blobs, job_codec, messages, topics
from heterophony.boards.protocol.messages import Assigned, Control, Status

payloads = eval(pathlib.Path(sys.argv[1]).read_text())  # our own test's list of bytes
assigned = messages.decode_message(payloads[0], Assigned)
every = (*messages.FROM_SERVER, *messages.FROM_BOARD, Control, Status)

def attempt(payload):
    for f in (lambda: messages.decode_message(payload, *every), lambda: blobs.decode_chunk(payload),
              lambda: job_codec.decode_reply(payload, assigned, 1.0),
              lambda: codec.decode_blob(payload, finite=False),
              lambda: topics.parse_topic(payload.decode("latin1"))):
        try:
            f()
        except CodecError:
            pass

for payload in payloads[:20]:  # imports on first use happen before the watch begins
    attempt(payload)
seen, watching = set(), True
BAD = ("pickle.", "exec", "compile", "import", "marshal.", "socket.", "subprocess.", "os.system",
       "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "open", "ctypes.", "code.__new__")

def hook(event, args):
    if watching and event.startswith(BAD):
        seen.add(event)

sys.addaudithook(hook)
for payload in payloads:
    attempt(payload)
found = sorted(seen)
import pickle  # the control: the watch does see what it is to see
pickle.loads(pickle.dumps(len))
watching = False
print(len(payloads), found, "pickle.find_class" in seen)
"""


class Evil:
    def __reduce__(self):
        return exec, ("import socket, subprocess; subprocess.run(['true'])",)


def test_decoding_hostile_bytes_runs_loads_and_opens_nothing(tmp_path):
    evil = pickle.dumps(Evil())
    good = [encode_message(m) for m in ALL]
    good.insert(0, good.pop(ALL.index(ASSIGNED)))
    payloads = [
        *good,
        UP,
        DOWN,
        chunks.encode_chunk(Chunk(A, 0, evil)),
        evil,
        framing.add_checksum(evil),
    ]
    payloads += [told(m, **c) for m, c, _ in WRONG]
    payloads += [forged(kept=evil.hex()), codec.MAGIC + evil, UP[:40] + evil + UP[40:]]
    for blob in (UP, good[0]):
        payloads += [blob[:i] + bytes([blob[i] ^ 0x55]) + blob[i + 1 :] for i in range(len(blob))]
    listing = tmp_path / "payloads"
    listing.write_text(repr(payloads))
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(listing)], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{len(payloads)} [] True\n", done.stderr


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.binary(max_size=400))
def test_any_bytes_are_refused_by_every_decoder(payload):
    for read in (
        lambda p: decode_message(p, *KINDS),
        lambda p: decode_message(framing.add_checksum(p), *KINDS),
        chunks.decode_chunk,
        lambda p: job_codec.decode_reply(p, ASSIGNED, 1.0),
        lambda p: codec.decode_blob(p, finite=False),
    ):
        with pytest.raises(CodecError):
            read(payload)
