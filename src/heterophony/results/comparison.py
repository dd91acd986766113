"""Compare series of runs: means over seeds, paired differences, and leads beyond chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from statistics import fmean
from typing import Any

from ..runs.curves import MeanStd, NewClients
from ..runs.summary import Summary
from . import statistics
from .runs import Run, group_by_series
from .table import Cell, Interval

# measures of one series by seed and data; runs with the same key form a pair
MeasuresByBlock = Mapping[tuple[int, str], Mapping[str, float]]
ACCURACIES = tuple(f"{m}.{part}" for m in "GP" for part in ("best", "last", "last10"))
HIGHER_IS_BETTER = (*ACCURACIES, "G.chosen", "P.chosen", "worst10")
HEADLINES = {"G.last10": "G last 10", "P.last10": "P last 10"}
NEW_CLIENT_MEASURES = ("G", "before", "P", "worst10")
BOLD_NOTE = f"Bold: higher than every other row beyond chance (paired by seed, p < {statistics.ALPHA} after Holm)."


@dataclass(frozen=True)
class Spread:
    """The mean, population standard deviation and 95 % interval of a measure over the seeds."""

    mean: float
    std: float
    ci95: Interval | None

    @classmethod
    def from_values(
        cls, values: Sequence[float], lowest: float = -inf, highest: float = inf
    ) -> Spread:
        """Summarise a measure's values; ``lowest`` and ``highest`` are its bounds."""
        of = MeanStd.from_values(values)
        interval = statistics.compute_confidence_interval(values, lowest=lowest, highest=highest)
        return cls(of.mean, of.std, (interval.low, interval.high) if interval else None)

    def to_cell(self) -> Cell:
        """Return the spread as a table cell; a single value has no deviation."""
        return Cell(self.mean, self.std if self.ci95 else None, self.ci95)


@dataclass(frozen=True)
class PairedDifference(Spread):
    """The spread of paired differences between two series, with p and Holm-corrected p."""

    p: float = 1.0
    p_holm: float = 1.0


@dataclass(frozen=True)
class Differences:
    """The paired differences of a series from the first series, over their common seeds."""

    to: str
    seeds: list[int]
    measures: dict[str, PairedDifference]


