"""Compare our numbers with the printed ones: differences beyond noise, and claims that hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import log
from statistics import fmean, stdev
from typing import Literal

from ..runs.curve_points import Curve, select_last_ten
from ..runs.events import Event
from ..runs.summary import compute_curves
from .table import Cell, MeasurementRule, Ordering, PrintedNumber, PublishedTable

# differences between seeds and platforms, in the table's units
NOISE_BANDS = {"G": 2.0, "P": 0.7, "score": 0.05}
ACCURACY_MEASURES = ("G", "P")
Verdict = Literal["within noise", "better", "worse", "not comparable", "no number printed"]
ValuesBySeed = dict[
    int, dict[str, float]
]  # of one cell: by seed, the values of "MEASURE" and "MEASURE last10"


@dataclass(frozen=True)
class ComparedNumber:
    """One number of a table: as printed, and as measured here."""

    row: str
    column: str
    data: str  # name of the data set used here
    measure: str
    printed: PrintedNumber | None
    seeds: tuple[int, ...]
    values: tuple[float, ...]  # one per seed, computed as in the paper
    last10: tuple[float, ...]  # mean over the last ten evaluations, one per seed
    verdict: Verdict
    why: str = ""

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation over seeds."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Our mean minus the printed number; None if they are not comparable."""
        if self.mean is None or self.printed is None or self.verdict == "not comparable":
            return None
        return self.mean - self.printed.value


@dataclass(frozen=True)
class Claim:
    """An ordering in the paper's numbers, and whether it holds in ours; None if unknown."""

    text: str
    holds: bool | None
    why: str


def measure_run(events: Sequence[Event], rule: MeasurementRule) -> dict[str, float]:
    """Compute the numbers of one run, as in the paper and over the last ten; accuracies in percent."""
    lines = compute_curves(events, rule.clients)
    out: dict[str, float] = {}
    for rounds, suffix in ((rule.rounds, ""), ("last10", " last10")):
        part = {m: 100 * aggregate_rounds(lines[m], rounds) for m in ACCURACY_MEASURES if lines[m]}
        if len(part) == len(ACCURACY_MEASURES) and all(part.values()):
            part["score"] = sum(log(part[m] / 10) for m in ACCURACY_MEASURES)
        out |= {f"{m}{suffix}": v for m, v in part.items()}
    return out


def aggregate_rounds(curve: Curve, rounds: str) -> float:
    values, last10 = [v for _, v in curve], select_last_ten(curve)
    return {"best": max(values), "last": values[-1], "last10": fmean(last10)}[rounds]


def compare_numbers(
    cells: Sequence[Cell],
    ours: Mapping[tuple[str, str], ValuesBySeed],
    reasons: Mapping[tuple[str, str], str],
) -> list[ComparedNumber]:
    """Compare every number of these cells; ``reasons`` says why a cell cannot be compared."""
    out = []
    for cell in cells:
        key = (cell.row, cell.column)
        values, reason = ours.get(key, {}), reasons.get(key, "")
        for measure in tuple(cell.printed) or ACCURACY_MEASURES:
            by_seed = {s: v for s, v in values.items() if measure in v}
            here = tuple(v[measure] for v in by_seed.values())
            last10 = tuple(v[f"{measure} last10"] for v in by_seed.values())
            printed, data = cell.printed.get(measure), cell.config["data"]["name"]
            verdict, why = judge_number(measure, printed, here, reason)
            out.append(
                ComparedNumber(
                    *key, data, measure, printed, tuple(by_seed), here, last10, verdict, why
                )
            )
    return out


def judge_number(
    measure: str, printed: PrintedNumber | None, ours: Sequence[float], reason: str
) -> tuple[Verdict, str]:
    """Judge a number against the noise band, and say why."""
    if reason or not ours:
        return "not comparable", reason or f"no {measure} was measured"
    if printed is None:
        return "no number printed", ""
    band = compute_noise_band(measure, printed)
    gap = round(fmean(ours) - printed.value, 9)  # 0.7 is not more than 0.7
    if abs(gap) <= band:
        return "within noise", f"± {band:g}"
    return ("better" if gap > 0 else "worse"), f"± {band:g}"


def compute_noise_band(measure: str, printed: PrintedNumber) -> float:
    """The band of the measure, or twice the printed standard deviation if that is larger."""
    return max(NOISE_BANDS.get(measure, 0.0), 2 * (printed.std or 0.0))


# Claims -------------------------------------------------------------------------------------


def check_claims(table: PublishedTable, numbers: Sequence[ComparedNumber]) -> list[Claim]:
    """Check every ordering of the table, in every selected column."""
    columns = dict.fromkeys(n.column for n in numbers)
    return [
        check_ordering(ordering, column, numbers)
        for ordering in table.orderings
        for column in columns
        if fnmatchcase(column, ordering.columns)
    ]


def check_ordering(ordering: Ordering, column: str, numbers: Sequence[ComparedNumber]) -> Claim:
    here = {n.row: n for n in numbers if (n.column, n.measure) == (column, ordering.measure)}
    others = [r for r in here if r != ordering.above and fnmatchcase(r, ordering.below)]
    below = "all others" if ordering.below == "*" else ordering.below
    text = f"{column}: {ordering.measure} of {ordering.above} is above {below}"
    top = here.get(ordering.above)
    if top is None or not others:
        return Claim(text, None, "not all of its rows were selected")
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
    """Return the mean difference over the seeds that both have; None without any."""
    ours, theirs = (dict(zip(x.seeds, x.values, strict=True)) for x in (a, b))
    common = [s for s in ours if s in theirs]
    return fmean(ours[s] - theirs[s] for s in common) if common else None
