"""Codec: tensors decode bit for bit as encoded, and invalid bytes are refused."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from heterophony.core import codec
from heterophony.core.codec import (
    ALLOWED_DTYPES,
    BLOB_LIMIT,
    HEADER_LIMIT,
    MAGIC,
    NAME_LIMIT,
    check_same_structure,
    decode_blob,
    decode_groups,
    encode_blob,
    encode_groups,
)
from heterophony.core.errors import CodecError
from heterophony.core.tensors import Tensors, tensor_to_bytes

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
KINDS = sorted(ALLOWED_DTYPES, key=str)

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
headers = st.dictionaries(st.text(max_size=10), plain, max_size=4)


@st.composite
def tensors(draw) -> torch.Tensor:
    """Any type, any shape with up to four dimensions, zero and empty ones too, any bits."""
    kind, shape = draw(st.sampled_from(KINDS)), draw(st.lists(st.integers(0, 4), max_size=4))
    count = torch.Size(shape).numel()
    if kind is torch.bool:
        bits = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        return torch.tensor(bits, dtype=kind).reshape(shape)
    size = torch.empty(0, dtype=kind).element_size()
    blob = draw(st.binary(min_size=count * size, max_size=count * size))
    return torch.tensor(list(blob), dtype=torch.uint8).view(kind).reshape(shape)


content = st.dictionaries(names, tensors(), max_size=4).map(Tensors)


def same_bits(a: Tensors, b: Tensors) -> bool:
    return list(a) == list(b) and all(
        (a[k].dtype, a[k].shape, tensor_to_bytes(a[k]))
        == (b[k].dtype, b[k].shape, tensor_to_bytes(b[k]))
        for k in a
    )


SMALL = Tensors({"w": torch.tensor([1.0, -2.0, 0.5]), "n": torch.tensor(7)})
BLOB = encode_blob(SMALL, {"t": 3})
LIKE = SMALL.zeros()


def build(head: bytes, body: bytes, size: int | None = None, magic: bytes = MAGIC) -> bytes:
    return magic + (len(head) if size is None else size).to_bytes(4, "big") + head + body


# Round trip ---------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=80)
@given(content, headers)
def test_everything_comes_back_bit_for_bit(made, header):
    blob = encode_blob(made, header)
    found, head = decode_blob(blob, finite=False)
    check_same_structure(found, made)
    assert same_bits(found, made)
    assert head == header
    assert type(found) is Tensors


@settings(derandomize=True, deadline=None, max_examples=50)
@given(content, headers, st.randoms(use_true_random=False))
def test_equal_content_gives_equal_bytes(made, header, random):
    items, heads = list(made.items()), list(header.items())
    random.shuffle(items)
    random.shuffle(heads)
    copied = Tensors([(k, v.clone()) for k, v in items])
    assert encode_blob(copied, dict(heads)) == encode_blob(made, header)


def test_the_memory_format_is_not_seen():
    w = torch.arange(120.0).reshape(2, 3, 4, 5)
    last = w.contiguous(memory_format=torch.channels_last)
    assert encode_blob(Tensors({"w": last})) == encode_blob(Tensors({"w": w}))
    assert encode_blob(Tensors({"w": w.clone().requires_grad_()})) == encode_blob(Tensors({"w": w}))


def test_tensors_that_share_memory_are_encoded_like_those_that_do_not():
    w = torch.arange(6.0)
    shared = Tensors({"a": w, "b": w, "c": w[2:], "d": w.view(2, 3)})
    assert encode_blob(shared) == encode_blob(shared.map(torch.clone))
    assert same_bits(decode_blob(encode_blob(shared))[0], shared)


def test_what_is_decoded_can_be_written_to_and_shares_nothing():
    blob = encode_blob(SMALL)
    found, _ = decode_blob(blob)
    found["w"].zero_()
    assert same_bits(decode_blob(blob)[0], SMALL)


def test_an_empty_message_is_a_message():
    assert decode_blob(encode_blob(Tensors())) == (Tensors(), {})


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.dictionaries(st.text(max_size=6), content, max_size=3), headers)
@example({"a": Tensors({"b|c": torch.ones(1)}), "a|b": Tensors({"c": torch.zeros(1)})}, {})
@example({"": SMALL, "|": SMALL, "0|": SMALL}, {})
@example({"empty": Tensors()}, {})
def test_groups_come_back_whatever_their_names(groups, header):
    header.pop("groups", None)
    found, head = decode_groups(encode_groups(groups, header), finite=False)
    assert sorted(found) == sorted(groups)
    assert all(same_bits(found[g], groups[g]) for g in groups)
    assert head == header


# What encode itself refuses: nothing is written that cannot be read -------------------------


def test_encode_refuses_what_decode_would():
    with pytest.raises(CodecError, match="exceeds the limit"):
        encode_blob(Tensors(), {"x": "y" * HEADER_LIMIT})
    with pytest.raises(CodecError, match="exceeds the limit"):
        encode_blob(Tensors({f"{i:0500d}": torch.zeros(()) for i in range(2000)}))
    with pytest.raises(CodecError, match="not allowed"):
        encode_blob(Tensors({"n" * (NAME_LIMIT + 1): torch.zeros(1)}))
    with pytest.raises(CodecError, match=r"complex64 is not allowed"):
        encode_blob(Tensors({"c": torch.zeros(1, dtype=torch.complex64)}))


# Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "magic", [b"HET2", b"het1", b"\x80\x04\x95\x00", b"PK\x03\x04", b"\0\0\0\0"]
)
def test_bad_magic_is_refused(magic):
    with pytest.raises(CodecError, match="not from heterophony"):
        decode_blob(magic + BLOB[4:])


def test_cut_short_at_every_length_is_refused():
    for n in range(len(BLOB)):
        with pytest.raises(CodecError):
            decode_blob(BLOB[:n])


def test_bytes_too_many_are_refused():
    for extra in (b"\0", b" ", BLOB):
        with pytest.raises(CodecError):
            decode_blob(BLOB + extra)


def allowed_or_refused(blob: bytes) -> bool:
    """True if it decodes to what the caller demanded; any error but CodecError fails the test."""
    try:
        found, header = decode_blob(blob)
        check_same_structure(found, LIKE)
    except CodecError:
        return False
    assert {k: (v.dtype, v.shape) for k, v in found.items()} == {
        k: (v.dtype, v.shape) for k, v in LIKE.items()
    }
    assert all(torch.isfinite(v).all() for v in found.values())
    assert type(header) is dict
    return True


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80, 0xFF])
def test_every_flipped_byte_is_refused_or_keeps_the_promised_form(mask):
    outcomes = [
        allowed_or_refused(BLOB[:i] + bytes([BLOB[i] ^ mask]) + BLOB[i + 1 :])
        for i in range(len(BLOB))
    ]
    assert outcomes.count(False) > len(BLOB) // 2


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, len(BLOB) - 1), st.integers(0, 255)), max_size=6))
def test_several_changed_bytes_are_refused_or_keep_the_promised_form(changes):
    blob = bytearray(BLOB)
    for at, value in changes:
        blob[at] = value
    allowed_or_refused(bytes(blob))


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_behind_a_right_magic_are_refused_or_keep_the_promised_form(head, body):
    for blob in (head, MAGIC + body, build(head, body), build(b"{}", body), build(head, BLOB[16:])):
        allowed_or_refused(blob)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from(["w", "n", "__metadata__", "x"]),
        st.fixed_dictionaries(
            {},
            optional={
                "dtype": st.sampled_from(["F32", "I64", "F8_E4M3", "F4", "C64", "U64", "Q", 3]),
                "shape": st.lists(st.integers(-1, 2**63), max_size=3) | st.just("x"),
                "data_offsets": st.lists(st.integers(0, 2**64), max_size=3) | st.just({}),
            },
        )
        | plain,
        max_size=3,
    ),
    st.binary(max_size=40),
)
def test_any_inner_header_is_refused_or_keeps_the_promised_form(inner, values):
    text = json.dumps(inner).encode()
    body = len(text).to_bytes(8, "little") + text + values
    allowed_or_refused(build(b"{}", body))
    with suppress(CodecError):
        decode_blob(build(b"{}", body), finite=False)


@pytest.mark.parametrize(
    "claim", [HEADER_LIMIT + 1, 2 * HEADER_LIMIT, 2**31, 2**32 - 1], ids=lambda n: f"{n:x}"
)
def test_an_oversize_header_is_refused_before_it_is_parsed(monkeypatch, claim):
    def parse(*_):
        raise AssertionError("parsed")

    monkeypatch.setattr(codec.json, "loads", parse)
    monkeypatch.setattr(codec, "load", parse)
    body = save({})
    there = b" " * min(claim, 2 * HEADER_LIMIT)
    with pytest.raises(CodecError, match=r"limit|cut short"):
        decode_blob(build(there, body, size=claim))


@pytest.mark.parametrize("claim", [HEADER_LIMIT + 1, 2**40, 2**64 - 1], ids=lambda n: f"{n:x}")
def test_an_oversize_inner_header_is_refused_before_it_is_parsed(monkeypatch, claim):
    def parse(*_):
        raise AssertionError("parsed")

    monkeypatch.setattr(codec.json, "loads", parse)
    monkeypatch.setattr(codec, "load", parse)
    with pytest.raises(CodecError, match=f"a header of {claim} bytes exceeds the limit"):
        decode_blob(build(b"{}", claim.to_bytes(8, "little") + b" " * 100))


def test_a_header_of_exactly_the_limit_passes():
    empty = len(encode_blob(Tensors(), {"x": ""})) - len(encode_blob(Tensors()))
    filled = {"x": "y" * (HEADER_LIMIT - empty - len("{}"))}
    assert decode_blob(encode_blob(Tensors(), filled))[1] == filled


def test_more_bytes_than_the_limit_are_refused_before_anything_else(monkeypatch):
    assert BLOB_LIMIT == 4 * 2**30
    monkeypatch.setattr(codec, "BLOB_LIMIT", len(BLOB))
    assert decode_blob(BLOB)[1] == {"t": 3}
    monkeypatch.setattr(codec, "BLOB_LIMIT", len(BLOB) - 1)
    monkeypatch.setattr(codec.json, "loads", lambda *_: pytest.fail("parsed"))
    with pytest.raises(CodecError, match=f"{len(BLOB)} bytes exceed the limit of {len(BLOB) - 1}"):
        decode_blob(BLOB)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_nan_and_infinity_are_refused_where_finite_is_asked_for(value, kind):
    blob = encode_blob(Tensors({"w": torch.tensor([0.0, value, 0.0], dtype=kind)}))
    with pytest.raises(CodecError, match="'w' holds NaN or infinity"):
        decode_blob(blob)
    found, _ = decode_blob(blob, finite=False)
    assert not torch.isfinite(found["w"][1])


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (SMALL.without("n"), "'n' is missing"),
        (SMALL | {"x": torch.zeros(1)}, "'x' is not expected"),
        (SMALL.without("n") | {"N": SMALL["n"]}, "'N' is not expected"),
        (SMALL | {"w": torch.zeros(4)}, "'w' is .*float32 \\(4,\\), expected .*float32 \\(3,\\)"),
        (SMALL | {"w": torch.zeros(1, 3)}, "'w' is .*\\(1, 3\\), expected .*\\(3,\\)"),
        (SMALL | {"n": torch.tensor([7])}, "'n' is .*int64 \\(1,\\), expected .*int64 \\(\\)"),
        (SMALL | {"w": SMALL["w"].double()}, "'w' is torch.float64 .*expected torch.float32"),
        (SMALL | {"n": SMALL["n"].int()}, "'n' is torch.int32 .*expected torch.int64"),
        (Tensors(), "is missing"),
    ],
    ids=["missing", "more", "renamed", "size", "dims", "scalar", "float", "int", "nothing"],
)
def test_anything_but_the_demanded_tensors_is_refused(sent, words):
    with pytest.raises(CodecError, match=words):
        check_same_structure(decode_blob(encode_blob(sent))[0], LIKE)


@pytest.mark.parametrize("head", [b"[]", b"3", b'"x"', b"null", b"true"])
def test_a_header_that_is_no_object_is_refused(head):
    with pytest.raises(CodecError, match="not a JSON object"):
        decode_blob(build(head, save({})))


@pytest.mark.parametrize(
    "head", [b"", b"{", b"{'a': 1}", b"\xff\xfe{}", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 9999]
)
def test_a_header_that_is_no_json_is_refused(head):
    with pytest.raises(CodecError, match=r"not JSON|not a JSON object"):
        decode_blob(build(head, save({})))


def test_types_and_names_off_the_list_are_refused():
    for kind in (torch.complex64, torch.float8_e4m3fn, torch.uint16):
        with pytest.raises(CodecError, match=r"not allowed|not safetensors"):
            decode_blob(build(b"{}", save({"w": torch.zeros(2).to(kind)})))
    with pytest.raises(CodecError, match="not allowed"):
        decode_blob(build(b"{}", save({"n" * (NAME_LIMIT + 1): torch.zeros(1)})))


@pytest.mark.parametrize("groups", [None, "model", 3, [1], [["model"]], {"model": 1}])
def test_a_header_without_groups_is_refused(groups):
    with pytest.raises(CodecError, match="has no list of groups"):
        decode_groups(encode_blob(SMALL, {"groups": groups}))
    with pytest.raises(CodecError, match="has no list of groups"):
        decode_groups(encode_blob(SMALL))


# No code comes from the wire (P4) -----------------------------------------------------------

WATCHED = """
import sys, pathlib
from heterophony.core.codec import decode_blob, decode_groups
from heterophony.core.errors import CodecError
import torch, safetensors.torch