@dataclass(frozen=True)
class ComparisonRow:
    """A row of a comparison: one series, its measures over the seeds, and its differences from the first."""

    name: str
    algorithm: str
    seeds: list[int]
    state: str
    spreads: dict[str, Spread]
    # by G and P: deviation of the last ten evaluations, averaged over the seeds
    evaluation_std: dict[str, float]
    differences: Differences | None
    new_clients: dict[str, float | None] | None
    leads: tuple[str, ...] = ()  # measures in which it is higher than all others, beyond chance

    def get_cell(self, key: str) -> Cell:
        """Return the table cell of a measure, with its deviation over the seeds.

        With one seed, the deviation is over the last ten evaluations.
        """
        if key not in self.spreads:
            return Cell()
        cell = self.spreads[key].to_cell()
        if len(self.seeds) == 1 and key.endswith(".last10"):
            cell = replace(cell, std=self.evaluation_std[key[0]])
        return replace(cell, mark="bold") if key in self.leads else cell

    def get_difference(self, key: str) -> PairedDifference | None:
        """Return the row's paired difference from the first series in a measure; None if there is no pair."""
        return self.differences.measures.get(key) if self.differences else None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data for JSON."""
        plain = ("G.", "P.")
        gaps = self.differences
        return {
            "name": self.name,
            "algorithm": self.algorithm,
            "seeds": self.seeds,
            "state": self.state,
            **{m: self._describe_accuracy(m) for m in "GP"},
            **{k: s.mean for k, s in self.spreads.items() if not k.startswith(plain)},
            "over_seeds": {k: asdict(spread) for k, spread in self.spreads.items()},
            "difference": gaps
            and {
                "to": gaps.to,
                "seeds": gaps.seeds,
                **{k: asdict(gap) for k, gap in gaps.measures.items()},
            },
            "new_clients": self.new_clients,
            "leads": list(self.leads),
        }

    def _describe_accuracy(self, measure: str) -> dict[str, Any] | None:
        if measure not in self.evaluation_std:
            return None
        best, last, mean = (self.spreads[f"{measure}.{p}"].mean for p in ("best", "last", "last10"))
        std = self.evaluation_std[measure]
        return {"best": best, "last": last, "last10": {"mean": mean, "std": std}}


def compare_runs(runs: Sequence[Run]) -> list[ComparisonRow]:
    """Compare runs: build one row per series; leave out series with a run that was never evaluated."""
    groups = group_by_series(runs).values()
    series = [group for group in groups if all(run.current_summary for run in group)]
    alone = index_local_runs(runs)
    rows = [build_comparison_row(group, series[0], alone) for group in series]
    return mark_leads(correct_p_values(rows), series)


def build_comparison_row(
    group: Sequence[Run], first: Sequence[Run], alone: Mapping[tuple[int, str], Summary]
) -> ComparisonRow:
    """Build the comparison row of a series; ``alone`` has the summaries of Local by seed and data."""
    summaries = list_summaries(group)
    measures = [extract_measures(s) | compare_with_local(s, alone) for s in summaries]
    common = [k for k in measures[0] if all(k in m for m in measures)]
    ten = {m: [a.last10.std for s in summaries if (a := getattr(s, m))] for m in "GP"}
    return ComparisonRow(
        name=group[0].series,
        algorithm=group[0].algorithm,
        seeds=[r.seed for r in group],
        state=group[0].state,
        spreads={
            k: Spread.from_values(v, *get_measure_bounds(k, v, group[0].start.get("task")))
            for k, v in ((k, [m[k] for m in measures]) for k in common)
        },
        evaluation_std={m: fmean(stds) for m, stds in ten.items() if f"{m}.last10" in common},
        differences=None if group is first else compute_differences(group, first),
        new_clients=average_new_clients(group),
    )


# Measures -----------------------------------------------------------------------------------


def list_summaries(group: Iterable[Run]) -> list[Summary]:
    """List the summaries of the runs that were evaluated."""
    return [s for s in (run.current_summary for run in group) if s]


def extract_measures(summary: Summary) -> dict[str, float]:
    """Return the run's compared measures by key; measures that it lacks are left out."""
    out: dict[str, float] = {}
    for name, a in (("G", summary.G), ("P", summary.P)):
        if a:
            out |= {f"{name}.best": a.best, f"{name}.last": a.last, f"{name}.last10": a.last10.mean}
    if fairness := summary.fairness["P"]:
        out |= {"worst10": fairness.worst10, "std": fairness.std}
    out |= {f"MB_{way}": count / 1e6 for way, count in summary.bytes.items()}
    out["seconds"] = summary.seconds
    for name, a in (("G", summary.G), ("P", summary.P)):
        if a and a.chosen:
            out[f"{name}.chosen"] = a.chosen.test
    optional = {
        **{f"{m}.loss": summary.loss.get(m) for m in "GP"},
        "examples": summary.examples_per_round,
        "work": summary.relative_work,
        "simulated": summary.simulated_seconds,
    }
    return out | {k: v for k, v in optional.items() if v is not None}


def get_measure_bounds(
    key: str, values: Sequence[float], task: str | None = None
) -> tuple[float, float]:
    """Return the smallest and the largest possible value of a measure, for intervals.

    R² and users' own losses can be negative.
    """
    if key in (*HIGHER_IS_BETTER, "new_clients"):
        return (-inf if task == "regression" else 0.0), 1.0
    return (0.0 if min(values) >= 0 else -inf), (1.0 if key == "below_local" else inf)


def index_local_runs(runs: Iterable[Run]) -> dict[tuple[int, str], Summary]:
    """Index the summaries of finished runs of Local by seed and data; the first of several is used."""
    found = dict[tuple[int, str], Summary]()
    for run in runs:
        if run.algorithm == "local" and (s := run.summary):
            found.setdefault((s.seed, s.data_sha256), s)
    return found


def compare_with_local(
    summary: Summary, alone: Mapping[tuple[int, str], Summary]
) -> dict[str, float]:
    """Return ``below_local``, the share of clients with a higher P in Local; empty without such a run."""
    local = alone.get((summary.seed, summary.data_sha256))
    if local is None or local is summary or local.clients.keys() != summary.clients.keys():
        return {}
    worse = [c.accuracy < local.clients[name].accuracy for name, c in summary.clients.items()]
    return {"below_local": sum(worse) / len(worse)}


