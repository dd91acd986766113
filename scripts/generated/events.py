"""Write docs/reference/events.md from src/heterophony/runs/events.py."""

from __future__ import annotations

from inspect import getdoc
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Any, Literal, NotRequired, get_args, get_origin, get_type_hints

from heterophony.runs.events import EVENT_TYPES, BoardRound, WorkSeconds

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"
HEAD = """\
# Events

Written by `scripts/generate` from `src/heterophony/runs/events.py`.

A run folder holds `events.jsonl`: one JSON object per line, in chronological order. A finished run has one `start`, an
`evaluation` for each evaluated round, a `round` for every round, `new_clients` if clients join after training, and one `end`. `heterophony report`
and `result.json` are computed from these events alone, and `hp.run(…).events` returns them as a list of dictionaries.

Counts per client follow the order of `clients` in the `start` event. Later versions may record more keys and more kinds of event: ignore
those that you do not know.
"""
RECORDS = {WorkSeconds: "work", BoardRound: "boards"}  # parts of events, with their sections
JSON_NAMES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    Any: "value",
}


def write_type(hint: Any) -> str:
    """Name a type as JSON does."""
    if get_origin(hint) is UnionType:
        return " or ".join(map(write_type, get_args(hint)))
    if isinstance(hint, GenericAlias):
        *_, inner = get_args(hint)
        container = "object" if get_origin(hint) is dict else "array"
        return f"{container} of {write_plural(write_type(inner))}"
    return f"[{RECORDS[hint]}](#{RECORDS[hint]})" if hint in RECORDS else JSON_NAMES[hint]


def write_plural(name: str) -> str:
    if " or " in name:
        return f"({name})"
    if name.startswith("["):
        return name
    first, *rest = name.split(" ", 1)
    return " ".join([f"{first}s", *rest])


def write_row(key: str, hint: Any) -> str:
    optional = get_origin(hint) is NotRequired
    if optional:
        (hint,) = get_args(hint)
    if get_origin(hint) is Literal:
        return f'| `{key}` | string | yes | always `"{get_args(hint)[0]}"` |'
    kind, about = get_args(hint)
    return f"| `{key}` | {write_type(kind)} | {'no' if optional else 'yes'} | {about} |"


def write_section(event: type) -> str:
    hints = get_type_hints(event, include_extras=True)
    name = get_args(hints["event"])[0] if "event" in hints else RECORDS[event]
    rows = "\n".join(write_row(key, hint) for key, hint in hints.items())
    about = (getdoc(event) or "").replace("``", "`")
    return f"\n## {name}\n{about}\n\n| key | type | always there | meaning |\n|---|---|---|---|\n{rows}\n"


def page() -> str:
    return HEAD + "".join(map(write_section, (*EVENT_TYPES, *RECORDS)))


def write() -> None:
    PAGE.write_text(page())
