"""Reproduce a published table: run each cell and compare its numbers with the printed ones.

Only the runs are stored. The same command with the same folder shows the same table and continues
runs that are not finished.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..config.keys import rename_sections
from ..config.reading import read_config, resolve_config
from ..config.sections import EngineSection, parse_participation
from ..core.errors import ConfigError, DataError, FolderError
from ..data.sources import SOURCES
from ..engines.base import check_engine_installed, count_cores
from ..results.statistics import compute_confidence_interval
from ..runs.events import Event, get_start
from ..runs.folder import RunFolder
from ..studies.hooks import RunsProgress
from ..studies.load import prepare_pretraining, save_pretrained
from ..studies.many import RunOptions, run_all, run_many
from ..studies.run import is_finished
from ..studies.spec import RunSpec, read_spec
from . import verdicts
from .scaling import SHRINK_CONFIG, estimate_seconds, format_duration, measure_speed
from .table import GENERIC_LOSS, Cell, PublishedTable, TableScale, describe_variants

CellKey = tuple[str, str]  # row and column
OpenProgress = Callable[[Sequence[RunFolder]], AbstractContextManager[RunsProgress]]


@dataclass(frozen=True)
class CellRun:
    """One run of a published table's cell, with one seed."""

    cell: Cell
    seed: int

    @property
    def folder_name(self) -> str:
        """The name of the run's folder; the name includes the variant if the variant changes the settings."""
        row, column, seed = (
            re.sub(r"[^\w.]+", "-", part).strip("-").lower()
            for part in (self.cell.row, self.cell.column, str(self.seed))
        )
        return "--".join(filter(None, (row, column, self.cell.variant, seed)))

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the cell, with the seed."""
        return {**self.cell.config, "seed": self.seed}

    def compute_selection_probabilities(self, clients: int) -> list[float]:
        """Compute the probability that one draw selects each client, in client order."""
        rule, _ = parse_participation(self.cell.config.get("participation", {}))
        return [float(p) for p in rule.compute_probabilities(clients, self.seed)]


@dataclass(frozen=True)
class TableSelection:
    """The part of a published table to run: its rows, columns and seeds, at one scale."""

    published: PublishedTable
    scale: TableScale
    rows: str
    columns: str
    seeds: tuple[int, ...]
    checkpoint: Path | None = None  # the checkpoint that all runs start from

    def __post_init__(self) -> None:
        for kind, pattern, names in (
            ("row", self.rows, self.published.rows),
            ("column", self.columns, self.published.columns),
        ):
            if self.published.rows and not any(fnmatchcase(n, pattern) for n in names):
                raise ConfigError(
                    f"reproduce {self.published.name}: no {kind} matches '{pattern}'; there is:"
                    f" {'; '.join(names)}"
                )
        if not self.selected_cells:
            reason = self.published.needs or "no number is printed in these rows and columns"
            raise ConfigError(f"reproduce {self.published.name}: {reason}")

    @cached_property
    def selected_cells(self) -> list[Cell]:
        """The selected cells, with their settings at this scale."""
        chosen = [
            c
            for c in self.published.cells
            if fnmatchcase(c.row, self.rows) and fnmatchcase(c.column, self.columns)
        ]
        return [replace(c, config=self.scale_config(c.config)) for c in chosen]

    def scale_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Shrink a configuration of the table to this scale, and add the checkpoint."""
        shrink = SHRINK_CONFIG.get(self.scale)
        small = shrink(config) if shrink else deepcopy(dict(config))
        if self.checkpoint is not None:
            small["model"]["init"] = str(self.checkpoint)
        return small

    @cached_property
    def duplicates(self) -> dict[tuple[str, str], Cell]:
        """Cells whose run at this scale is the same as an earlier cell's, mapped to the earlier cell."""
        seen: dict[str, Cell] = {}
        out = {}
        for cell in self.selected_cells:
            first = seen.setdefault(json.dumps(cell.config, sort_keys=True), cell)
            if first is not cell:
                out[cell.row, cell.column] = first
        return out

    @property
    def distinct_cells(self) -> list[Cell]:
        """The selected cells without duplicates."""
        return [c for c in self.selected_cells if (c.row, c.column) not in self.duplicates]

    @cached_property
    def stand_ins(self) -> dict[str, tuple[str, ...]]:
        """The paper's columns that each column's runs stand for; empty at full scale.

        If several columns have the same runs at this scale, those runs stand for all of these columns.
        """
        if self.scale is TableScale.full:
            return {}
        owners: dict[str, set[str]] = {}
        for cell in self.selected_cells:
            first = self.duplicates.get((cell.row, cell.column), cell)
            owners.setdefault(cell.column, set()).add(first.column)
        first_of = {k: min(v) if len(v) == 1 else k for k, v in owners.items()}
        return {k: tuple(c for c in owners if first_of[c] == first_of[k]) for k in owners}

    def describe_column(self, cell: Cell) -> str:
        """Name a cell's column or, below full scale, the data that replace the paper's."""
        if not self.stand_ins:
            return cell.column
        return f"{cell.config['data']['name']} in place of {cell.column}"

    def explain_unavailable(self, cell: Cell) -> str | None:
        """Return why a cell cannot be run on this machine; None if the cell can be run."""
        if cell.needs:
            return f"needs {cell.needs}"
        name = cell.config["data"]["name"]
        if not SOURCES[name].available:
            return f"{name} is not on this machine: `heterophony data fetch {name}`"
        return None

    def describe_duplicates(self) -> list[str]:
        """List the rows or columns that become the same at this scale, in words."""
        pairs: dict[str, str] = {}
        for (row, column), first in self.duplicates.items():
            if column == first.column:
                pairs.setdefault(row, first.row)
            elif first.column not in self.stand_ins.get(column, ()):  # else the label names both
                pairs.setdefault(column, first.column)
        return [f"{a}: the same as {b} at this scale" for a, b in pairs.items()]

    @property
    def runs(self) -> list[CellRun]:
        """All runs that are possible on this machine, cell by cell."""
        runnable = [c for c in self.distinct_cells if self.explain_unavailable(c) is None]
        return [CellRun(cell, seed) for cell in runnable for seed in self.seeds]