def index_measures_by_block(group: Iterable[Run]) -> dict[tuple[int, str], dict[str, float]]:
    """Index the measures of a series by seed and data; runs with the same key form a pair."""
    return {(s.seed, s.data_sha256): extract_measures(s) for s in list_summaries(group)}


def collect_new_clients(group: Sequence[Run]) -> list[tuple[int, NewClients]]:
    """Collect the results of new clients from finished runs, with the seed of each run."""
    summaries = [run.summary for run in group if run.summary]
    return [(s.seed, s.new_clients) for s in summaries if s.new_clients]


def average_new_clients(group: Sequence[Run]) -> dict[str, float | None] | None:
    """Average the accuracies of new clients over the seeds; None if no client joined."""
    several = [new for _, new in collect_new_clients(group)]
    if not several:
        return None
    values = {k: list_new_client_values(several, k) for k in NEW_CLIENT_MEASURES}
    return {k: fmean(known) if known else None for k, known in values.items()}


def list_new_client_values(several: Sequence[NewClients], key: str) -> list[float]:
    """List one of ``NEW_CLIENT_MEASURES`` over the seeds that have it."""
    values = [n.fairness.worst10 if key == "worst10" else getattr(n, key) for n in several]
    return [v for v in values if v is not None]


# Differences and leads ----------------------------------------------------------------------


def compute_differences(group: Sequence[Run], first: Sequence[Run]) -> Differences | None:
    """Compute a series' paired differences from ``first``, over common seeds with the same data."""
    own, other = index_measures_by_block(group), index_measures_by_block(first)
    common = [key for key in own if key in other]
    if not common or any(r.state != "finished" for r in (*group, *first)):
        return None
    pairs = [(own[key], other[key]) for key in common]
    both = [k for k in ACCURACIES if all(k in a and k in b for a, b in pairs)]
    gaps = {k: compute_difference([a[k] for a, _ in pairs], [b[k] for _, b in pairs]) for k in both}
    return Differences(first[0].series, [seed for seed, _ in common], gaps)


def compute_difference(own: Sequence[float], other: Sequence[float]) -> PairedDifference:
    """Compute the paired difference in one measure; p is not corrected yet."""
    spread = Spread.from_values([a - b for a, b in zip(own, other, strict=True)])
    return PairedDifference(
        spread.mean, spread.std, spread.ci95, statistics.compare_pairs(own, other).p
    )


