"""The results of sweeps and tunes, sorted by validation accuracy and never by test accuracy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..core.errors import FolderError
from ..core.files import read_json
from ..runs.curves import Accuracy, MeanStd
from ..runs.events import Event, Measure, get_end, get_start, select_rounds
from ..runs.run_index import (
    EVENTS_FILE,
    EarlyStop,
    describe_early_stop,
    read_early_stop,
    read_events,
)
from ..runs.summary import Summary, summarise
from .table import Cell, Column, Columns, ResultTable, Rows, Value

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepMeasure:
    """G or P for one combination of settings, as mean and deviation over its seeds.

    ``test`` is measured in the round with the highest validation accuracy; without validation examples, it is
    the mean of the last ten evaluations.
    """

    validation: MeanStd | None
    test: MeanStd


@dataclass(frozen=True)
class SweepRow:
    """One combination of settings and the results of its runs."""

    settings: dict[str, Any]
    seeds: list[int]
    folders: list[str]
    state: Literal["finished", "not finished", "stopped", "diverged"]
    P: SweepMeasure | None = None
    G: SweepMeasure | None = None
    reason: str = ""  # why the run diverged or was stopped early

    def get_measure(self, by: Measure) -> SweepMeasure | None:
        """Return P or G."""
        return self.P if by == "P" else self.G

    def rank(self, by: Measure) -> float:
        """Return the sort key of the row: lower for a higher validation accuracy."""
        measure = self.get_measure(by)
        return -measure.validation.mean if measure and measure.validation else math.inf


@dataclass(frozen=True)
class SweepTable:
    """The rows of a sweep, sorted by validation accuracy; unsorted without validation examples."""

    folder: Path
    keys: list[str]
    by: Measure
    rows: list[SweepRow]
    examples: int = 0  # number of validation examples, over all seeds of a row

    @property
    def chosen(self) -> SweepRow | None:
        """The row with the highest validation accuracy; None without validation examples."""
        first = self.rows[0] if self.rows else None
        return first if first and first.rank(self.by) < math.inf else None

    @property
    def validated(self) -> bool:
        """Whether the runs hold out validation examples."""
        return any(row.P is not None and row.P.validation is not None for row in self.rows)

    @property
    def best(self) -> dict[str, Any] | None:
        """The settings with the highest validation accuracy; None without validation examples."""
        return self.chosen.settings if self.chosen else None

    @property
    def standard_error(self) -> float | None:
        """The standard error of the chosen row's validation accuracy, from the number of examples."""
        if self.chosen is None or not self.examples:
            return None
        p = -self.chosen.rank(self.by)
        return math.sqrt(p * (1 - p) / self.examples)

    @property
    def close(self) -> list[SweepRow]:
        """The rows within one standard error of the chosen row, excluding the chosen row itself."""
        if self.chosen is None or self.standard_error is None:
            return []
        limit = self.chosen.rank(self.by) + self.standard_error
        return [row for row in self.rows[1:] if row.rank(self.by) <= limit]

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data for JSON."""
        return {
            "settings": self.keys,
            "by": self.by,
            "best": self.best,
            "standard_error": self.standard_error,
            "rows": [asdict(row) for row in self.rows],
        }

    def __repr__(self) -> str:
        return f"<Sweep of {len(self.rows)} settings: best {self.best}>"


def read_sweep(folder: Path, by: Measure = "P") -> SweepTable:
    """Read the results of a sweep so far from its folder."""
    if not (folder / SWEEP_FILE).is_file():
        raise FolderError(f"{folder} is not a sweep: it has no {SWEEP_FILE}")
    content = read_sweep_file(folder)
    rows, examples = [], 0
    for settings, runs in group_sweep_runs(content["runs"]):
        events = {n: list(read_events(folder / n / EVENTS_FILE)) for n in runs}
        stops = {n: stop for n in runs if (stop := read_early_stop(folder / n))}
        rows.append(build_sweep_row(settings, runs, events, content["failed"], stops))
        if rows[-1].state == "finished":
            examples = sum(sum(get_start(e).get("validation", [])) for e in events.values())
    return SweepTable(folder, content["settings"], by, sort_sweep_rows(rows, by), examples)


def read_sweep_file(folder: Path) -> dict[str, Any]:
    """Read ``sweep.json``: the settings that a sweep varies, its runs, and which of them diverged."""
    path = folder / SWEEP_FILE
    content: dict[str, Any] = read_json(path)
    try:
        runs, failed, keys = content["runs"], content["failed"], content["settings"]
        forms = [isinstance(r["settings"], dict) and type(r["seed"]) is int for r in runs.values()]
        # a name such as ../mine would point outside this folder
        names = [name not in ("", ".", "..") and "/" not in name for name in runs]
        right = all([*forms, *names]) and isinstance(failed, dict) and isinstance(keys, list)
    except (KeyError, TypeError, AttributeError):
        right = False
    if not right:
        raise FolderError(f"{path} is damaged: it does not list the runs of a sweep")
    return content


def group_sweep_runs(runs: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, int]]]:
    """Group the runs of a sweep by settings; return each group's settings and seeds by run name."""
    groups: dict[str, tuple[dict[str, Any], dict[str, int]]] = {}
    for name, run in runs.items():
        _, seeds = groups.setdefault(json.dumps(run["settings"]), (run["settings"], {}))
        seeds[name] = run["seed"]
    return list(groups.values())


