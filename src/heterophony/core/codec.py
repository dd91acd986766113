"""Encode named tensors and a small header as bytes, and decode them without unpickling anything.

Layout of a blob: ``HET1``, the header length in four bytes, a JSON object, then safetensors. The
decoder limits the size; ``check_same_structure`` requires the expected names, shapes and types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from .errors import CodecError, NotFiniteError
from .tensors import Memory, Tensors

MAGIC = b"HET1"
HEADER_LIMIT = 1 << 20
BLOB_LIMIT = 1 << 32
NAME_LIMIT = 512
ALLOWED_DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)


def encode_blob(tensors: Tensors, header: Mapping[str, Any] | None = None) -> bytes:
    """Encode tensors and a header as one blob; equal content gives equal bytes."""
    head = json.dumps(dict(header or {}), sort_keys=True, separators=(",", ":")).encode()
    body = to_safetensors(tensors)
    longest = max(len(head), int.from_bytes(body[:8], "little"))
    if longest > HEADER_LIMIT:
        raise CodecError(f"a header of {longest} bytes exceeds the limit of {HEADER_LIMIT}")
    return b"".join([MAGIC, len(head).to_bytes(4, "big"), head, body])


def decode_blob(blob: bytes, finite: bool = True) -> tuple[Tensors, dict[str, Any]]:
    """Decode a blob into tensors and header; raise CodecError for invalid bytes before allocating memory.

    If ``finite`` is true, NaN and infinity are refused.
    """
    header, body = split_blob(blob)
    return from_safetensors(body, finite), header


def to_safetensors(tensors: Tensors) -> bytes:
    """Encode the tensors as plain safetensors, which other programs can read."""
    for name, v in tensors.items():
        check_tensor_allowed(name, v)
    # safetensors refuses tensors that share memory, so copy each
    copies = {
        k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()
    }
    return save(copies)


def from_safetensors(body: bytes, finite: bool = True) -> Tensors:
    """Decode and check plain safetensors, written by this package or by other programs."""
    if int.from_bytes(body[:8], "little") > HEADER_LIMIT:
        raise CodecError(f"not safetensors, or a header of more than {HEADER_LIMIT} bytes")
    try:
        tensors = Tensors({k: v.clone() for k, v in load(body).items()})
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RuntimeError) as error:
        raise CodecError(f"not safetensors: {error}") from None
    for name, v in tensors.items():
        check_tensor_allowed(name, v)
        if finite and v.is_floating_point() and not bool(torch.isfinite(v).all()):
            raise NotFiniteError(f"tensor {name!r} holds NaN or infinity")
    return tensors


def split_blob(blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Split an encoded blob into its header and its safetensors; raise CodecError if a length is wrong."""
    if len(blob) > BLOB_LIMIT:
        raise CodecError(f"{len(blob)} bytes exceed the limit of {BLOB_LIMIT}")
    size = int.from_bytes(blob[4:8], "big")
    if blob[:4] != MAGIC or len(blob) < 16 + size:
        raise CodecError("these bytes are not from heterophony, or were cut short")
    inner = int.from_bytes(blob[8 + size : 16 + size], "little")
    if size > HEADER_LIMIT or inner > HEADER_LIMIT:
        raise CodecError(
            f"a header of {max(size, inner)} bytes exceeds the limit of {HEADER_LIMIT}"
        )
    try:
        header = json.loads(blob[8 : 8 + size])
    except (ValueError, RecursionError):
        raise CodecError("the header is not JSON") from None
    if not isinstance(header, dict):
        raise CodecError("the header is not a JSON object")
    return header, blob[8 + size :]


def check_tensor_allowed(name: str, v: Tensor) -> None:
    """Raise CodecError if a tensor's name or type is not allowed; sender and receiver call this."""
    if len(name) > NAME_LIMIT or v.dtype not in ALLOWED_DTYPES:
        raise CodecError(f"tensor {name[:80]!r} of type {v.dtype} is not allowed")


def check_same_structure(tensors: Tensors, like: Tensors) -> None:
    """Raise CodecError unless decoded tensors have exactly the names, shapes and types of ``like``."""
    odd = sorted(tensors.keys() ^ like.keys())
    if odd:
        raise CodecError(f"tensor {odd[0]!r} is {'missing' if odd[0] in like else 'not expected'}")
    for name, v in tensors.items():
        expected = like[name]
        if v.shape != expected.shape or v.dtype != expected.dtype:
            raise CodecError(
                f"tensor {name!r} is {v.dtype} {tuple(v.shape)}, "
                f"expected {expected.dtype} {tuple(expected.shape)}"
            )


def encode_groups(groups: Memory, header: Mapping[str, Any] | None = None) -> bytes:
    """Encode several named sets of tensors, such as a client's memory, as one blob."""
    # tensor names start with the number of the group, because its name may contain any character
    names = sorted(groups)
    flat = Tensors({f"{i}|{k}": v for i, g in enumerate(names) for k, v in groups[g].items()})
    return encode_blob(flat, {**(header or {}), "groups": names})


def decode_groups(blob: bytes, finite: bool = True) -> tuple[dict[str, Tensors], dict[str, Any]]:
    """Decode a blob made by ``encode_groups`` into named sets of tensors and the header."""
    flat, header = decode_blob(blob, finite=finite)
    groups = header.pop("groups", None)
    if not isinstance(groups, list) or not all(isinstance(g, str) for g in groups):
        raise CodecError("the header has no list of groups")
    return {g: flat.below(f"{i}|") for i, g in enumerate(groups)}, header
