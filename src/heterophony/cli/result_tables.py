"""Print results: the table of one run, or of several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..algorithms import get_algorithm_class, get_display_name
from ..core.errors import ConfigError
from ..core.scores import SCORES, get_metric_info
from . import terminal
from .terminal import HighlightedCell

if TYPE_CHECKING:
    from ..results.runs import Run
    from ..results.tables import Row
    from ..runs.curves import Accuracy, Fairness
    from ..runs.summary import Summary


def show_run(summary: Summary, folder: Path, json: bool, trained: bool = False) -> None:
    """Print the table of a run; with ``trained``, also P of clients right after they trained."""
    if json:
        terminal.print_json(summary.to_dict())
        return
    from ..results.overview import describe_lone_clients
    from ..runs.events import get_start
    from ..runs.run_index import EVENTS_FILE, read_events
    from ..runs.summary import describe_chance_level

    fair, loss = summary.fairness, summary.loss
    rows = [
        format_accuracy_row("G, generic model", summary.G, fair["G"], loss.get("G")),
        format_accuracy_row("P, own models", summary.P, fair["P"], loss.get("P")),
    ]
    if trained:
        rows.append(format_accuracy_row("P, just trained", summary.P_local))
    if new := summary.new_clients:
        worst = terminal.format_percent(new.fairness.worst10)
        rows.append(["G, new clients", "–", terminal.format_percent(new.G), "–", "–", "–"])
        before, after = (terminal.format_percent(value) for value in (new.before, new.P))
        rows.append(["P, new clients on arrival", "–", before, "–", "–", "–"])
        rows.append(["P, new clients in the end", "–", after, "–", worst, "–"])
    name = get_display_name(summary.algorithm)
    score = SCORES.get(summary.task, "score")
    title = f"{name}, {summary.rounds} {'round' if summary.rounds == 1 else 'rounds'}, seed {summary.seed}: {score} in %"
    titles = ["", "best", "last", "last 10", "worst 10 % of clients", "test loss"]
    if summary.P.chosen:
        titles.append("at best validation")
        marks = [
            format_validation_choice(summary.G),
            format_validation_choice(summary.P),
            *["–"] * len(rows),
        ]  # new clients have no validation
        rows = [[*row, mark] for row, mark in zip(rows, marks, strict=False)]
    if not loss:  # a run of an early version
        titles.remove("test loss")
        rows = [[*row[:5], *row[6:]] for row in rows]
    optional = ["last", "test loss", "worst 10 % of clients", "best"]
    terminal.print_table(title, titles, rows, optional=optional)
    if summary.metrics:
        show_metrics(summary.metrics)
    if sentence := describe_chance_level(
        summary, get_start(list(islice(read_events(folder / EVENTS_FILE), 1)))
    ):
        terminal.print_note(sentence)
    if sentence := describe_lone_clients(read_events(folder / EVENTS_FILE)):
        terminal.print_note(sentence)
    if summary.G is None:
        terminal.print_note(explain_missing_g(summary.algorithm))
    if summary.data_remark:
        terminal.print_note(summary.data_remark)
    if summary.delta is not None:
        terminal.print_note(describe_privacy(summary))
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


def explain_missing_g(algorithm: str) -> str:
    """Say why a run has no G: there is no generic model, or the server of devices cannot know it."""
    name = get_display_name(algorithm)
    try:
        has_generic = get_algorithm_class(algorithm).common
    except ConfigError:  # a class from outside that this process has not imported
        return "no G: it was not measured"
    if not has_generic:
        return f"no G: {name} has no generic model"
    return (
        f"no G: the generic model of {name} needs personal parameters, which stay on the devices"
        " (evaluation.share_personal = true sends them)"
    )


def format_accuracy_row(
    name: str, a: Accuracy | None, fair: Fairness | None = None, loss: float | None = None
) -> list[str]:
    """Format one row of the table."""
    if a is None:
        return [name, *"–––––"]
    last10 = f"{terminal.format_percent(a.last10.mean)} ± {terminal.format_percent(a.last10.std)}"
    best = f"{terminal.format_percent(a.best)} (round {a.best_round})"
    worst = terminal.format_percent(fair.worst10) if fair else "–"
    last = terminal.format_percent(a.last)
    return [name, best, last, last10, worst, "–" if loss is None else f"{loss:.4f}"]


def show_metrics(metrics: Mapping[str, Mapping[str, float | None]]) -> None:
    """Print the metrics beside the score, at the end of a run: G and P of each."""
    infos = [(get_metric_info(name), of) for name, of in metrics.items()]
    lines = [
        [info.title or info.name.replace("_", " "), *(info.format(of.get(m)) for m in "GP")]
        for info, of in infos
    ]
    terminal.print_table("other metrics, after the last round", ["", "G", "P"], lines)


def format_validation_choice(of: Accuracy | None) -> str:
    """Format the accuracy at the round with the best validation accuracy."""
    at = of and of.chosen
    return f"{terminal.format_percent(at.test)} (round {at.round})" if at else "–"


def show_comparison(parent: Path, json: bool) -> None:
    """Print the table of a comparison, and what can be concluded from it."""
    from ..results.exports import list_conclusions
    from ..results.overview import build_metric_table, describe_lone_clients
    from ..results.runs import load_runs
    from ..results.tables import (
        VALIDATION_COLUMNS,
        build_comparison_rows,
        explain_highlighting,
        select_columns,
    )

    runs = load_runs([parent], terminal.print_note)
    found = build_comparison_rows(runs)
    if json:
        terminal.print_json(found)
        return
    keys = ["G.best", "G.last10", "P.best", "P.last10", "worst10"]
    shown = {k: v for k, v in select_columns(found).items() if k in (*keys, *VALIDATION_COLUMNS)}
    new = any(r["new_clients"] for r in found)
    gaps = ["ΔG last 10", "ΔP last 10"]
    heads = ["algorithm", *shown.values(), *(["P new"] if new else []), *gaps]
    heads += ["work", "MB", "seconds"]
    lines = [format_comparison_line(r, list(shown), new) for r in found]
    score = " or ".join(dict.fromkeys(SCORES[r.start.get("task", "classification")] for r in runs))
    title = f"{score} in %; G: the generic model on all test data, P: own models on own data"
    optional = ["seconds", "MB", shown["worst10"], shown["G.best"], shown["P.best"], "work", *gaps]
    terminal.print_table(title, heads, lines, optional=optional)
    heads, rows = build_metric_table(runs)
    if rows:
        cells = [[row.series, *row.cells] for row in rows]
        terminal.print_table("other metrics, after the last round", ["algorithm", *heads], cells)
    seeds = len(found[0]["seeds"])
    spread = f"± over {seeds} seeds" if seeds > 1 else "± over the last ten evaluations"
    terminal.print_note(
        f"{spread}; Δ: paired by seed, against {found[0]['name']}, with its 95 % interval;"
        " work: examples gone through, relative to FedAvg; MB: both ways"
    )
    notes = (explain_highlighting(found, list(shown)), *list_conclusions(found))
    remarks = dict.fromkeys(r.start.get("data_remark", "") for r in runs)
    lone = dict.fromkeys(describe_lone_clients(r.events) for r in runs)
    for sentence in (*remarks, *lone, *list_runs_at_chance(runs), *notes):
        if sentence:
            terminal.print_note(sentence)
    if new:
        terminal.print_note("P new: of clients that joined after training, after training alone")
    terminal.print_note(f"{parent}; a page with curves: heterophony report {parent}")


def list_runs_at_chance(runs: Sequence[Run]) -> list[str]:
    """Name the runs that are no better than chance, in as few sentences as possible."""
    from ..runs.summary import describe_chance_level

    named = dict[str, list[str]]()
    for run in runs:
        if run.summary and (sentence := describe_chance_level(run.summary, run.start)):
            named.setdefault(sentence, []).append(run.label)
    return [f"{'; '.join(labels)}: {sentence}" for sentence, labels in named.items()]


def format_comparison_line(row: Row, keys: Sequence[str], new: bool) -> list[str]:
    """The cells of a row; what it leads in beyond chance is bold."""
    from ..results.exports import format_difference_interval
    from ..results.tables import format_cell

    numbers = [
        HighlightedCell(format_cell(row, k)) if k in row["leads"] else format_cell(row, k)
        for k in keys
    ]
    if new:
        numbers.append(terminal.format_percent((row["new_clients"] or {}).get("P")))
    gaps = [format_difference_interval(row, k) for k in ("G.last10", "P.last10")]
    cost = [
        format_cell(row, "work"),
        f"{row['MB_up'] + row['MB_down']:.1f}",
        f"{row['seconds']:.1f}",
    ]
    return [row["name"], *numbers, *gaps, *cost]


def describe_privacy(summary: Summary) -> str:
    """Say what a run has spent of its privacy, in one sentence."""
    bound = "no bound on ε" if summary.epsilon is None else f"ε = {summary.epsilon:.3f}"
    unit, how = summary.privacy["unit"], summary.privacy["accounting"]
    return (
        f"{bound} at δ = {summary.delta:g} for one {unit} ({how}); result.json says what is outside"
    )
