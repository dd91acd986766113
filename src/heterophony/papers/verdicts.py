"""Our numbers beside the printed ones: what differs by more than noise, and which claims hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import log
from statistics import fmean, stdev
from typing import Literal

from ..run.events import Event
from ..run.summary import compute_curves
from .table import Cell, Experiment, MeasurementRule, Ordering, PrintedNumber

NOISE_BANDS = {
    "G": 2.0,
    "P": 0.7,
    "score": 0.05,
}  # between seeds and platforms, in the table's units
ACCURACY_MEASURES = ("G", "P")
Verdict = Literal["within noise", "better", "worse", "not comparable", "no number printed"]
ValuesBySeed = dict[int, dict[str, float]]  # of a cell, by seed: measure, and "measure last10"


@dataclass(frozen=True)
class ComparedNumber:
    """One number of a table: as printed, and as it came out here."""

    row: str
    column: str
    data: str  # what it was measured on here
    measure: str
    printed: PrintedNumber | None
    seeds: tuple[int, ...]
    values: tuple[float, ...]  # one for each seed, as the paper makes its number
    last10: tuple[float, ...]  # the mean over the last ten evaluations, for each seed
    verdict: Verdict
    why: str = ""

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Over the seeds, of the sample."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus printed; None where the two measure different things."""
        if self.mean is None or self.printed is None or self.verdict == "not comparable":
            return None
        return self.mean - self.printed.value


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper's numbers have, and whether ours have it; None: cannot be told."""

    text: str
    holds: bool | None
    why: str


def measure_run(events: Sequence[Event], how: MeasurementRule) -> dict[str, float]:
    """The numbers of one run, accuracies in percent: as the paper makes them, and the last ten."""
    lines = compute_curves(events, how.clients)
    out: dict[str, float] = {}
    for rounds, suffix in ((how.rounds, ""), ("last10", " last10")):
        part = {
            m: 100 * aggregate_rounds([v for _, v in lines[m]], rounds)
            for m in ACCURACY_MEASURES
            if lines[m]
        }
        if len(part) == len(ACCURACY_MEASURES) and all(part.values()):
            part["score"] = sum(log(part[m] / 10) for m in ACCURACY_MEASURES)
        out |= {f"{m}{suffix}": v for m, v in part.items()}
    return out


def aggregate_rounds(values: Sequence[float], rounds: str) -> float:
    return {"best": max(values), "last": values[-1], "last10": fmean(values[-10:])}[rounds]


def compare_numbers(
    cells: Sequence[Cell],
    ours: Mapping[tuple[str, str], ValuesBySeed],
    reasons: Mapping[tuple[str, str], str],
) -> list[ComparedNumber]:
    """Every number of these cells; a reason says why a cell cannot be compared."""
    out = []
    for cell in cells:
        at = (cell.row, cell.column)
        values, why = ours.get(at, {}), reasons.get(at, "")
        for measure in tuple(cell.printed) or ACCURACY_MEASURES:
            by_seed = {s: v for s, v in values.items() if measure in v}
            here = tuple(v[measure] for v in by_seed.values())
            late = tuple(v[f"{measure} last10"] for v in by_seed.values())
            printed, data = cell.printed.get(measure), cell.config["data"]["name"]
            verdict, because = judge_number(measure, printed, here, why)
            out.append(
                ComparedNumber(
                    *at, data, measure, printed, tuple(by_seed), here, late, verdict, because
                )
            )
    return out


def judge_number(
    measure: str, printed: PrintedNumber | None, ours: Sequence[float], why: str
) -> tuple[Verdict, str]:
    """Noise is what seeds and platforms differ by, or twice the printed deviation if larger."""
    if why or not ours:
        return "not comparable", why or f"no {measure} was measured"
    if printed is None:
        return "no number printed", ""
    band = compute_noise_band(measure, printed)
    gap = round(fmean(ours) - printed.value, 9)  # 0.7 is not more than 0.7
    if abs(gap) <= band:
        return "within noise", f"± {band:g}"
    return ("better" if gap > 0 else "worse"), f"± {band:g}"


def compute_noise_band(measure: str, printed: PrintedNumber) -> float:
    return max(NOISE_BANDS.get(measure, 0.0), 2 * (printed.std or 0.0))


# Claims -------------------------------------------------------------------------------------


def check_claims(found: Experiment, lines: Sequence[ComparedNumber]) -> list[Claim]:
    """Every ordering of the table, in every column that was asked for."""
    columns = dict.fromkeys(line.column for line in lines)
    return [
        check_ordering(ordering, column, lines)
        for ordering in found.orderings
        for column in columns
        if fnmatchcase(column, ordering.columns)
    ]


def check_ordering(ordering: Ordering, column: str, lines: Sequence[ComparedNumber]) -> Claim:
    here = {
        line.row: line
        for line in lines
        if (line.column, line.measure) == (column, ordering.measure)
    }
    others = [r for r in here if r != ordering.above and fnmatchcase(r, ordering.below)]
    below = "all others" if ordering.below == "*" else ordering.below
    text = f"{column}: {ordering.measure} of {ordering.above} is above {below}"
    top = here.get(ordering.above)
    if top is None or not others:
        return Claim(text, None, "not all of its rows were asked for")
    gaps = {r: gap for r in others if (gap := compute_mean_gap(top, here[r])) is not None}
    if len(gaps) < len(others):
        return Claim(text, None, f"no numbers of {', '.join(r for r in others if r not in gaps)}")
    nearest = min(gaps, key=lambda r: gaps[r])
    gap = gaps[nearest]
    seeds = f"{len(top.seeds)} seed{'s' if len(top.seeds) > 1 else ''}"
    if gap > 0:
        return Claim(text, True, f"by {gap:.2f} over {nearest}, {seeds}")
    return Claim(text, False, f"{nearest} is above it by {-gap:.2f}, {seeds}")


def compute_mean_gap(a: ComparedNumber, b: ComparedNumber) -> float | None:
    """The mean difference over the seeds that both have."""
    ours, theirs = (dict(zip(x.seeds, x.values, strict=True)) for x in (a, b))
    common = [s for s in ours if s in theirs]
    return fmean(ours[s] - theirs[s] for s in common) if common else None
