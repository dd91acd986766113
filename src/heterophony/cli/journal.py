"""``journal``: print who took part in a run on devices, what was refused and what was sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import FolderError
from ..core.plain_text import clean_line
from . import terminal
from .options import JsonOption

if TYPE_CHECKING:
    from ..devices.journal import Fact


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(journal)


def journal(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    device: Annotated[str | None, typer.Option(help="Only what concerns this device.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind, as in refused.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check that no line was altered or removed.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Print the journal of a run on devices: who joined, what was refused, what was sent."""
    from ..devices.journal import find_damage, parse_line, read_journal

    lines = read_journal(folder)
    damage = list(find_damage(lines))
    for number, why in damage[:10]:
        terminal.print_note(f"line {number}: {why}")
    if check:
        if damage:
            raise FolderError(f"the journal of {folder} is damaged in {len(damage)} places")
        terminal.print_note(f"{len(lines)} lines, none altered, none missing between them")
        return
    facts = [
        fact
        for fact in map(parse_line, lines)
        if fact and device in (None, fact.device) and kind in (None, fact.kind)
    ]
    if json:
        terminal.print_json([vars(fact) for fact in facts])
        return
    for fact in facts:
        print(clean_line(format_fact(fact)))


def format_fact(fact: Fact) -> str:
    details = "; ".join(f"{key} {format_value(v)}" for key, v in fact.details.items())
    return f"{fact.time}  {fact.kind:9} {fact.device:16} {details}".rstrip()


def format_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
