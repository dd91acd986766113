"""``sweep``: one experiment with many settings, side by side; a sorted table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import terminal
from .options import (
    ConfigArgument,
    JsonOption,
    OutOption,
    SeedsCommand,
    SeedsOption,
    SettingsOption,
    check_foreign_file,
    find_free_folder,
    format_resume_hint,
    format_same_command,
    locate_settings,
    parse_seeds,
)

if TYPE_CHECKING:
    from ..results.search_tables import SweepMeasure, SweepRow, SweepTable
    from ..runs.folder import RunFolder
    from ..studies.spec import RunSpec


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
            help="What to vary, as in training.lr=0.005,0.01,0.05, or with --random"
            " training.lr=0.001..0.1; repeatable.",
        ),
    ] = None,
    pairs: SettingsOption = None,
    draws: Annotated[
        int | None,
        typer.Option(
            "--random", min=1, help="Number of random combinations to try, instead of all."
        ),
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
    from ..studies.search import create_sweep
    from ..studies.sweep import build_sweep

    config, chosen = locate_settings(file, pairs or [])
    numbers = None if seeds is None else parse_seeds(seeds)
    settings = [*chosen, *(pairs or [])]
    check_foreign_file(config, settings)
    plan = build_sweep(config, settings, swept or [], numbers, draws, terminal.print_note)
    first = plan.maker.make("", plan.combinations[0], plan.seeds[0]).config
    prepare_engine(first.engine)
    parent = out or find_free_folder(f"sweep-{Path(first.data.name).stem}")
    runs = create_sweep(parent, plan.combinations, plan.seeds, plan.maker.make)
    run_and_show(parent, runs, by, workers, figure, json)


def resume_sweep(
    parent: Path, workers: int | None, json: bool, pairs: Sequence[str], trust: bool
) -> None:
    """Continue the sweep in a folder; ``pairs`` may change the section [engine]."""
    from ..studies.search import list_due_folders
    from ..studies.spec import read_spec

    runs = {f: read_spec(f, pairs, trust) for f in list_due_folders(parent)}
    named = {f: replace(spec, name=f.path.name) for f, spec in runs.items()}
    run_and_show(parent, named, SortKey.P, workers, None, json)


def run_and_show(
    parent: Path,
    runs: dict[RunFolder, RunSpec],
    by: SortKey,
    workers: int | None,
    figure: Path | None,
    json: bool,
) -> None:
    """Run what is left of a sweep; print its table and draw its picture."""
    from ..report.figures.run_figures import save_figure
    from ..report.figures.search import draw_sweep
    from ..results.search_tables import read_sweep
    from ..studies.many import RunOptions
    from ..studies.search import run_sweep

    if runs and not json:
        count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
        terminal.print_note(f"{count} in {parent}; {format_same_command(parent)}")
    hint = format_resume_hint(parent, {spec.config.algorithm_name for spec in runs.values()})
    with terminal.show_interruptible_progress(hint, list(runs)) as shown:
        run_sweep(parent, runs, RunOptions(shown, workers, True, warn=terminal.print_note))
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
    from ..studies.search import shorten_keys

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
    from ..studies.search import shorten_keys

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
    from ..studies.search import format_value

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
