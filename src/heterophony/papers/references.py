"""Tell whether a net has learned enough to count: FedAvg beside centralised training.

Below full scale, a cell counts only if FedAvg with its settings has settled, and reaches most of what
the same net learns from the same images in one place. Otherwise its numbers are of a net that has not
learned, and decide nothing. `docs/how-to/papers.md` states the same rules in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Any

from ..analysis.significance import compute_t_quantile
from ..runs.curve_points import Curve
from .claim_list import describe_settings
from .evidence import FULL, STAND_IN, StoredRun
from .medium import CENTRALISED, shrink_config
from .table import Cell, MeasurementRule, PublishedTable, index_cells

LEARNED_SHARE = 0.8  # of centralised training, that FedAvg must reach
LAST_PART = 0.2  # of the rounds, over which FedAvg must neither rise nor fall
FEDAVG = "fedavg"


@dataclass(frozen=True)
class TrainingState:
    """Whether the net of a cell has learned; None if nobody can tell. And why."""

    learned: bool | None
    why: str


class ReferenceRuns:
    """The runs of FedAvg and of centralised training, of all tables."""

    def __init__(self, runs: Iterable[StoredRun]) -> None:
        self.baselines: dict[str, dict[int, StoredRun]] = {}  # by settings and seed
        self.centralised: dict[tuple[str, str], dict[str, list[StoredRun]]] = {}  # by data and net
        for run in runs:
            config = None if run.numbers else find_settings(run)
            if config is None:
                continue
            if config["algorithm"]["name"] == FEDAVG:
                self.baselines.setdefault(describe_setting(config), {})[run.seed] = run
            elif config["algorithm"]["name"] == CENTRALISED:
                same = self.centralised.setdefault((run.data, run.model), {})
                same.setdefault(describe_settings(config), []).append(run)

    def check_cell(self, table: PublishedTable, cell: Cell, scale: str) -> TrainingState:
        """Check FedAvg with the settings of a cell of the table, with its chosen variants."""
        rule = table.measured
        config = shrink_to_scale(table.build_baseline(cell.row, cell.column), scale)
        runs = list(self.baselines.get(describe_setting(config), {}).values())
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
        moved, settled = measure_last_rise(runs)
        if not settled:
            points = f"{moved:+.1f} points over the last fifth of the rounds".replace("-", "−")
            moving = "rises" if moved > 0 else "falls"
            return TrainingState(False, f"{levels}, and still {moving}: {points}")
        return TrainingState(True, levels)

    def check_cells(
        self, table: PublishedTable, cells: Sequence[Cell], scale: str
    ) -> TrainingState:
        """Check all cells that a claim compares: one that has not learned is enough to say so."""
        found = [self.check_cell(table, cell, scale) for cell in cells]
        states = sorted(found, key=lambda s: (s.learned is not False, s.learned is not None))
        return states[0]


def find_settings(run: StoredRun) -> dict[str, Any] | None:
    """Find the settings of a run's cell; None if its table has no such cell any more."""
    cell = index_cells(run.table, run.variant).get((run.row, run.column))
    return None if cell is None else shrink_to_scale(cell.config, run.scale)


def shrink_to_scale(config: dict[str, Any], scale: str) -> dict[str, Any]:
    """Return the settings of a cell at a scale of stored runs."""
    if scale == FULL:
        return config
    return shrink_config(config, "always" if scale == STAND_IN else "never")


def describe_setting(config: dict[str, Any]) -> str:
    """Describe all that rows share: not the algorithm, and not the depth of its head."""
    model = {k: v for k, v in config["model"].items() if k != "head_depth"}
    return describe_settings({**config, "model": model}, "algorithm")


def measure_generic(run: StoredRun, rule: MeasurementRule) -> float:
    """Return the accuracy of a model for all, as the paper measures it."""
    found = run.measure(rule)
    return found.get("G", found["P"])


def measure_last_rise(runs: Sequence[StoredRun]) -> tuple[float, bool]:
    """Return by how many points G rises over the last part of the rounds, and if that may be noise.

    A straight line is fitted to the evaluations of each seed there. The rise is the mean over the seeds.
    It may be noise if its 95 % interval includes 0; the deviation of all evaluations from their lines,
    which is how G swings from round to round, gives the interval.
    """
    lines = [fit_line(run.points.get("G") or run.points["P"], run.rounds) for run in runs]
    freedom = sum(line.points - 2 for line in lines)
    if freedom < 1:
        return fmean(line.rise for line in lines), False
    variance = sum(line.squares for line in lines) / freedom
    error = sqrt(sum(variance * line.leverage for line in lines)) / len(lines)
    rise = fmean(line.rise for line in lines)
    return rise, abs(rise) <= compute_t_quantile(freedom) * error


@dataclass(frozen=True)
class FittedLine:
    """A line through the last evaluations of a run, in points of accuracy."""

    points: int
    rise: float  # over the last part of the rounds
    squares: float  # the squared deviations from the line, summed
    leverage: float  # the variance of the rise, in units of that of an evaluation


def fit_line(curve: Curve, rounds: int) -> FittedLine:
    """Fit a line to the last part of a curve."""
    length = LAST_PART * rounds
    part = [(t, 100 * v) for t, v in curve if t >= rounds - length]
    center, mean = fmean(t for t, _ in part), fmean(v for _, v in part)
    spread = sum((t - center) ** 2 for t, _ in part)
    if not spread:
        return FittedLine(2, 0.0, 0.0, 0.0)
    slope = sum((t - center) * (v - mean) for t, v in part) / spread
    squares = sum((v - mean - slope * (t - center)) ** 2 for t, v in part)
    return FittedLine(len(part), slope * length, squares, length**2 / spread)
