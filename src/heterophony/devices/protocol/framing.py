"""Encode a JSON object with a checksum, and decode it strictly.

A frame is two lines: canonical JSON, and its crc32. Without TLS a network may alter a digit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from ...core.errors import CodecError


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
