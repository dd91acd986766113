"""Overviews of run folders: progress and cost for lists of runs, and tables for a single run."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from statistics import fmean
from typing import Any

from ..algorithms import get_algorithm_class, get_display_name
from ..core.errors import ConfigError, FolderError, StorageError
from ..core.files import open_regular_file, read_json, translate_disk_errors
from ..core.scores import SCORES, MetricInfo, get_metric_info
from ..runs.curves import Accuracy, Fairness, MeanStd, compute_curves
from ..runs.events import MEASURES, Event, Measure, get_start, select_rounds
from ..runs.run_index import (
    CONFIG_FILE,
    EVENTS_FILE,
    RESULT_FILE,
    find_runs,
    parse_json_line,
    read_events,
    read_last_event,
)
from ..runs.summary import Summary, describe_chance_level
from .runs import load_run
from .table import Cell, Column, Columns, ResultTable, Rows, Value

CostColumns = dict[str, list[float]]


def compute_cumulative_costs(events: Sequence[Event], measured: Sequence[int]) -> CostColumns:
    """Return the bytes and seconds that a run used before each evaluation, as columns.

    ``MB`` counts 10⁶ bytes, up and down. ``simulated`` is present if there is a simulated clock.
    """
    rounds = select_rounds(events)
    numbers = [e["t"] for e in rounds]
    before = [bisect_left(numbers, t) for t in measured]

    def sum_until_measured(each: Iterable[float]) -> list[float]:
        sums = list(accumulate(each, initial=0))
        return [sums[n] for n in before]

    out: CostColumns = {
        "t": list(measured),
        "MB": [
            n / 1e6 for n in sum_until_measured(e["bytes_up"] + e["bytes_down"] for e in rounds)
        ],
        "seconds": [round(s, 3) for s in sum_until_measured(e["seconds"] for e in rounds)],
    }
    if any("clock" in e for e in rounds):
        clock = [0.0, *(e.get("clock", 0.0) for e in rounds)]
        out["simulated"] = [round(clock[n], 3) for n in before]
    return out


@dataclass(frozen=True)
class RunProgress:
    """The progress of one run: its state, algorithm, G and P."""

    folder: Path
    state: str  # finished, round 3 of 20, not started, damaged, unreadable
    algorithm: str | None = None
    G: Accuracy | None = None
    P: Accuracy | None = None


def list_run_progress(path: Path) -> list[RunProgress]:
    """List the progress of all runs at or below the path, newest first."""
    folders = sorted(
        find_runs(path), key=lambda folder: -get_modification_time(folder / CONFIG_FILE)
    )
    return [read_run_progress(folder) for folder in folders]


def get_modification_time(path: Path) -> int:
    """Return when a file was last modified, in nanoseconds; 0 if this is unknown."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def read_run_progress(folder: Path) -> RunProgress:
    """Return the progress of one run; its state is ``damaged`` if its files cannot be read."""
    try:
        last = read_last_event(folder / EVENTS_FILE)
        if last is None:
            return RunProgress(folder, "not started")
        if last["event"] == "end" and (folder / RESULT_FILE).is_file():
            return read_finished_run(folder)
        return read_unfinished_run(folder)
    except StorageError:
        return RunProgress(folder, "unreadable")
    except Exception:  # a damaged file may raise any error
        return RunProgress(folder, "damaged")


def read_finished_run(folder: Path) -> RunProgress:
    """Read the progress of a finished run from result.json, which is much shorter than its events."""
    result = read_json(folder / RESULT_FILE)
    g, p = (parse_accuracy(result[k]) if result[k] is not None else None for k in "GP")
    return RunProgress(folder, "finished", str(result["algorithm"]), g, p)


def parse_accuracy(accuracy: dict[str, Any]) -> Accuracy:
    """Parse an accuracy of result.json; raise an error if a number is not finite."""
    last10 = MeanStd(*(check_result_number(accuracy["last10"][k]) for k in ("mean", "std")))
    best, last = (check_result_number(accuracy[k]) for k in ("best", "last"))
    return Accuracy(best, int(accuracy["best_round"]), last, last10)


def check_result_number(number: Any) -> float:
    """Return a number of result.json; raise FolderError if it is not finite."""
    if isinstance(number, bool) or not math.isfinite(number):
        raise FolderError(f"{RESULT_FILE} is damaged: {number} is not a finite number")
    return float(number)


def read_unfinished_run(folder: Path) -> RunProgress:
    """Read the progress of an unfinished run, which has no result.json yet, from its events."""
    run = load_run(folder)
    summary = run.current_summary
    g, p = (summary.G, summary.P) if summary else (None, None)
    for accuracy in filter(None, (g, p)):
        check_result_number(accuracy.last10.mean), check_result_number(accuracy.best)
    return RunProgress(folder, run.state, run.algorithm, g, p)


