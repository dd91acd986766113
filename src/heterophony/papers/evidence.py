"""Runs as evidence for published claims: store them, match them to cells, and check that nets have learned.

``results/TABLE-SCALE.json`` in this package holds runs of the cells of a table, one per line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from itertools import combinations
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from ..config.reading import resolve_config
from ..core.errors import DataError
from ..core.files import write_atomically
from ..results.runs import Run
from ..results.statistics import compute_t_quantile
from ..runs.curves import Curve, compute_curves
from .claim_list import encode_cell_settings
from .reproduce import find_differences
from .scaling import CENTRALISED, keeps_dataset, shrink_to_medium
from .table import VARIANT_SIGN, Cell, MeasurementRule, PublishedTable, TableScale, index_cells
from .verdicts import measure_curves

STORED_RUNS = files(__package__) / "results"
DIGITS = 3  # decimals of stored accuracies, in percent
FULL, MEDIUM = TableScale.full.value, TableScale.medium.value
JUDGED_SCALES = (FULL, MEDIUM)  # quick runs are left out: they say nothing about a paper
STAND_IN = "stand-in"  # the medium scale on data that stand in for the paper's: shown, never judged
MOST_VARIANTS = 2  # variants that are combined at most


@dataclass(frozen=True)
class StoredRun:
    """One run of a cell with one seed: its accuracies over the rounds, in percent."""

    table: str
    scale: str
    row: str
    column: str
    variant: str  # names of the table's variants, joined by "+"; empty: as the paper's text says
    seed: int
    data: str
    model: str
    rounds: int
    evaluated: list[int]  # number of rounds before each evaluation
    curves: dict[str, list[float]]  # "G" and "P" as the paper averages them, one per evaluation
    core_seconds: float
    settings_sha256: str  # digest of the cell's settings
    data_sha256: str
    model_sha256: str
    version: str
    remark: str = ""  # differences from the published data set of the same name
    # measures other than accuracies, by name
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, str, str, int]:
        """The key that identifies the run; a later run with the same key replaces this one."""
        return self.table, self.scale, self.row, self.column, self.variant, self.seed

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; leave out ``numbers`` if it is empty."""
        return {k: v for k, v in asdict(self).items() if k != "numbers" or v}

    @cached_property
    def points(self) -> dict[str, list[tuple[int, float]]]:
        """(round, accuracy) of "G" and "P", as fractions."""
        return {
            k: [(t, v / 100) for t, v in zip(self.evaluated, values, strict=True)]
            for k, values in self.curves.items()
        }

    def measure(self, rule: MeasurementRule) -> dict[str, float]:
        """Return the numbers of this run, as in the paper and over the last ten evaluations."""
        return measure_curves({"G": [], "P": [], **self.points}, rule)


# Files --------------------------------------------------------------------------------------


def read_stored_runs() -> list[StoredRun]:
    """Read all runs that are shipped with the package."""
    if not STORED_RUNS.is_dir():
        return []
    names = sorted(p.name for p in STORED_RUNS.iterdir() if p.name.endswith(".json"))
    return [
        run
        for n in names
        for run in parse_stored_runs((STORED_RUNS / n).read_text(encoding="utf-8"), n)
    ]


