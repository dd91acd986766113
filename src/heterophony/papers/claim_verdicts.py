"""Decide the claims of the five works from runs: paired by seed, over the rounds, with intervals.

A claim is decided where intervals allow it, never by one seed. The full scale counts before the medium.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from ..analysis.significance import (
    ALPHA,
    ConfidenceInterval,
    compute_confidence_interval,
)
from .claim_list import CellKey, PaperClaim
from .claims import RULE_NAMES
from .evidence import JUDGED_SCALES, STAND_IN, StoredRun
from .table import VARIANT_SIGN

Decision = Literal["holds", "does not hold", "undecided"]
LAST10 = "last10"
AT_EQUAL_LOSS = "matched"  # the rule for attacks
BY_METHOD = "method"  # in place of a scale, where a claim follows from the method
# parts of a run over which differences are averaged: the first tenth, then to a quarter, …
ROUND_PARTS = ((0.0, 0.1), (0.1, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
SeedRuns = Mapping[int, StoredRun]


@dataclass(frozen=True)
class SeedDifferences:
    """The difference of two cells, paired by seed: its mean and its interval."""

    first: CellKey
    second: CellKey
    seeds: tuple[int, ...]
    values: tuple[float, ...]  # one per seed

    @property
    def mean(self) -> float:
        return fmean(self.values)

    def interval(self, level: float = 1 - ALPHA) -> ConfidenceInterval | None:
        return compute_confidence_interval(self.values, level)


@dataclass(frozen=True)
class RoundPart:
    """The mean difference over a part of the rounds, paired by seed and round."""

    first_round: int
    last_round: int
    mean: float
    interval: ConfidenceInterval | None


@dataclass(frozen=True)
class CaseVerdict:
    """What the runs of one scale, with one variant and by one rule, say about a claim."""

    scale: str
    variant: str
    rule: str  # "best", "last" or "last10" of the evaluations
    decision: Decision
    why: str
    differences: tuple[SeedDifferences, ...]
    nearest: SeedDifferences | None  # the smallest difference
    parts: tuple[RoundPart, ...]  # of the smallest difference, over the rounds

    @property
    def seeds(self) -> int:
        """How many seeds all compared cells have in common."""
        return min((len(d.seeds) for d in self.differences), default=0)

    @property
    def settings(self) -> str:
        """Say with which settings its runs were made."""
        variant = self.variant.replace("-", " ").replace(VARIANT_SIGN, " and ")
        return variant or "settings as in the text"

    @property
    def condition(self) -> str:
        """Say under which settings and by which rule this is."""
        return f"{self.settings}, {RULE_NAMES[self.rule]}"


@dataclass(frozen=True)
class ClaimVerdict:
    """What was found out about a claim."""

    claim: PaperClaim
    verdict: str  # "holds", "holds under condition …", "does not hold" or "undecided"
    scale: str | None  # whose runs decide it
    why: str
    cases: tuple[CaseVerdict, ...]


def decide_claims(
    claims: Iterable[PaperClaim], runs: Sequence[StoredRun]
) -> Iterator[ClaimVerdict]:
    """Decide every claim from the runs of its table."""
    by_table: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_table.setdefault(run.table, []).append(run)
    for claim in claims:
        yield decide_claim(claim, by_table.get(claim.table.name, []))


def decide_claim(claim: PaperClaim, runs: Sequence[StoredRun]) -> ClaimVerdict:
    """Decide a claim by the largest scale that can; list what every scale and variant say."""
    if claim.follows:
        return ClaimVerdict(claim, "holds", BY_METHOD, claim.how, ())
    if not claim.comparisons:
        return ClaimVerdict(claim, "undecided", None, f"not from these runs: {claim.how}", ())
    cases = tuple(iterate_cases(claim, runs))
    for scale in JUDGED_SCALES:
        here = [case for case in cases if case.scale == scale]
        if any(case.decision != "undecided" for case in here):
            return ClaimVerdict(claim, *combine_cases(here), cases)
    if not cases:
        return ClaimVerdict(claim, "undecided", None, "not run", ())
    judged = [case for case in cases if case.scale in JUDGED_SCALES] or cases
    most = max(judged, key=lambda case: (case.seeds, case.scale == JUDGED_SCALES[0]))
    return ClaimVerdict(claim, "undecided", most.scale, f"{most.condition}: {most.why}", cases)


def combine_cases(cases: Sequence[CaseVerdict]) -> tuple[str, str, str]:
    """Combine variants and rules of one scale: the verdict, the scale, and why."""
    scale, found = cases[0].scale, {case.decision for case in cases}
    holding = [case for case in cases if case.decision == "holds"]
    why = "; ".join(f"{case.condition}: {case.decision}, {case.why}" for case in cases)
    if found == {"holds"}:
        return "holds", scale, why
    failing = join_conditions(cases, "does not hold")
    if holding:
        conditions = join_conditions(cases, "holds")
        exceptions = f" (does not hold: {failing})" if failing else ""
        return f"holds under condition: {conditions}{exceptions}", scale, why
    if found == {"does not hold"}:
        return "does not hold", scale, why
    return f"does not hold ({failing})", scale, why


def join_conditions(cases: Sequence[CaseVerdict], decision: Decision) -> str:
    """Join the conditions with this decision; settings alone where all rules agree on it."""
    out = []
    for settings in dict.fromkeys(case.settings for case in cases):
        here = [case for case in cases if case.settings == settings]
        agreeing = [case for case in here if case.decision == decision]
        alike = len(agreeing) == len(here) and len(here) > 1
        out += [settings] if alike else [case.condition for case in agreeing]
    return "; ".join(out)


def iterate_cases(claim: PaperClaim, runs: Sequence[StoredRun]) -> Iterator[CaseVerdict]:
    """Yield a verdict for every scale and variant that has runs, by the paper's rule and last 10."""
    own_rules = list(dict.fromkeys((claim.table.measured.rounds, LAST10)))
    rules = [AT_EQUAL_LOSS] if claim.is_about_attacks else own_rules
    for scale in (*JUDGED_SCALES, STAND_IN):
        at_scale = [run for run in runs if run.scale == scale]
        for variant in sorted({run.variant for run in at_scale}):
            cells = gather_cells(claim, at_scale, variant)
            if sum(bool(found) for found in cells.values()) > 1:
                for rule in rules:
                    yield judge_case(claim, scale, variant, rule, cells)