blobs = eval(pathlib.Path(sys.argv[1]).read_text())  # our own test's list of bytes

def attempt(blob):
    for f in (lambda: decode_blob(blob), lambda: decode_blob(blob, finite=False), lambda: decode_groups(blob)):
        try:
            f()
        except CodecError:
            pass

attempt(blobs[0])  # imports on first use happen before the watch begins
seen, watching = set(), True
BAD = ("pickle.", "exec", "compile", "import", "marshal.", "socket.", "subprocess.", "os.system",
       "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "open", "ctypes.", "code.__new__")

def hook(event, args):
    if watching and event.startswith(BAD):
        seen.add(event)

sys.addaudithook(hook)
for blob in blobs:
    attempt(blob)
found = sorted(seen)
import pickle  # the control: the watch does see what it is to see
pickle.loads(pickle.dumps(len))
watching = False
print(len(blobs), found, "pickle.find_class" in seen)
"""


class Evil:
    def __reduce__(self):
        return exec, ("import socket, subprocess; subprocess.run(['true'])",)


def test_decoding_hostile_bytes_runs_loads_and_opens_nothing(tmp_path):
    evil = pickle.dumps(Evil())
    torch_file = tmp_path / "evil.pt"
    torch.save({"w": torch.zeros(3), "evil": Evil()}, torch_file)
    hostile = [evil, torch_file.read_bytes()]
    text = b'{"__metadata__":{"format":"pt","x":"' + b"y" * 50 + b'"}}'
    blobs = [BLOB, encode_groups({"model": SMALL}), *hostile]
    for item in hostile:
        blobs += [
            build(b"{}", item),
            build(item, save(dict(SMALL))),
            build(b"{}", len(item).to_bytes(8, "little") + item),
            build(b"{}", len(text).to_bytes(8, "little") + text + item),
            encode_blob(
                Tensors({"w": torch.tensor(list(item), dtype=torch.uint8)}), {"groups": ["w"]}
            ),
        ]
    for mask in (0x01, 0x80):
        for i in range(len(BLOB)):
            blobs.append(BLOB[:i] + bytes([BLOB[i] ^ mask]) + BLOB[i + 1 :])
    blobs += [BLOB[:n] for n in range(0, len(BLOB), 3)]
    listing = tmp_path / "blobs"
    listing.write_text(repr(blobs))
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(listing)], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{len(blobs)} [] True\n", done.stderr
