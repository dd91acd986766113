"""``sweep``: one experiment with many settings, side by side; a sorted table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import terminal
from .options import (
    SAME_COMMAND,
    ConfigArgument,
    JsonOption,
    OutOption,
    SeedsCommand,
    SeedsOption,
    SettingsOption,
    check_foreign_file,
    find_free_folder,
    format_resume_hint,
    locate_settings,
    parse_seeds,
)

if TYPE_CHECKING:
    from ..results.search_tables import SweepMeasure, SweepRow, SweepTable


class SortKey(StrEnum):
    """What settings are chosen by, on validation examples."""

    P = "P"
    G = "G"


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(cls=SeedsCommand)(sweep)


def sweep(
    file: ConfigArgument = None,
    swept: Annotated[
        list[str] | None,
        typer.Option(
            "-s",
            "--set",
            help="What to vary, as in local.lr=0.005,0.01,0.05, or with --random"
            " local.lr=0.001..0.1; repeatable.",
        ),
    ] = None,
    pairs: SettingsOption = None,
    draws: Annotated[
        int | None,
        typer.Option("--random", min=1, help="So many random combinations, instead of all."),
    ] = None,
    seeds: SeedsOption = None,
    by: Annotated[SortKey, typer.Option(help="Choose by P or G, on validation examples.")] = (
        SortKey.P
    ),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: one per core.")
    ] = None,
    out: OutOption = None,
    figure: Annotated[
        Path | None,
        typer.Option("-o", help="The picture (.png, .svg, .pdf); default: sweep.png in --out."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Try many settings, and choose by validation examples. Re-run with the same --out to continue."""
    from ..engines.base import prepare_engine
    from ..studies.sweep import build_sweep, prepare_sweep
    from ..studies.tasks import list_engine_settings

    config, chosen = locate_settings(file, pairs or [])
    numbers = None if seeds is None else parse_seeds(seeds)
    settings = [*chosen, *(pairs or [])]
    check_foreign_file(config, settings)
    plan = build_sweep(config, settings, swept or [], numbers, draws, terminal.print_note)
    first = next(iter(plan.runs.values())).config
    prepare_engine(first.engine)
    parent = out or find_free_folder(f"sweep-{Path(first.data.name).stem}")
    prepare_sweep(plan, parent)
    settings = list_engine_settings(first.engine, pairs or [])
    names = {run.config.algorithm_name for run in plan.runs.values()}
    hint = format_resume_hint(parent, names)
    run_and_show(parent, by, workers, figure, json, settings, hint, trust=True)


def run_and_show(
    parent: Path,
    by: SortKey,
    workers: int | None,
    figure: Path | None,
    json: bool,
    pairs: Sequence[str],
    hint: str,
    trust: bool,
) -> None:
    """Run what is left of a sweep; print its table and draw its picture.

    ``hint`` says how to continue after an interruption.
    """
    from ..report.figures.run_figures import save_figure
    from ..report.figures.search import draw_sweep
    from ..results.search_tables import read_sweep
    from ..studies.sweep import list_due_runs, run_due_sweep

    due = list_due_runs(parent)
    if due and not json:
        again = (
            SAME_COMMAND if parent.parent != Path("runs") else f"{SAME_COMMAND} with --out {parent}"
        )
        terminal.print_note(f"{len(due)} run{'s' if len(due) > 1 else ''} in {parent}; {again}")
    with terminal.show_interruptible_progress(hint, due) as progress:
        run_due_sweep(parent, due, progress, workers, pairs, terminal.print_note, trust)
    table = read_sweep(parent, by.value)
    path = figure or parent / "sweep.png"
    save_figure(draw_sweep(table), path)
    if json:
        terminal.print_json(table.to_dict())
    else:
        show_sweep(table, path)


# The table --------------------------------------------------------------------------------------


def show_sweep(table: SweepTable, figure: Path) -> None:
    """Print the table, what was chosen, and where everything is."""
    from ..studies.sweep import shorten_keys

    short = shorten_keys(table.keys)
    parts = ("valid", "test") if table.validated else ("last 10",)
    columns = [f"{measure} {part}" for measure in "PG" for part in parts]
    lines = []
    for row in table.rows:
        values = [format_setting(row.settings[key]) for key in table.keys]
        lines.append([*values, *format_row(row, table.validated, len(columns))])
    order = f"sorted by {table.by} on validation examples" if table.chosen else "not sorted"
    title = f"accuracy in %, {order}"
    terminal.print_table(title, [*short.values(), *columns], lines, text=len(short))
    if (seeds := len(table.rows[0].seeds)) > 1:
        terminal.print_note(f"± over {seeds} seeds")
    if table.validated:
        terminal.print_note("test: in the round with the highest validation accuracy")
    if table.chosen:
        show_choice(table)
    else:
        terminal.print_note(explain_no_choice(table))
    for row in table.rows:
        if row.reason:
            terminal.print_note(f"{describe(row, short)}: diverged: {row.reason}")
    terminal.print_note(
        f"{table.folder}; picture: {figure}; a page with curves: heterophony report {table.folder}"
    )


def explain_no_choice(table: SweepTable) -> str:
    """Say why nothing was chosen, and how to have it chosen."""
    if table.validated:
        return f"nothing is chosen: there is no {table.by} to choose by; leave out --by"
    if all(row.state != "finished" for row in table.rows):
        return "nothing is chosen: no run has finished"
    return (
        "nothing is chosen on test data; to have the best one chosen, hold examples out:"
        " -c data.validation_fraction=0.2"
    )


def show_choice(table: SweepTable) -> None:
    """Say which settings were chosen, how sure that is, and how to train with them."""
    from ..studies.sweep import shorten_keys

    row, error = table.chosen, table.standard_error
    assert row is not None
    assert error is not None
    close = len(table.close)
    others = f"; {close} more within its standard error" if close else ""
    points = f" ({100 * error:.2f} points)" if close else ""
    terminal.print_note(f"chosen: {describe(row, shorten_keys(table.keys))}{others}{points}")
    config = table.folder / row.folders[0] / "config.toml"
    terminal.print_note(
        f"train with it on all examples: heterophony run {config} -c data.validation_fraction=0"
    )


def describe(row: SweepRow, short: dict[str, str]) -> str:
    return " ".join(f"{short[k]}={format_setting(v)}" for k, v in row.settings.items())


def format_setting(value: object) -> str:
    from ..studies.sweep import format_value

    return value if isinstance(value, str) else format_value(value)


def format_row(row: SweepRow, validated: bool, width: int) -> list[str]:
    """Format the numbers of a row; of one that did not finish, its state."""
    if row.state != "finished":
        return [row.state, *[""] * (width - 1)]
    out = []
    for measure in (row.P, row.G):
        out += format_measure(measure, validated, len(row.seeds) > 1)
    return out


def format_measure(measure: SweepMeasure | None, validated: bool, several: bool) -> list[str]:
    if measure is None:
        return ["–"] * (2 if validated else 1)
    numbers = [measure.validation, measure.test] if validated else [measure.test]
    out = []
    for number in numbers:
        mean = terminal.format_percent(number.mean if number else None)
        out.append(
            f"{mean} ± {terminal.format_percent(number.std)}" if number and several else mean
        )
    return out
