"""Encode a JSON object with a checksum, and decode it strictly.

A frame is two lines: canonical JSON, and its crc32. Without TLS a network may alter a digit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from ...core.errors import CodecError
from ...core.names import NAME_PATTERN

MAX_RUN_BYTES = 64  # of the name of a run


def encode_frame(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of an object; equal objects give equal bytes."""
    return add_checksum(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def add_checksum(text: bytes) -> bytes:
    return b"%s\n%08x" % (text, zlib.crc32(text))


def decode_frame(payload: bytes) -> dict[str, Any]:
    """Return the object in a frame whose length the caller has checked."""
    text = payload[:-9]
    if add_checksum(text) != payload:
        raise CodecError("a message was damaged on its way")
    try:
        content = json.loads(text, object_pairs_hook=reject_duplicate_keys)
    except (ValueError, RecursionError):
        raise CodecError("a message is not JSON") from None
    if not isinstance(content, dict):
        raise CodecError("a message is not a JSON object")
    return content


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object with a key twice: two readers could understand it differently."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key occurs twice")
    return content


def add_run(run: str, payload: bytes) -> bytes:
    """Return what travels on a topic of a device: the name of the run, a line feed, the payload."""
    return run.encode() + b"\n" + payload


def split_run(payload: bytes) -> tuple[str, bytes]:
    """Return the run's name and the rest; refuse bytes that do not begin with a name."""
    end = payload.find(b"\n", 0, MAX_RUN_BYTES + 1)
    run = payload[: max(end, 0)].decode("latin-1")
    if not NAME_PATTERN.fullmatch(run):
        raise CodecError("a message names no run")
    return run, payload[end + 1 :]