MAX_POINTS = 30  # limit for a small curve
MAX_EVENT_BYTES = 32 << 20  # larger files are not read for a small curve
AVERAGED_ROUNDS = 10  # the mean of the last rounds estimates the duration of the next ones
KIND = re.compile(rb'\{"event": ?"(\w+)"')  # at the start of every line
QUIET_SECONDS = 60.0  # seconds without an event after which a run may have stopped
QUIET_ROUNDS = 3.0  # the same limit, in multiples of a round's duration


@dataclass(frozen=True)
class RunOverview:
    """A run's rounds, speed and small curves, as the list of runs shows them; empty if its events cannot be read."""

    rounds: int = 0
    done: int = 0
    round_seconds: float | None = None  # mean of the last rounds
    curves: dict[str, list[list[float]]] = field(default_factory=dict)

    @property
    def seconds_left(self) -> float | None:
        """The estimated time of the remaining rounds, if they take as long as the latest rounds."""
        if self.round_seconds is None:
            return None
        return self.round_seconds * (self.rounds - self.done)


def read_run_overview(folder: Path) -> RunOverview:
    """Read the overview of a run, parsing only the event lines that are needed."""
    path = folder / EVENTS_FILE
    try:
        return summarise_event_file(path)
    except Exception:  # a damaged file may raise any error
        return RunOverview()  # the state in the list says what is wrong


def summarise_event_file(path: Path) -> RunOverview:
    """Build the overview of a run from its event file; raise an error if it is damaged."""
    start, evaluations, rounds = read_lines_by_kind(path)
    begun = parse_json_line(path, start)
    seconds = [float(parse_json_line(path, line)["seconds"]) for line in rounds[-AVERAGED_ROUNDS:]]
    curves = {m: read_small_curve(path, begun, evaluations, m) for m in MEASURES}
    if not all(map(math.isfinite, [*seconds, *(v for c in curves.values() for _, v in c)])):
        raise ValueError("a number is not finite")
    return RunOverview(
        rounds=int(begun["rounds"]),
        done=len(rounds),
        round_seconds=fmean(seconds) if seconds else None,
        curves={m: curve for m, curve in curves.items() if curve},
    )


def read_lines_by_kind(path: Path) -> tuple[bytes, list[bytes], list[bytes]]:
    """Read the lines of a run's start, evaluations and rounds from its event file, unparsed."""
    kinds: dict[str, list[bytes]] = {"start": [], "evaluation": [], "round": []}
    with translate_disk_errors(path), open_regular_file(path, MAX_EVENT_BYTES) as file:
        for line in file:
            kind = KIND.match(line)
            if kind and line.endswith(b"\n"):  # otherwise it is being written
                kinds.get(kind[1].decode(), []).append(line)
    return kinds["start"][0], kinds["evaluation"], kinds["round"]


def read_small_curve(
    path: Path, start: Any, evaluations: list[bytes], measure: Measure
) -> list[list[float]]:
    """Read a run's curve of a measure at evenly spaced evaluations, including the last one."""
    measured = [line for line in evaluations if f'"{measure}":null'.encode() not in line]
    stride = -(-len(measured) // MAX_POINTS) or 1
    events: list[Any] = [parse_json_line(path, line) for line in measured[::-stride]]
    curve = compute_curves([start, *reversed(events)])[measure]
    return [[t, round(v, 3)] for t, v in curve]


# Running ------------------------------------------------------------------------------------


def is_running(folder: Path, overview: RunOverview, held_locks: set[int], now: float) -> bool:
    """Return True if a process is executing the run: it holds the lock or has recently written an event.

    The lock of a process on another machine is invisible, so recent events count as well.
    """
    try:
        if (folder / "lock").stat().st_ino in held_locks:
            return True
    except OSError:
        pass
    try:
        events = (folder / EVENTS_FILE).stat()
    except OSError:
        return False
    if not events.st_size:  # before the first event, only the lock shows that it is running
        return False
    return now - events.st_mtime < max(
        QUIET_SECONDS, QUIET_ROUNDS * (overview.round_seconds or 0.0)
    )


def read_held_locks(path: Path = Path("/proc/locks")) -> set[int]:
    """Return the inodes of all files that processes on this machine have locked; take no lock.

    Trying to take a lock instead would disturb a run that starts at the same moment.
    """
    try:
        fields = [line.split() for line in path.read_text().splitlines()]
    except OSError:  # only Linux has /proc/locks
        return set()
    return {int(parts[5].rsplit(":", 1)[1]) for parts in fields if parts[1:2] == ["FLOCK"]}


PERCENT_COLUMNS = (
    Column("best", kind="percent", drop=4),
    Column("last", kind="percent", drop=1),
    Column("last 10", kind="percent", show="std"),
    Column("worst 10 % of clients", kind="percent", drop=3),
)
LOSS_COLUMN = Column("test loss", form=".4f", drop=2)
VALIDATION_COLUMN = Column("at best validation", kind="percent")
NETS_TITLE = "P in % by net, after the last round"
METRICS_TITLE = "other metrics, after the last round"


def build_run_tables(summary: Summary, folder: Path, trained: bool = False) -> list[ResultTable]:
    """Build the tables that ``heterophony run`` prints; ``trained`` adds P right after local training."""
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
            ["P, new clients at the end", *list_last_cells(new.P, worst)],
        ]
    name, score = get_display_name(summary.algorithm), SCORES.get(summary.task, "score")
    rounds = f"{summary.rounds} round{'s' * (summary.rounds != 1)}"
    main = ResultTable.build(
        ["", *PERCENT_COLUMNS, LOSS_COLUMN, VALIDATION_COLUMN],
        rows,
        f"{name}, {rounds}, seed {summary.seed}: {score} in %",
        list_run_notes(summary, folder),
    )
    optional = {LOSS_COLUMN: bool(loss), VALIDATION_COLUMN: summary.P.chosen is not None}
    kept = [c.name for c in main.columns[1:] if optional.get(c, True)]
    return [main.select(kept, "columns"), *build_net_tables(summary), *build_metric_tables(summary)]


