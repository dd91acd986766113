"""Print results: the table of one run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from . import terminal

if TYPE_CHECKING:
    from ..runs.summary import Accuracy, Fairness, Summary


def show_run(summary: Summary, folder: Path, json: bool, trained: bool = False) -> None:
    """Print the table of a run; with ``trained``, also P of clients right after they trained."""
    if json:
        terminal.print_json(summary.to_dict())
        return
    fair = summary.fairness
    rows = [
        format_accuracy_row("G, common model", summary.G, fair["G"]),
        format_accuracy_row("P, own models", summary.P, fair["P"]),
    ]
    if trained:
        rows.append(format_accuracy_row("P, just trained", summary.P_local, None))
    if new := summary.new_clients:
        worst = terminal.format_percent(new.fairness.worst10)
        rows.append(["G, new clients", "–", terminal.format_percent(new.G), "–", "–"])
        rows.append(
            ["P, new clients on arrival", "–", terminal.format_percent(new.before), "–", "–"]
        )
        rows.append(["P, new clients in the end", "–", terminal.format_percent(new.P), "–", worst])
    title = f"{summary.algorithm}, {summary.rounds} rounds, seed {summary.seed}: accuracy in %"
    titles = ["", "best", "last", "last 10", "worst 10 % of clients"]
    if summary.P.chosen:
        titles.append("at best validation")
        marks = [
            format_validation_choice(summary.G),
            format_validation_choice(summary.P),
            *["–"] * len(rows),
        ]  # new clients have no validation
        rows = [[*row, mark] for row, mark in zip(rows, marks, strict=False)]
    terminal.print_table(title, titles, rows)
    up, down = (terminal.format_megabytes(summary.bytes[k]) for k in ("up", "down"))
    simulated = summary.simulated_seconds
    clock = "" if simulated is None else f", {simulated:.1f} s on the simulated clock"
    terminal.print_note(f"{down} MB down, {up} MB up, {summary.seconds:.1f} s{clock}")
    if sent := summary.personal_bytes:
        terminal.print_note(
            f"G is computed from personal parameters: devices sent {terminal.format_megabytes(sent)} MB of them for it"
            " (evaluation.share_personal)"
        )
    terminal.print_note(f"{folder}; a page with curves: heterophony report {folder}")


def format_accuracy_row(name: str, a: Accuracy | None, fair: Fairness | None) -> list[str]:
    """Format one row of the table."""
    if a is None:
        return [name, *"––––"]
    last10 = f"{terminal.format_percent(a.last10.mean)} ± {terminal.format_percent(a.last10.std)}"
    best = f"{terminal.format_percent(a.best)} (round {a.best_round})"
    worst = terminal.format_percent(fair.worst10) if fair else "–"
    return [name, best, terminal.format_percent(a.last), last10, worst]


def format_validation_choice(of: Accuracy | None) -> str:
    """Format the accuracy at the round with the best validation accuracy."""
    at = of and of.chosen
    return f"{terminal.format_percent(at.test)} (round {at.round})" if at else "–"


def show_comparison(parent: Path, json: bool) -> None:
    """Print the table of a comparison, and what can be concluded from it."""
    from ..analysis.runs import load_runs
    from ..analysis.statistics import format_difference_interval, list_conclusions
    from ..analysis.tables import (
        VALIDATION_COLUMNS,
        build_comparison_rows,
        format_cell,
        select_columns,
    )

    found = build_comparison_rows(load_runs([parent]))
    if json:
        terminal.print_json(found)
        return
    keys = ["G.best", "G.last10", "P.best", "P.last10", "worst10"]
    titles = ["G best", "G last 10", "P best", "P last 10", "P worst 10 %"]
    shown = select_columns(found)
    keys += [k for k in VALIDATION_COLUMNS if k in shown]
    titles += [title for k, title in VALIDATION_COLUMNS.items() if k in shown]
    new = any(r["new_clients"] for r in found)
    own = [*titles, "P new"] if new else titles
    heads = ["algorithm", *own, "ΔG last 10", "ΔP last 10", "MB", "seconds"]
    lines = []
    for r in found:
        numbers = [format_cell(r, k) for k in keys]
        if new:
            numbers.append(terminal.format_percent((r["new_clients"] or {}).get("P")))
        gaps = [format_difference_interval(r, k) for k in ("G.last10", "P.last10")]
        cost = [f"{r['MB_up'] + r['MB_down']:.1f}", f"{r['seconds']:.1f}"]
        lines.append([r["name"], *numbers, *gaps, *cost])
    title = "accuracy in %; G: the common model on all test data, P: own models on own test data"
    terminal.print_table(title, heads, lines)
    seeds = len(found[0]["seeds"])
    spread = f"± over {seeds} seeds" if seeds > 1 else "± over the last ten evaluations"
    terminal.print_note(
        f"{spread}; Δ: paired by seed, against {found[0]['name']}, with its 95 % interval;"
        " MB: both ways"
    )
    for sentence in list_conclusions(found):
        terminal.print_note(sentence)
    if new:
        terminal.print_note("P new: of clients that joined after training, after training alone")
    terminal.print_note(f"{parent}; a page with curves: heterophony report {parent}")