def build_sweep_row(
    settings: dict[str, Any],
    runs: Mapping[str, int],
    events: Mapping[str, Sequence[Event]],
    failed: Mapping[str, str],
    stops: Mapping[str, EarlyStop],
) -> SweepRow:
    """Build the sweep row of one combination of settings from the events of its runs."""
    seeds, names = list(runs.values()), list(runs)
    reasons = [failed[n] for n in names if n in failed]
    if reasons:
        return SweepRow(settings, seeds, names, "diverged", reason=reasons[0])
    if any(get_end(events[n]) is None for n in names if n not in stops):
        return SweepRow(settings, seeds, names, "not finished")
    if stops:
        reason = describe_early_stop(next(iter(stops.values())))
        return SweepRow(settings, seeds, names, "stopped", reason=reason)
    summaries = [summarise(events[n]) for n in names]
    measures = {m: average_sweep_measure(summaries, m) for m in ("P", "G")}
    return SweepRow(settings, seeds, names, "finished", measures["P"], measures["G"])


def average_sweep_measure(summaries: Sequence[Summary], name: str) -> SweepMeasure | None:
    """Average G or P over the seeds of a combination of settings; None if the algorithm has no such model."""
    found: list[Accuracy] = [a for s in summaries if (a := getattr(s, name)) is not None]
    if len(found) < len(summaries):
        return None
    chosen = [a.chosen for a in found if a.chosen]
    if len(chosen) < len(found):
        return SweepMeasure(None, MeanStd.from_values([a.last10.mean for a in found]))
    return SweepMeasure(
        MeanStd.from_values([c.validation for c in chosen]),
        MeanStd.from_values([c.test for c in chosen]),
    )


def sort_sweep_rows(rows: Sequence[SweepRow], by: Measure) -> list[SweepRow]:
    """Sort the rows of a sweep by validation accuracy; unfinished rows come last."""
    return sorted(rows, key=lambda row: (row.state != "finished", row.rank(by)))