def create_run_folders(table: TableSelection, parent: Path) -> None:
    """Create the run folders of a table before any run starts, so that all can resume."""
    if (parent / "config.toml").exists():
        raise FolderError(f"{parent} is the folder of a single run; choose another --out")
    for task in table.runs:
        folder = RunFolder(parent / task.folder_name)
        if folder.config_file.exists():
            check_same_settings(task, folder)
        else:
            config = resolve_config(task.config)
            folder.create(RunSpec(config).load_data().format_config())
            folder.close()


def check_same_settings(task: CellRun, folder: RunFolder) -> None:
    """Raise FolderError if an existing run folder holds a run whose settings differ from the cell's."""
    try:
        written = tomllib.loads(folder.read_config_text())
    except tomllib.TOMLDecodeError as error:
        raise FolderError(f"{folder.config_file} is damaged: {error}") from None
    for key, asked, there in find_differences(fill_group_clients(task.config), written):
        raise FolderError(
            f"{folder.path} holds a run with other settings ({key} is {there}, not {asked});"
            " choose another --out"
        )


def fill_group_clients(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a cell's settings with the clients of each net group written out, as config.toml stores them."""
    model = settings.get("model", {})
    if not {"group", "groups"} & set(model):
        return settings
    text = RunSpec(resolve_config(settings)).load_data().format_config()
    written = tomllib.loads(text)["model"]
    other = {k: v for k, v in model.items() if k not in ("group", "groups")}
    named = {k: written[k] for k in ("name", "group") if k in written}
    return settings | {"model": other | named}


def find_differences(
    expected: Mapping[str, Any], written: Any, prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the settings of a run that differ from a cell's; settings not in ``expected`` are not compared."""
    if not prefix:
        expected, written = rename_sections(expected), rename_sections(written)
    for key, value in expected.items():
        found = written.get(key) if isinstance(written, dict) else None
        if isinstance(value, dict):
            yield from find_differences(value, found, f"{prefix}{key}.")
        elif found != value:
            yield f"{prefix}{key}", value, found


def list_unfinished(table: TableSelection, parent: Path) -> list[CellRun]:
    """List the runs of a table that are not finished."""
    return [
        t
        for t in table.runs
        if not is_finished(list(RunFolder(parent / t.folder_name).iterate_events()))
    ]


def read_finished(table: TableSelection, parent: Path) -> Iterator[tuple[CellRun, list[Event]]]:
    """Yield the finished runs of a table with their events, one at a time to save memory."""
    for task in table.runs:
        events = list(RunFolder(parent / task.folder_name).iterate_events())
        if is_finished(events):
            yield task, events


@dataclass(frozen=True)
class ReproductionResult:
    """A reproduced table: its numbers next to the printed ones, and its claims."""

    table: TableSelection
    numbers: list[verdicts.ComparedNumber]
    claims: list[verdicts.Claim]
    diverged: list[str]  # which runs diverged, and why; they are left out of all numbers
    remarks: tuple[str, ...] = ()  # differences from the published data sets

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``table.json``."""
        published = self.table.published
        return {
            "table": published.name,
            "paper": f"{published.paper}, {published.where}",
            "what": published.what,
            "variant": published.variant or None,
            "variants": describe_variants(published, published.chosen),
            "scale": self.table.scale.value,
            "rounds": published.measured.rounds,
            "clients": published.measured.clients,
            "seeds": list(self.table.seeds),
            "lines": [describe_number(number) for number in self.numbers],
            "claims": [vars(claim) for claim in self.claims],
            "said": published.claims,
            "diverged": self.diverged,
            "pretrained_sha256": hash_checkpoint(self.table),
        }


# smallest and largest possible values; the score, a sum of logarithms, has none
MEASURE_BOUNDS: dict[str, dict[str, float]] = {
    **{m: {"lowest": 0.0, "highest": 100.0} for m in verdicts.ACCURACY_MEASURES},
    GENERIC_LOSS: {"lowest": 0.0},
}


def describe_number(number: verdicts.ComparedNumber) -> dict[str, Any]:
    """Return a compared number of a table as plain data for JSON."""
    printed, bounds = number.printed, MEASURE_BOUNDS.get(number.measure, {})
    interval = compute_confidence_interval(number.values, **bounds)
    return {
        "row": number.row,
        "column": number.label,
        "in_place_of": list(number.in_place_of),
        "data": number.data,
        "model": number.model,
        "measure": number.measure,
        "averaged_to_measure": number.averaged,
        "unit": number.unit,
        "printed": printed and {"value": printed.value, "std": printed.std},
        "seeds": list(number.seeds),
        "values": list(number.values),
        "mean": number.mean,
        "std": number.std,
        "ci95": interval and [interval.low, interval.high],
        "last10": list(number.last10),
        "difference": number.difference,
        "verdict": number.verdict,
        "why": number.why,
    }


def build_result(
    table: TableSelection, parent: Path, failed: Mapping[str, str]
) -> ReproductionResult:
    """Compare our numbers in a table with the printed ones; unfinished runs are left out.

    ``failed`` maps the folder names of runs that failed to the reason.
    """
    measured, remarks = measure_cells(table, parent)
    for key, first in table.duplicates.items():
        if get_cell_key(first) in measured:
            measured[key] = measured[get_cell_key(first)]
    numbers = verdicts.compare_numbers(
        table.selected_cells,
        measured,
        explain_incomparable(table, failed, remarks),
        table.stand_ins,
        printed_seeds=len(table.published.measured.seeds),
    )
    distinct = [n for n in numbers if (n.row, n.column) not in table.duplicates]
    diverged = [
        f"{task.cell.row}, {task.cell.column}, seed {task.seed}: {failed[task.folder_name]}"
        for task in table.runs
        if task.folder_name in failed
    ]
    claims = verdicts.check_claims(table.published, numbers)
    return ReproductionResult(
        table, distinct, claims, diverged, tuple(dict.fromkeys(remarks.values()))
    )


def hash_checkpoint(table: TableSelection) -> str | None:
    """Return the SHA-256 of the file that all runs of a table started from."""
    if table.checkpoint is None or not table.checkpoint.exists():
        return None
    return sha256(table.checkpoint.read_bytes()).hexdigest()


def measure_cells(
    table: TableSelection, parent: Path
) -> tuple[dict[CellKey, verdicts.ValuesBySeed], dict[CellKey, str]]:
    """Measure the finished runs of each cell of a table; also return notes on their data."""
    measured: dict[CellKey, verdicts.ValuesBySeed] = {}
    remarks: dict[CellKey, str] = {}
    for task, events in read_finished(table, parent):
        key = get_cell_key(task.cell)
        if remark := get_start(events).get("data_remark"):
            remarks.setdefault(key, remark)
        measured.setdefault(key, {})[task.seed] = verdicts.measure_run(
            events, table.published.measured
        )
    return measured, remarks


def explain_incomparable(
    table: TableSelection, failed: Mapping[str, str], remarks: Mapping[CellKey, str]
) -> dict[CellKey, str]:
    """Explain, by cell, why our numbers cannot be compared with the printed ones."""
    reasons = dict[CellKey, str]()
    if table.scale is not TableScale.full:
        reasons = {get_cell_key(c): f"{table.scale} scale" for c in table.selected_cells}
    reasons |= remarks
    for cell in table.distinct_cells:
        if reason := table.explain_unavailable(cell):
            reasons[get_cell_key(cell)] = reason
    for task in table.runs:
        if task.folder_name in failed:
            reasons[get_cell_key(task.cell)] = failed[task.folder_name]
    return reasons


def get_cell_key(cell: Cell) -> CellKey:
    """Return the row and column of a cell."""
    return cell.row, cell.column


CHECKPOINT_FILE = "pretrained.safetensors"  # in the folder of a table's runs
CONTINUE_HINT = "run the same command again to continue"
SHORT_RUN_SECONDS = 60  # if all runs are shorter than this, they run side by side, one core each


@dataclass(frozen=True)
class DueRun:
    """An unfinished run of a table, and the seconds it is estimated to take."""

    cell_run: CellRun
    folder: RunFolder
    seconds: float
    label: str

    @property
    def rounds(self) -> int:
        """The number of rounds in the settings."""
        rounds: int = self.cell_run.cell.config["rounds"]
        return rounds


def run_table(
    table: TableSelection,
    parent: Path,
    overrides: Sequence[str],
    workers: int | None,
    open_progress: OpenProgress,
    note: Callable[[str], None],
) -> ReproductionResult:
    """Execute the remaining runs of a published table; compare its numbers with the printed ones.

    ``overrides`` are settings of the engine. ``open_progress`` shows the progress of run folders;
    ``note`` receives the estimated duration and warnings.
    """
    engine, cores = read_config(None, overrides).engine, workers or count_cores()
    check_engine_installed(engine.name)
    engine.choose_compute()  # raises if the accelerator is not here
    if table.published.pretraining:
        table = pretrain_table(table, parent, overrides, workers, open_progress, note)
    due = prepare_due_runs(table, parent, cores)
    if due:
        time = format_duration(sum(d.seconds for d in due))
        note(f"{len(due)} run{'s' * (len(due) > 1)}, about {time} on this machine; {CONTINUE_HINT}")
    with open_progress([d.folder for d in due]) as progress:
        failed = run_due(due, engine, overrides, cores, workers, progress, note)
    return build_result(table, parent, failed)


def pretrain_table(
    table: TableSelection,
    parent: Path,
    overrides: Sequence[str],
    workers: int | None,
    open_progress: OpenProgress,
    note: Callable[[str], None],
) -> TableSelection:
    """Train the checkpoint of a table unless it exists; return the table with this checkpoint."""
    checkpoint = parent / CHECKPOINT_FILE
    found = replace(table, checkpoint=checkpoint)
    if not checkpoint.exists() and list_unfinished(found, parent):
        config = resolve_config(table.scale_config(table.published.pretraining))
        config = replace(config, engine=read_config(None, overrides).engine)
        folder, spec = prepare_pretraining(RunSpec(config), checkpoint)
        note(f"training {checkpoint} first, which all runs start from")
        with open_progress([folder]) as progress:
            run_all({folder: spec}, RunOptions(progress, workers, warn=note))
        save_pretrained(folder, spec, checkpoint)
    return found


def prepare_due_runs(table: TableSelection, parent: Path, cores: int) -> list[DueRun]:
    """Create the folders of all runs of a table; return the unfinished runs."""
    if not table.runs:
        reasons = dict.fromkeys(
            filter(None, (table.explain_unavailable(c) for c in table.distinct_cells))
        )
        raise DataError(f"reproduce {table.published.name}: {'; '.join(reasons)}")
    create_run_folders(table, parent)
    speed = measure_speed()
    return [
        DueRun(
            cell_run,
            RunFolder(parent / cell_run.folder_name),
            estimate_seconds(cell_run.cell.config, speed, cores),
            f"{cell_run.cell.row}, {table.describe_column(cell_run.cell)} (seed {cell_run.seed})",
        )
        for cell_run in list_unfinished(table, parent)
    ]


def run_due(
    due: Sequence[DueRun],
    engine: EngineSection,
    overrides: Sequence[str],
    cores: int,
    workers: int | None,
    progress: RunsProgress,
    warn: Callable[[str], None],
) -> dict[str, str]:
    """Execute the due runs of a table; return the folder names of diverged runs with the reasons."""
    runs = {d.folder: replace(read_spec(d.folder, overrides), name=d.label) for d in due}
    short = max((d.seconds for d in due), default=0.0) < SHORT_RUN_SECONDS
    workers = workers or (cores if short else None)
    options = RunOptions(progress, workers, side_by_side=short, warn=warn)
    return {path.name: reason for path, reason in run_many(runs, options).items()}
