"""What runs came to, on the screen: one run, or several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from . import terminal

if TYPE_CHECKING:
    from ..run.summary import Accuracy, Fairness, Summary


def show_run(summary: Summary, folder: Path, json: bool, trained: bool = False) -> None:
    """The table of a run; P as testbeds measure it too, of those who have just trained, if asked."""
    if json:
        terminal.print_json(summary.json())
        return
    fair = summary.fairness
    rows = [
        measured("G, common model", summary.G, fair["G"]),
        measured("P, own models", summary.P, fair["P"]),
    ]
    if trained:
        rows.append(measured("P, just trained", summary.P_local, None))
    if new := summary.new_clients:
        worst = terminal.percent(new.fairness.worst10)
        rows.append(["G, new clients", "–", terminal.percent(new.G), "–", "–"])
        rows.append(["P, new clients on arrival", "–", terminal.percent(new.before), "–", "–"])
        rows.append(["P, new clients in the end", "–", terminal.percent(new.P), "–", worst])
    title = f"{summary.algorithm}, {summary.rounds} rounds, seed {summary.seed}: accuracy in %"
    titles = ["", "best", "last", "last 10", "worst 10 % of clients"]
    if summary.P.chosen:
        titles.append("at best validation")
        marks = [chosen(summary.G), chosen(summary.P), *["–"] * len(rows)]  # newcomers have none
        rows = [[*row, mark] for row, mark in zip(rows, marks, strict=False)]
    terminal.print_table(title, titles, rows)
    up, down = (terminal.megabytes(summary.bytes[k]) for k in ("up", "down"))
    simulated = summary.simulated_seconds
    clock = "" if simulated is None else f", {simulated:.1f} s on the simulated clock"
    terminal.note(f"{down} MB down, {up} MB up, {summary.seconds:.1f} s{clock}")
    if sent := summary.personal_bytes:
        terminal.note(
            f"G rests on personal parts: devices sent {terminal.megabytes(sent)} MB of them, only to"
            " measure it (evaluation.share_personal)"
        )
    terminal.note(f"{folder}; a page with curves: heterophony report {folder}")


def measured(name: str, a: Accuracy | None, fair: Fairness | None) -> list[str]:
    """A row of the table."""
    if a is None:
        return [name, *"––––"]
    last10 = f"{terminal.percent(a.last10.mean)} ± {terminal.percent(a.last10.std)}"
    best = f"{terminal.percent(a.best)} (round {a.best_round})"
    worst = terminal.percent(fair.worst10) if fair else "–"
    return [name, best, terminal.percent(a.last), last10, worst]


def chosen(of: Accuracy | None) -> str:
    """The accuracy at the round that validation chooses."""
    at = of and of.chosen
    return f"{terminal.percent(at.test)} (round {at.round})" if at else "–"


def show_comparison(parent: Path, json: bool) -> None:
    from ..analysis.runs import find
    from ..analysis.statistics import gap_cell, says
    from ..analysis.tables import (
        CHOSEN,
        cell,
        columns,
        rows,
    )

    found = rows(find([parent]))
    if json:
        terminal.print_json(found)
        return
    keys = ["G.best", "G.last10", "P.best", "P.last10", "worst10"]
    titles = ["G best", "G last 10", "P best", "P last 10", "P worst 10 %"]
    shown = columns(found)
    keys += [k for k in CHOSEN if k in shown]
    titles += [title for k, title in CHOSEN.items() if k in shown]
    new = any(r["new_clients"] for r in found)
    own = [*titles, "P new"] if new else titles
    heads = ["algorithm", *own, "ΔG last 10", "ΔP last 10", "MB", "seconds"]
    lines = []
    for r in found:
        numbers = [cell(r, k) for k in keys]
        if new:
            numbers.append(terminal.percent((r["new_clients"] or {}).get("P")))
        gaps = [gap_cell(r, k) for k in ("G.last10", "P.last10")]
        cost = [f"{r['MB_up'] + r['MB_down']:.1f}", f"{r['seconds']:.1f}"]
        lines.append([r["name"], *numbers, *gaps, *cost])
    title = "accuracy in %; G: the common model on everybody's test data, P: own models on own data"
    terminal.print_table(title, heads, lines)
    seeds = len(found[0]["seeds"])
    spread = f"± over {seeds} seeds" if seeds > 1 else "± over the last ten evaluations"
    terminal.note(
        f"{spread}; Δ: paired by seed, against {found[0]['name']}, with its 95 % interval;"
        " MB: both ways"
    )
    for sentence in says(found):
        terminal.note(sentence)
    if new:
        terminal.note("P new: of those who joined after training, after their rounds alone")
    terminal.note(f"{parent}; a page with curves: heterophony report {parent}")