def gather_cells(
    claim: PaperClaim, runs: Sequence[StoredRun], variant: str
) -> dict[CellKey, dict[int, StoredRun]]:
    """Gather the runs of cells by seed; cells that the variant does not change have their plain runs.

    The variants of attacks are what the attacker knows; every cell has runs with each.
    """
    if claim.is_about_attacks:
        labels = dict.fromkeys(claim.cells, variant)
    else:
        chosen = claim.table.choose_variants([variant] if variant else [])
        labels = {(cell.row, cell.column): cell.variant for cell in chosen.cells}
    return {
        key: {
            run.seed: run
            for run in runs
            if (run.row, run.column) == key and run.variant == labels.get(key)
        }
        for key in claim.cells
    }


def judge_case(
    claim: PaperClaim, scale: str, variant: str, rule: str, cells: Mapping[CellKey, SeedRuns]
) -> CaseVerdict:
    """Judge a claim by the runs of one scale and variant."""
    values = {
        key: {s: v for s, run in runs.items() if (v := measure_one(claim, run, rule)) is not None}
        for key, runs in cells.items()
    }
    differences, missing = [], []
    for first, second in claim.comparisons:
        seeds = tuple(sorted(values[first].keys() & values[second].keys()))
        if not seeds:
            missing.append(first if not values[first] else second)
            continue
        gaps = tuple(values[first][s] - values[second][s] for s in seeds)
        differences.append(SeedDifferences(first, second, seeds, gaps))
    nearest = min(differences, key=lambda d: d.mean, default=None)
    decision, why = judge_differences(claim, differences, list(dict.fromkeys(missing)))
    parts = compare_rounds(claim.measure, cells, nearest) if nearest else ()
    return CaseVerdict(scale, variant, rule, decision, why, tuple(differences), nearest, parts)


