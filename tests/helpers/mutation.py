"""Random inputs for decoders: mostly valid inputs with a few changed bytes or values."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

NUMBERS = (
    0,
    1,
    -1,
    7,
    255,
    256,
    65535,
    2**31,
    2**32 - 1,
    2**53,
    2**63,
    2**64 - 1,
    -(2**63),
    10**400,
)
FLOATS = (0.0, -0.0, 0.5, 1e-320, 1e300, 1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "a",
    "0",
    "end",
    "x" * 3000,
    "\x1b[2J",
    "\ud800",
    "é\u202e",
    "../../x",
    "/dev/zero",
    "\x00",
)
WORDS = (
    b"{",
    b"[",
    b"]",
    b"}",
    b'"',
    b"\n",
    b"\\u",
    b"e999",
    b"NaN",
    b"null",
    b"=",
    b"#",
    b"\xff",
    b"HET1",
    b"[" * 5000,
)


def draw_json(draw: Random, depth: int = 2) -> Any:
    """Draw any JSON value, with many extreme ones."""
    kind = draw.randrange(8 if depth else 5)
    if kind == 0:
        return draw.choice((None, True, False))
    if kind == 1:
        return draw.choice(NUMBERS)
    if kind == 2:
        return draw.choice(FLOATS)
    if kind == 3:
        return draw.choice(TEXTS)
    if kind == 4:
        return draw.randrange(-3, 12)
    parts = [draw_json(draw, depth - 1) for _ in range(draw.randrange(4))]
    if kind == 5:
        return parts
    if kind == 6:
        return {draw.choice(TEXTS): part for part in parts}
    nested: Any = []
    for _ in range(draw.choice((3, 20, 100))):
        nested = [nested]
    return nested


def list_places(value: Any) -> list[tuple[Any, Any]]:
    """List every container and key in a JSON value."""
    inner = list(value.items()) if isinstance(value, dict) else (
        list(enumerate(value)) if isinstance(value, list) else []
    )  # fmt: skip
    return [(value, key) for key, _ in inner] + [p for _, part in inner for p in list_places(part)]


def change_json(draw: Random, value: Any) -> Any:
    """Change some values or keys of a JSON value, which is copied first."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        places = list_places(value)
        if not places:
            return draw_json(draw)
        container, key = draw.choice(places)
        how = draw.randrange(10)
        if how < 6:
            container[key] = draw_json(draw)
        elif how == 6:
            del container[key]
        elif how == 7:
            other, at = draw.choice(places)
            container[key] = json.loads(json.dumps(other[at]))
        elif isinstance(container, dict):
            container[draw.choice((*TEXTS, *container))] = draw_json(draw)
        else:
            container.insert(draw.randrange(len(container) + 1), draw_json(draw))
    return value


def change_bytes(draw: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change some bytes: replace, insert, delete, repeat, cut, or join with another input."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at = draw.randrange(len(changed) + 1)
        size = draw.choice((1, 1, 2, 4, 8, 50))
        how = draw.randrange(8)
        if how < 2 and at < len(changed):
            changed[at] = draw.randrange(256)
        elif how == 2 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif how == 3:
            changed[at:at] = draw.choice((*WORDS, draw.randbytes(size)))
        elif how == 4:
            del changed[at : at + size]
        elif how == 5:
            changed[at:at] = changed[at : at + size] * draw.choice((1, 2, 100))
        elif how == 6:
            number = draw.choice(NUMBERS) & (2**64 - 1)
            changed[at : at + 8] = number.to_bytes(8, draw.choice(("big", "little")))
        else:
            other = draw.choice(others)
            changed[at:] = other[draw.randrange(len(other) + 1) :]
    return bytes(changed)


def draw_input(
    draw: Random,
    valid: Sequence[bytes],
    change_content: Callable[[Random, bytes], bytes],
    seal: Callable[[bytes], bytes],
) -> bytes:
    """Draw an input: random bytes, or a valid one with other bytes or content, often sealed again.

    ``seal`` corrects the checksums: a decoder stops at a wrong one.
    """
    how = draw.randrange(20)
    if how == 0:
        return draw.randbytes(draw.randrange(200))
    base = draw.choice(valid)
    changed = change_bytes(draw, base, valid) if how < 9 else change_content(draw, base)
    return seal(changed) if draw.randrange(4) else changed