def parse_stored_runs(text: str, name: str) -> list[StoredRun]:
    """Parse the runs in a file of ``results/``."""
    try:
        return [StoredRun(**run) for run in json.loads(text)["runs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{name} is damaged, or was written by another version: {error}") from None


def write_stored_runs(folder: Path, runs: Iterable[StoredRun]) -> list[Path]:
    """Write runs as ``TABLE-SCALE.json`` files into a folder; return the files."""
    by_file: dict[str, list[StoredRun]] = {}
    for run in sorted(runs, key=lambda run: run.key):
        by_file.setdefault(f"{run.table}-{run.scale}.json", []).append(run)
    for name, group in by_file.items():
        lines = ",\n".join(json.dumps(run.to_dict(), separators=(",", ":")) for run in group)
        write_atomically(folder / name, f'{{"runs":[\n{lines}\n]}}\n'.encode())
    return [folder / name for name in by_file]


def merge_stored_runs(*groups: Iterable[StoredRun]) -> list[StoredRun]:
    """Merge groups of stored runs; of several with the same cell and seed, keep the last."""
    return list({run.key: run for group in groups for run in group}.values())


# Run folders --------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellAtScale:
    """A cell of a published table, with its settings at one scale and with one variant."""

    table: PublishedTable
    scale: str  # one of JUDGED_SCALES, or STAND_IN
    cell: Cell
    variant: str

    def store_run(self, run: Run) -> StoredRun:
        """Return a finished run of this cell as a ``StoredRun``."""
        summary, rule = run.summary, self.table.measured
        if summary is None:
            raise ValueError(f"{run.folder} is not finished")
        curves = {k: c for k, c in compute_curves(run.events, rule.clients).items() if k in "GP"}
        evaluated = [t for t, _ in curves["P"]]
        return StoredRun(
            table=self.table.name,
            scale=self.scale,
            row=self.cell.row,
            column=self.cell.column,
            variant=self.variant,
            seed=run.seed,
            data=run.config["data"]["name"],
            model=run.config["model"]["name"],
            rounds=summary.rounds,
            evaluated=evaluated,
            curves={
                k: [round(100 * v, DIGITS) for _, v in curve]
                for k, curve in curves.items()
                if [t for t, _ in curve] == evaluated
            },
            core_seconds=round(sum(summary.work.values()), 1),
            settings_sha256=digest_settings(self.cell.config),
            data_sha256=summary.data_sha256,
            model_sha256=summary.model_sha256,
            version=summary.version,
            remark=summary.data_remark or "",
        )


def digest_settings(config: Mapping[str, Any]) -> str:
    """Return a digest of a cell's settings."""
    return sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def list_cells_at_scales(tables: Iterable[PublishedTable]) -> list[CellAtScale]:
    """List all cells of tables to which runs can belong, with up to two variants, at full and medium scale.

    Cells on data other than the paper's are left out if they equal another cell of the table.
    """
    out = []
    for table in tables:
        for names in list_variant_choices(table):
            cells = [
                cell
                for cell in table.choose_variants(names).cells
                if cell.variant == VARIANT_SIGN.join(names)  # else it changes nothing in this cell
            ]
            out += [CellAtScale(table, FULL, cell, cell.variant) for cell in cells]
            small = [at for cell in cells for at in shrink_cell(table, cell)]
            judged = [at.cell.config for at in small if at.scale == MEDIUM]
            out += [at for at in small if at.scale == MEDIUM or at.cell.config not in judged]
    return out


def list_variant_choices(table: PublishedTable) -> list[tuple[str, ...]]:
    """List the choices of a table's variants: none, each one, and each pair."""
    return [c for n in range(MOST_VARIANTS + 1) for c in combinations(table.variants, n)]


def shrink_cell(table: PublishedTable, cell: Cell) -> list[CellAtScale]:
    """Return the medium-scale versions of a cell: on the paper's data set, and on its stand-in."""
    full = cell.config["data"]["name"]
    own, other = (shrink_to_medium(cell.config, use) for use in ("never", "always"))
    kept = keeps_dataset(full, own["data"]["name"])
    found = {MEDIUM: own} if kept else {}
    if not keeps_dataset(full, other["data"]["name"]):
        found[STAND_IN] = other
    return [
        CellAtScale(table, scale, replace(cell, config=config), cell.variant)
        for scale, config in found.items()
    ]


def match_runs_to_cells(runs: Sequence[Run], cells: Sequence[CellAtScale]) -> Iterator[StoredRun]:
    """Yield a ``StoredRun`` for each finished run and each cell with the same settings."""
    for run in runs:
        if run.summary is None:
            continue
        for at in cells:
            if is_run_of_cell(at.cell.config, run.config):
                yield at.store_run(run)


def is_run_of_cell(cell: Mapping[str, Any], run: Mapping[str, Any]) -> bool:
    """Return True if a run has the settings of a cell, and defaults for the algorithm's other settings."""
    if next(find_differences(cell, run), None) is not None:
        return False
    usual = asdict(resolve_config(dict(cell)).algorithm)
    mine = {k: v for k, v in run["algorithm"].items() if k not in cell["algorithm"]}
    return all(usual.get(k) == v for k, v in mine.items())


LEARNED_SHARE = 0.8  # share of centralised training's accuracy that FedAvg must reach
LAST_PART = 0.2  # last part of the rounds, in which FedAvg must neither rise nor fall
FEDAVG = "fedavg"


@dataclass(frozen=True)
class TrainingState:
    """Whether FedAvg has learned with the settings of a cell (None: unknown), and the reason."""

    learned: bool | None
    why: str


class ReferenceRuns:
    """The runs of FedAvg and of centralised training, which show whether the cells of claims have learned."""

    def __init__(self, runs: Iterable[StoredRun]) -> None:
        self.baselines: dict[str, dict[int, StoredRun]] = {}  # settings -> seed -> run
        # (data, net) -> runs
        self.centralised: dict[tuple[str, str], dict[str, list[StoredRun]]] = {}
        for run in runs:
            config = None if run.numbers else find_cell_settings(run)
            if config is None:
                continue
            if config["algorithm"]["name"] == FEDAVG:
                self.baselines.setdefault(encode_shared_settings(config), {})[run.seed] = run
            elif config["algorithm"]["name"] == CENTRALISED:
                same = self.centralised.setdefault((run.data, run.model), {})
                same.setdefault(encode_cell_settings(config), []).append(run)

    def check_cell(self, table: PublishedTable, cell: Cell, scale: str) -> TrainingState:
        """Check whether FedAvg has learned with the settings of a cell and the chosen variants."""
        rule = table.measured
        config = shrink_to_scale(table.build_baseline(cell.row, cell.column), scale)
        runs = list(self.baselines.get(encode_shared_settings(config), {}).values())
        if len(runs) < 2:
            return TrainingState(None, "FedAvg was not run with these settings and several seeds")
        pooled = self.centralised.get((runs[0].data, runs[0].model))
        if not pooled:
            names = f"{runs[0].model} on {runs[0].data}"
            return TrainingState(None, f"no centralised training of {names} to compare FedAvg with")
        most = max(fmean(measure_generic(run, rule) for run in own) for own in pooled.values())
        reached = fmean(measure_generic(run, rule) for run in runs)
        share = f"{reached / most:.3g} of the {most:.1f} of centralised training"
        levels = f"FedAvg's G is {reached:.1f}, {share}"
        if reached < LEARNED_SHARE * most:
            return TrainingState(False, levels)
        curves = [run.points.get("G") or run.points["P"] for run in runs]
        moved, settled = measure_last_rise(curves, runs[0].rounds)
        if not settled:
            points = f"{moved:+.1f} points over the last fifth of the rounds".replace("-", "−")
            moving = "rises" if moved > 0 else "falls"
            return TrainingState(False, f"{levels}, and still {moving}: {points}")
        return TrainingState(True, levels)

    def check_cells(
        self, table: PublishedTable, cells: Sequence[Cell], scale: str
    ) -> TrainingState:
        """Check all cells that a claim compares; return the state of the worst one."""
        found = [self.check_cell(table, cell, scale) for cell in cells]
        states = sorted(found, key=lambda s: (s.learned is not False, s.learned is not None))
        return states[0]


def find_cell_settings(run: StoredRun) -> dict[str, Any] | None:
    """Return the settings of a stored run's cell; None if its table no longer has this cell."""
    cell = index_cells(run.table, run.variant).get((run.row, run.column))
    return None if cell is None else shrink_to_scale(cell.config, run.scale)


def shrink_to_scale(config: dict[str, Any], scale: str) -> dict[str, Any]:
    """Shrink the settings of a cell to a scale of stored runs."""
    if scale == FULL:
        return config
    return shrink_to_medium(config, "always" if scale == STAND_IN else "never")


def encode_shared_settings(config: dict[str, Any]) -> str:
    """Encode the settings that a cell shares with other rows: all but the algorithm and the head's depth."""
    model = {k: v for k, v in config["model"].items() if k != "head_depth"}
    return encode_cell_settings({**config, "model": model}, "algorithm")


def measure_generic(run: StoredRun, rule: MeasurementRule) -> float:
    """Return the G of a stored run, measured as in the paper; without a generic model, its P."""
    found = run.measure(rule)
    return found.get("G", found["P"])


def measure_last_rise(curves: Sequence[Curve], rounds: int) -> tuple[float, bool]:
    """Measure how many points a curve rises over the last part of the rounds, and whether the rise may be noise.

    A straight line is fitted to each seed's evaluations in that part. The rise is the mean over the seeds.
    It may be noise if its 95 % interval includes 0. The interval is computed from the deviation of all
    evaluations from their lines, that is, from how much a curve swings from round to round.
    """
    lines = [fit_line(curve, rounds) for curve in curves]
    freedom = sum(line.points - 2 for line in lines)
    if freedom < 1:
        return fmean(line.rise for line in lines), False
    variance = sum(line.squares for line in lines) / freedom
    error = sqrt(sum(variance * line.leverage for line in lines)) / len(lines)
    rise = fmean(line.rise for line in lines)
    return rise, abs(rise) <= compute_t_quantile(freedom) * error


@dataclass(frozen=True)
class FittedLine:
    """A straight line through the last evaluations of a run, in points of accuracy."""

    points: int
    rise: float  # over the last part of the rounds
    squares: float  # the squared deviations from the line, summed
    leverage: float  # the variance of the rise, relative to the variance of an evaluation


def fit_line(curve: Curve, rounds: int) -> FittedLine:
    """Fit a straight line to the last part of an accuracy curve."""
    length = LAST_PART * rounds
    part = [(t, 100 * v) for t, v in curve if t >= rounds - length]
    center, mean = fmean(t for t, _ in part), fmean(v for _, v in part)
    spread = sum((t - center) ** 2 for t, _ in part)
    if not spread:
        return FittedLine(2, 0.0, 0.0, 0.0)
    slope = sum((t - center) * (v - mean) for t, v in part) / spread
    squares = sum((v - mean - slope * (t - center)) ** 2 for t, v in part)
    return FittedLine(len(part), slope * length, squares, length**2 / spread)