def correct_p_values(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Set ``p_holm`` of every difference: p with Holm's correction for the number of rows."""
    corrected: dict[str, dict[str, PairedDifference]] = {row.name: {} for row in rows}
    for key in ACCURACIES:
        gaps = {row.name: gap for row in rows if (gap := row.get_difference(key))}
        p_values = statistics.apply_holm_correction([gap.p for gap in gaps.values()])
        for (name, gap), p in zip(gaps.items(), p_values, strict=True):
            corrected[name][key] = replace(gap, p_holm=p)
    return [
        replace(row, differences=replace(row.differences, measures=corrected[row.name]))
        if row.differences
        else row
        for row in rows
    ]


def mark_leads(
    rows: Sequence[ComparisonRow], series: Sequence[Sequence[Run]]
) -> list[ComparisonRow]:
    """Set ``leads`` of every row: the measures in which it is higher than all others, beyond chance."""
    measured = {
        row.name: index_measures_by_block(group)
        for row, group in zip(rows, series, strict=True)
        if row.state == "finished"
    }
    leaders = {key: find_clear_leader(measured, key) for key in HIGHER_IS_BETTER}
    return [
        replace(row, leads=tuple(key for key, name in leaders.items() if name == row.name))
        for row in rows
    ]


def find_clear_leader(series: Mapping[str, MeasuresByBlock], key: str) -> str | None:
    """Find the series that leads in a measure: it is higher than all others, beyond chance.

    The highest series is compared with each of the others, over the seeds and data that both have.
    After Holm's correction, all p values must be below ALPHA.
    """
    known = {
        name: {block: measures[key] for block, measures in blocks.items()}
        for name, blocks in series.items()
        if blocks and all(key in measures for measures in blocks.values())
    }
    if len(known) < 2:
        return None
    leader = max(known, key=lambda name: fmean(known[name].values()))
    p_values = []
    for name, values in known.items():
        if name == leader:
            continue
        common = [block for block in known[leader] if block in values]
        if not common:
            return None
        pairs = statistics.compare_pairs(
            [known[leader][b] for b in common], [values[b] for b in common]
        )
        if pairs.mean <= 0:
            return None
        p_values.append(pairs.p)
    return leader if max(statistics.apply_holm_correction(p_values)) < statistics.ALPHA else None


# In words -----------------------------------------------------------------------------------


def explain_bold(rows: Sequence[ComparisonRow], keys: Sequence[str]) -> str | None:
    """Explain what bold means in these columns, or why nothing is bold; None if there is nothing to compare."""
    if any(key in row.leads for row in rows for key in keys):
        return BOLD_NOTE
    reason = explain_missing_lead(rows)
    return reason and f"Nothing is bold: {reason}."


def explain_missing_lead(rows: Sequence[ComparisonRow]) -> str | None:
    """Explain why no row of a comparison leads; None if fewer than two are finished."""
    finished = [row for row in rows if row.state == "finished"]
    if len(finished) < 2:
        return None
    common = set.intersection(*(set(row.seeds) for row in finished))
    needed = statistics.count_pairs_needed(len(finished) - 1)
    if not common:
        return f"the rows have no seed in common; a comparison needs at least {needed}"
    if len(common) < needed:
        seeds = "one seed is" if len(common) == 1 else f"{len(common)} seeds are"
        return f"{seeds} too few to compare {len(finished)} rows; at least {needed} are needed"
    return f"over {len(common)} seeds, no row is higher than all others beyond chance"


def list_conclusions(rows: Sequence[ComparisonRow]) -> list[str]:
    """List the conclusions of a comparison about G and P; equal conclusions become one sentence."""
    titles: dict[str, list[str]] = {}
    for key, title in HEADLINES.items():
        if conclusion := describe_conclusion(rows, key):
            titles.setdefault(conclusion, []).append(title)
    return [f"{' and '.join(of)}: {conclusion}" for conclusion, of in titles.items()]


def describe_conclusion(rows: Sequence[ComparisonRow], key: str) -> str | None:
    """Describe which rows differ from the first in a measure, or why this cannot be decided.

    Return None if there is no pair.
    """
    gaps = {row.name: gap for row in rows if (gap := row.get_difference(key))}
    if not gaps:
        return None
    pairs = max(len(row.differences.seeds) for row in rows if row.name in gaps and row.differences)
    needed = statistics.count_pairs_needed(len(gaps))
    if pairs < needed:
        return explain_too_few_pairs(pairs, needed, len(gaps) - 1)
    return describe_significant_differences(gaps, rows[0].name)


def explain_too_few_pairs(pairs: int, needed: int, others: int) -> str:
    """Explain that there are too few pairs of runs for a significant difference."""
    beside = f" with {others} other comparison{'s' * (others > 1)}" if others else ""
    if pairs == 1:
        return (
            "one pair of runs with the same seed and data cannot tell a difference from chance;"
            f" p < {statistics.ALPHA}{beside} needs at least {needed} seeds."
        )
    return (
        f"{pairs} pairs of runs with the same seed and data are too few for p < {statistics.ALPHA}"
        f"{beside}: at least {needed}. With {pairs} the exact paired test cannot give less than"
        f" p = {statistics.compute_smallest_p(pairs):.2g}; the intervals show which differences are"
        " plausible."
    )


def describe_significant_differences(gaps: Mapping[str, PairedDifference], first: str) -> str:
    """Describe which rows are significantly higher or lower than the first row."""
    sides: dict[str, list[str]] = {"higher": [], "lower": []}
    for name, gap in gaps.items():
        if gap.p_holm < statistics.ALPHA:
            sides["higher" if gap.mean > 0 else "lower"].append(f"{name} (p = {gap.p_holm:.2g})")
    parts = [f"{side} than {first}: {', '.join(who)}" for side, who in sides.items() if who]
    if not parts:
        return f"no difference from {first} is shown, which does not mean that there is none."
    rest = len(gaps) - sum(map(len, sides.values()))
    return "; ".join([*parts, *([f"of {rest} more, no difference is shown"] if rest else [])]) + "."
