"""The table of one run: G and P, other metrics, and notes on what to make of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from ..algorithms import get_algorithm_class, get_display_name
from ..core.errors import ConfigError
from ..core.scores import SCORES, MetricInfo, get_metric_info
from ..runs.curves import Accuracy, Fairness
from ..runs.events import Event, get_start
from ..runs.run_index import EVENTS_FILE, read_events
from ..runs.summary import Summary, describe_chance_level
from .table import Cell, Column, Columns, ResultTable, Value

PERCENT_COLUMNS = (
    Column("best", kind="percent", drop=4),
    Column("last", kind="percent", drop=1),
    Column("last 10", kind="percent", show="std"),
    Column("worst 10 % of clients", kind="percent", drop=3),
)
LOSS_COLUMN = Column("test loss", form=".4f", drop=2)
VALIDATION_COLUMN = Column("at best validation", kind="percent")
METRICS_TITLE = "other metrics, after the last round"


def build_run_tables(summary: Summary, folder: Path, trained: bool = False) -> list[ResultTable]:
    """Build what ``run`` prints; with ``trained``, also P of clients right after they trained."""
    fair, loss = summary.fairness, summary.loss
    rows = [
        ["G, generic model", *list_accuracy_cells(summary.G, fair["G"], loss.get("G"))],
        ["P, own models", *list_accuracy_cells(summary.P, fair["P"], loss.get("P"))],
    ]
    if trained:
        rows.append(["P, just trained", *list_accuracy_cells(summary.P_local)])
    if new := summary.new_clients:
        worst = Cell(new.fairness.worst10)
        rows += [
            ["G, new clients", *list_last_cells(new.G)],
            ["P, new clients on arrival", *list_last_cells(new.before)],
            ["P, new clients in the end", *list_last_cells(new.P, worst)],
        ]
    name, score = get_display_name(summary.algorithm), SCORES.get(summary.task, "score")
    rounds = f"{summary.rounds} round{'s' * (summary.rounds != 1)}"
    main = ResultTable.build(
        ["", *PERCENT_COLUMNS, LOSS_COLUMN, VALIDATION_COLUMN],
        rows,
        f"{name}, {rounds}, seed {summary.seed}: {score} in %",
        list_notes(summary, folder),
    )
    optional = {LOSS_COLUMN: bool(loss), VALIDATION_COLUMN: summary.P.chosen is not None}
    kept = [c.name for c in main.columns[1:] if optional.get(c, True)]
    return [main.select(kept, "columns"), *build_metric_tables(summary)]


def list_accuracy_cells(
    a: Accuracy | None, fair: Fairness | None = None, loss: float | None = None
) -> list[Value]:
    """List the cells of a measure, in the order of the columns."""
    if a is None:
        return [None] * 6
    chosen = a.chosen
    return [
        Cell(a.best, note=f"round {a.best_round}"),
        a.last,
        Cell(a.last10.mean, a.last10.std),
        fair.worst10 if fair else None,
        loss,
        Cell(chosen.test, note=f"round {chosen.round}") if chosen else None,
    ]


def list_last_cells(last: float | None, worst: Cell | None = None) -> list[Value]:
    """List the cells of new clients, which are evaluated once."""
    return [None, last, None, worst, None, None]


def build_metric_tables(summary: Summary) -> list[ResultTable]:
    """Build the table of the metrics beside the score; empty without any."""
    infos = [(get_metric_info(name), of) for name, of in summary.metrics.items()]
    rows = [[get_metric_title(i), *(i.format(of.get(m)) for m in "GP")] for i, of in infos]
    columns: Columns = ["", Column("G"), Column("P")]
    return [ResultTable.build(columns, rows, METRICS_TITLE)] if rows else []


def get_metric_title(info: MetricInfo) -> str:
    return info.title or info.name.replace("_", " ")


# Notes --------------------------------------------------------------------------------------


def list_notes(summary: Summary, folder: Path) -> list[str | None]:
    """List what a reader must know about a run: chance level, missing G, data, privacy, cost."""
    events = folder / EVENTS_FILE
    start = get_start(list(islice(read_events(events), 1)))
    return [
        describe_chance_level(summary, start),
        describe_lone_clients(read_events(events)),
        explain_missing_g(summary.algorithm) if summary.G is None else None,
        summary.data_remark,
        describe_privacy(summary) if summary.delta is not None else None,
        *describe_cost(summary),
        f"{folder}; a page with curves: heterophony report {folder}",
    ]


def describe_lone_clients(events: Iterable[Event]) -> str | None:
    """Say that every round had one client of several, so that nothing was averaged; else None."""
    known: Sequence[str] = []
    rounds = 0
    for event in events:
        if event["event"] == "start":
            known = event["clients"]
        elif event["event"] == "round":
            if len(event["clients"]) != 1 or event["clients"][0] not in known:
                return None
            rounds += 1
    if len(known) < 2 or not rounds:
        return None
    return (
        f"one of {len(known)} clients trained in each round, so nothing was averaged;"
        " with a higher participation.rate more of them train"
    )


def explain_missing_g(algorithm: str) -> str:
    """Say why a run has no G: there is no generic model, or the server of boards cannot know it."""
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


def describe_privacy(summary: Summary) -> str:
    """Say in one sentence how much privacy a run has spent."""
    bound = "no bound on ε" if summary.epsilon is None else f"ε = {summary.epsilon:.3f}"
    unit, how = summary.privacy["unit"], summary.privacy["accounting"]
    return (
        f"{bound} at δ = {summary.delta:g} for one {unit} ({how}); result.json lists what ε does"
        " not cover"
    )


def describe_cost(summary: Summary) -> list[str]:
    """Say how many bytes and seconds a run took."""
    up, down = (f"{summary.bytes[way] / 1e6:.1f}" for way in ("up", "down"))
    simulated = summary.simulated_seconds
    clock = "" if simulated is None else f", {simulated:.1f} s on the simulated clock"
    out = [f"{down} MB down, {up} MB up, {summary.seconds:.1f} s{clock}"]
    if sent := summary.personal_bytes:
        out.append(
            f"G is computed from personal parameters: devices sent {sent / 1e6:.1f} MB of them for"
            " it (evaluation.share_personal)"
        )
    return out