@dataclass(frozen=True)
class TunedAlgorithm:
    """The trials of one algorithm in a tune."""

    label: str
    sweep: SweepTable
    rounds: int  # rounds that were run, over all trials and seeds

    @property
    def trials(self) -> list[SweepRow]:
        """The trials in the order in which they were proposed."""
        found = {tuple(row.folders): row for row in self.sweep.rows}
        groups = group_sweep_runs(read_sweep_file(self.sweep.folder)["runs"])
        return [found[tuple(runs)] for _, runs in groups]

    def count(self, state: str) -> int:
        """Count the algorithm's trials in a state, such as ``stopped``."""
        return sum(row.state == state for row in self.sweep.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the search as plain data for JSON."""
        return {
            "algorithm": self.label,
            "trials": len(self.sweep.rows),
            "stopped": self.count("stopped"),
            "diverged": self.count("diverged"),
            "rounds": self.rounds,
            **self.sweep.to_dict(),
        }


@dataclass(frozen=True)
class TuneTable:
    """The results of a tune: the trials of every algorithm, in the given order."""

    folder: Path
    by: Measure
    algorithms: list[TunedAlgorithm]

    @property
    def best(self) -> dict[str, dict[str, Any] | None]:
        """The settings with the highest validation accuracy, by algorithm."""
        return {a.label: a.sweep.best for a in self.algorithms}

    def __getitem__(self, label: str) -> SweepTable:
        return next(a.sweep for a in self.algorithms if a.label == label)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data for JSON."""
        return {
            "by": self.by,
            "best": self.best,
            "algorithms": [a.to_dict() for a in self.algorithms],
        }

    def __repr__(self) -> str:
        return f"<Tune of {', '.join(self.best)}: best {self.best}>"


def read_tune(folder: Path, labels: Iterable[str], by: Measure) -> TuneTable:
    """Read the trials of a tune so far from its folder."""
    found = []
    for label in labels:
        if not (folder / label / SWEEP_FILE).is_file():
            continue
        sweep = read_sweep(folder / label, by)
        names = [name for row in sweep.rows for name in row.folders]
        events = (read_events(folder / label / name / EVENTS_FILE) for name in names)
        found.append(TunedAlgorithm(label, sweep, sum(len(select_rounds(e)) for e in events)))
    return TuneTable(folder, by, found)


# Tables -------------------------------------------------------------------------------------


def format_value(value: Any) -> str:
    """Format the value of a setting as TOML, on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{k} = {format_value(v)}' for k, v in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    return json.dumps(value) if isinstance(value, bool | str) else repr(value)


def shorten_keys(keys: Iterable[str]) -> dict[str, str]:
    """Map setting keys to their last parts, such as ``lr`` for ``training.lr``, if those parts are distinct."""
    keys = list(keys)
    last = [k.rpartition(".")[2] for k in keys]
    unclear = len(set(last)) < len(last) or "name" in last or "kind" in last
    return {k: k if unclear else short for k, short in zip(keys, last, strict=True)}


def format_settings(settings: Mapping[str, Any]) -> str:
    """Format settings briefly, as in ``lr=0.01 batch=20``."""
    short = shorten_keys(settings)
    return " ".join(f"{short[k]}={format_setting(v)}" for k, v in settings.items())


def format_setting(value: Any) -> str:
    """Format the value of a setting for a table; text is shown without quotes."""
    return value if isinstance(value, str) else format_value(value)


def build_sweep_table(sweep: SweepTable) -> ResultTable:
    """Build the table of a sweep; notes describe the chosen settings and how certain the choice is."""
    parts = ("valid", "test") if sweep.validated else ("last 10",)
    measured = [Column(f"{m} {p}", kind="percent", show="std") for m in "PG" for p in parts]
    rows: Rows = [
        [
            *(format_setting(row.settings[key]) for key in sweep.keys),
            *list_measure_cells(row, sweep.validated),
        ]
        for row in sweep.rows
    ]
    order = f"sorted by {sweep.by} on validation examples" if sweep.chosen else "not sorted"
    seeds = len(sweep.rows[0].seeds)
    notes = [f"± over {seeds} seeds"] if seeds > 1 else []
    if sweep.validated:
        notes.append("test: in the round with the highest validation accuracy")
    notes += describe_choice(sweep) if sweep.chosen else [explain_no_choice(sweep)]
    notes += [
        f"{format_settings(r.settings)}: diverged: {r.reason}" for r in sweep.rows if r.reason
    ]
    columns: Columns = [*shorten_keys(sweep.keys).values(), *measured]
    return ResultTable.build(columns, rows, f"accuracy in %, {order}", notes)


def list_measure_cells(row: SweepRow, validated: bool) -> list[Cell]:
    """List the cells of a sweep row's measures, or its state if it did not finish."""
    if row.state != "finished":
        return [Cell(row.state), *[Cell("")] * (3 if validated else 1)]
    several, cells = len(row.seeds) > 1, []
    for measure in (row.P, row.G):
        numbers = [measure.validation, measure.test] if measure else [None, None]
        for of in numbers if validated else numbers[1:]:
            cells.append(Cell(of.mean, of.std if several else None) if of else Cell())
    return cells


def explain_no_choice(sweep: SweepTable) -> str:
    """Explain why a sweep chose no settings, and how to get a choice."""
    if sweep.validated:
        return f"nothing is chosen: no run has {sweep.by}; leave out --by"
    if all(row.state != "finished" for row in sweep.rows):
        return "nothing is chosen: no run has finished"
    return (
        "nothing is chosen on test data; to choose the best, hold out validation examples:"
        " -c data.validation_fraction=0.2"
    )


def describe_choice(sweep: SweepTable) -> list[str]:
    """Describe a sweep's chosen settings, how certain the choice is, and how to train with them."""
    row, error = sweep.chosen, sweep.standard_error
    if row is None or error is None:
        return []
    close = len(sweep.close)
    others = f"; {close} more within its standard error" if close else ""
    points = f" ({100 * error:.2f} points)" if close else ""
    config = sweep.folder / row.folders[0] / "config.toml"
    return [
        f"chosen: {format_settings(row.settings)}{others}{points}",
        f"train with it on all examples: heterophony run {config} -c data.validation_fraction=0",
    ]


def build_tune_table(tune: TuneTable, trials: int, keep: bool) -> ResultTable:
    """Build the table of a tune: the chosen settings of each algorithm or, with ``keep``, all trials."""
    measured = [
        Column(t, kind="percent", show="std") for t in ("P valid", "P test", "G valid", "G test")
    ]
    seeds = max((len(r.seeds) for a in tune.algorithms for r in a.sweep.rows), default=1)
    spread = f"± over {seeds} seeds" if seeds > 1 else None
    few = [
        f"{a.label}: there are only {tried} combinations to try"
        for a in tune.algorithms
        if (tried := len(a.sweep.rows)) < trials
    ]
    if keep:
        rows: Rows = [
            [a.label, format_settings(row.settings), *list_measure_cells(row, True)]
            for a in tune.algorithms
            for row in a.trials
        ]
        title = "accuracy in %, not sorted: nothing is chosen"
        return ResultTable.build(["algorithm", "settings", *measured], rows, title, [spread, *few])
    counted = [Column(t, form="d") for t in ("trials", "stopped", "diverged", "rounds")]
    rows = [[a.label, *list_tuned_cells(a)] for a in tune.algorithms]
    notes = [f"{a.label}: {describe_tuned(a)}" for a in tune.algorithms]
    notes.append("test: in the round with the highest validation accuracy")
    title = f"accuracy in %, settings chosen by {tune.by} on validation examples"
    columns: Columns = ["algorithm", *measured, *counted]
    return ResultTable.build(columns, rows, title, [*notes, spread, *few])


def list_tuned_cells(algorithm: TunedAlgorithm) -> list[Value]:
    """List an algorithm's cells for the table of a tune."""
    chosen = algorithm.sweep.chosen
    return [
        *([""] * 4 if chosen is None else list_measure_cells(chosen, True)),
        len(algorithm.sweep.rows),
        algorithm.count("stopped"),
        algorithm.count("diverged"),
        algorithm.rounds,
    ]


def describe_tuned(algorithm: TunedAlgorithm) -> str:
    """Describe the settings that a tune chose, and how many trials are within the standard error."""
    if algorithm.sweep.chosen is None:
        return "nothing is chosen: no trial has finished"
    close = len(algorithm.sweep.close)
    others = f"; {close} more within its standard error" if close else ""
    return f"chosen {format_settings(algorithm.sweep.chosen.settings)}{others}"