def measure_one(claim: PaperClaim, run: StoredRun, rule: str) -> float | None:
    """Return the number of a run that the claim is about; None if it was not measured."""
    if rule == AT_EQUAL_LOSS:
        return run.numbers.get(claim.measure)
    found = run.measure(claim.table.measured)
    by_rule = rule == claim.table.measured.rounds
    return found.get(claim.measure if by_rule else f"{claim.measure} {LAST10}")


def judge_differences(
    claim: PaperClaim, differences: Sequence[SeedDifferences], missing: Sequence[CellKey]
) -> tuple[Decision, str]:
    """Judge whether all differences are as claimed, some are not, or the seeds cannot tell."""
    level = 1 - ALPHA / max(1, len(claim.comparisons))  # one of many is beyond 0 by chance
    for d in differences:
        strict = d.interval(level)
        if strict and is_refuted(claim, strict):
            return "does not hold", describe_difference(d, strict, level)
    nearest = min(differences, key=lambda d: d.mean, default=None)
    if nearest is None:
        return "undecided", "not run"
    interval = nearest.interval()
    text = describe_difference(nearest, interval)
    if interval is None:
        return "undecided", f"one seed, which decides nothing: {text}"
    if missing:
        rows = ", ".join(dict.fromkeys(row for row, _ in missing))
        return "undecided", f"rows not run: {rows}; {text}"
    intervals = [d.interval() for d in differences]
    if all(found and is_confirmed(claim, found) for found in intervals):
        return "holds", text
    return "undecided", text


def is_confirmed(claim: PaperClaim, found: ConfidenceInterval) -> bool:
    """Tell whether all differences in the interval are as claimed."""
    if claim.within is not None:
        return -claim.within <= found.low and found.high <= claim.within
    return found.low >= claim.least if claim.least is not None else found.low > 0


def is_refuted(claim: PaperClaim, found: ConfidenceInterval) -> bool:
    """Tell whether no difference in the interval is as claimed."""
    if claim.within is not None:
        return found.low > claim.within or found.high < -claim.within
    return found.high < (claim.least or 0)


def compare_rounds(
    measure: str, cells: Mapping[CellKey, SeedRuns], pair: SeedDifferences
) -> tuple[RoundPart, ...]:
    """Average the difference of two cells over parts of the rounds, paired by seed and round."""
    by_seed = []
    for seed in pair.seeds:
        first, second = (
            dict(cells[key][seed].points.get(measure, ())) for key in (pair.first, pair.second)
        )
        by_seed.append({t: 100 * (first[t] - second[t]) for t in first if t in second and t > 0})
    last = max((t for gaps in by_seed for t in gaps), default=0)
    out = []
    for begin, end in ROUND_PARTS:
        within = [[v for t, v in g.items() if begin * last < t <= end * last] for g in by_seed]
        if within and all(within):
            means = [fmean(values) for values in within]
            rounds = round(begin * last) + 1, round(end * last)
            out.append(RoundPart(*rounds, fmean(means), compute_confidence_interval(means)))
    return tuple(out)


def describe_difference(
    d: SeedDifferences, interval: ConfidenceInterval | None, level: float = 1 - ALPHA
) -> str:
    """Describe a difference: between which cells, its mean, its interval and its seeds."""
    (row, column), (other, other_column) = d.first, d.second
    names = (row, other) if column == other_column else (column, other_column)
    seeds = f"{len(d.seeds)} seed{'s' * (len(d.seeds) > 1)}"
    if interval is None:
        return f"{names[0]} − {names[1]} = {d.mean:+.2f}, {seeds}".replace("-", "−")
    shown = f"{d.mean:+.2f} ({interval.low:+.2f} … {interval.high:+.2f}, {100 * level:.3g} %)"
    return f"{names[0]} − {names[1]} = {shown.replace('-', '−')}, {seeds}"