def build_net_tables(summary: Summary) -> list[ResultTable]:
    """Build the table of P by net; empty if all clients have the same net."""
    columns: Columns = ["net", Column("clients"), Column("P", kind="percent")]
    rows: Rows = [[name, str(of.clients), of.P] for name, of in summary.nets.items()]
    return [ResultTable.build(columns, rows, NETS_TITLE)] if rows else []


def list_accuracy_cells(
    a: Accuracy | None, fair: Fairness | None = None, loss: float | None = None
) -> list[Value]:
    """List the cells of an accuracy (best, last, last 10, …) in the table of a run."""
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
    """List the cells of new clients, which are evaluated only once, in the table of a run."""
    return [None, last, None, worst, None, None]


def build_metric_tables(summary: Summary) -> list[ResultTable]:
    """Build the table of a run's further metrics; empty if there are none."""
    infos = [(get_metric_info(name), of) for name, of in summary.metrics.items()]
    rows = [[get_metric_title(i), *(i.format(of.get(m)) for m in "GP")] for i, of in infos]
    columns: Columns = ["", Column("G"), Column("P")]
    return [ResultTable.build(columns, rows, METRICS_TITLE)] if rows else []


def get_metric_title(info: MetricInfo) -> str:
    """Return the title of a metric in tables."""
    return info.title or info.name.replace("_", " ")


# Notes --------------------------------------------------------------------------------------


def list_run_notes(summary: Summary, folder: Path) -> list[str | None]:
    """List the notes below the table of a run: chance level, missing G, data, privacy and cost."""
    events = folder / EVENTS_FILE
    start = get_start(list(islice(read_events(events), 1)))
    return [
        describe_chance_level(summary, start),
        describe_lone_clients(read_events(events)),
        explain_missing_g(summary.algorithm, bool(summary.nets)) if summary.G is None else None,
        summary.data_remark,
        describe_privacy(summary) if summary.delta is not None else None,
        *describe_cost(summary),
        f"{folder}; a page with curves: heterophony report {folder}",
    ]


def describe_lone_clients(events: Iterable[Event]) -> str | None:
    """Return a note if every round of a run had a single client, so that nothing was averaged."""
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


def explain_missing_g(algorithm: str, nets_differ: bool = False) -> str:
    """Explain why a run has no G: there is no generic model, or the server cannot compute it."""
    name = get_display_name(algorithm)
    try:
        has_generic = get_algorithm_class(algorithm).common
    except ConfigError:  # a class from outside that this process has not imported
        return "no G: it was not measured"
    if not has_generic:
        return f"no G: {name} has no generic model"
    if nets_differ:
        return f"no G: the generic model of {name} needs personal parameters, and nets differ"
    return (
        f"no G: the generic model of {name} needs personal parameters, which stay on the boards"
        " (evaluation.share_personal = true sends them)"
    )


def describe_privacy(summary: Summary) -> str:
    """Describe the ε and δ of a run in one sentence."""
    bound = "no bound on ε" if summary.epsilon is None else f"ε = {summary.epsilon:.3f}"
    unit, how = summary.privacy["unit"], summary.privacy["accounting"]
    return (
        f"{bound} at δ = {summary.delta:g} for one {unit} ({how}); result.json lists what ε does"
        " not cover"
    )


def describe_cost(summary: Summary) -> list[str]:
    """Describe how many bytes and seconds a run took."""
    up, down = (f"{summary.bytes[way] / 1e6:.1f}" for way in ("up", "down"))
    simulated = summary.simulated_seconds
    clock = "" if simulated is None else f", {simulated:.1f} s on the simulated clock"
    out = [f"{down} MB down, {up} MB up, {summary.seconds:.1f} s{clock}"]
    if sent := summary.personal_bytes:
        out.append(
            f"G is computed from personal parameters: boards sent {sent / 1e6:.1f} MB of them for"
            " it (evaluation.share_personal)"
        )
    return out
