"""Decide the published claims from runs, by differences paired by seed and their intervals.

The paper's own rule, such as the best round, decides; the last ten evaluations are shown as well.
One seed never decides, nor does a net that has not learned. The full scale overrides the medium scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from ..results.statistics import ALPHA, ConfidenceInterval, compute_confidence_interval
from .claim_list import CellKey, Comparison, Finding, PaperClaim
from .evidence import FULL, JUDGED_SCALES, STAND_IN, ReferenceRuns, StoredRun
from .table import VARIANT_SIGN, PublishedTable
from .verdicts import RULE_NAMES

Decision = Literal["holds", "does not hold", "not yet trained", "undecided"]
LAST10 = "last10"
AT_EQUAL_LOSS = "matched"  # the rule for attacks
BY_METHOD = "method"  # takes the place of a scale for a claim that follows from the method
# parts of a run over which differences are averaged: the first tenth, then to a quarter, …
ROUND_PARTS = ((0.0, 0.1), (0.1, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
# below full scale nothing is said about the paper's own setting, only what was seen
SCALED_WORDS: dict[str, dict[Decision, str]] = {
    FULL: {"holds": "holds", "does not hold": "does not hold"},
    "medium": {"holds": "seen at medium scale", "does not hold": "not seen at medium scale"},
    STAND_IN: {"holds": "seen on stand-in data", "does not hold": "not seen on stand-in data"},
}
SeedRuns = Mapping[int, StoredRun]


def name_decision(decision: Decision, scale: str) -> str:
    """Return the words for a decision on a claim at a scale, as in ``seen at medium scale``."""
    return SCALED_WORDS[scale].get(decision, decision)


def get_deciding_rule(claim: PaperClaim) -> str:
    """Return the measurement rule that decides a claim, such as ``best``: the rule of its table."""
    return AT_EQUAL_LOSS if claim.is_about_attacks else claim.table.measured.rounds


def list_examined_rules(claim: PaperClaim) -> list[str]:
    """List the measurement rules by which a claim is examined, the deciding one first."""
    own = get_deciding_rule(claim)
    return [own] if own == AT_EQUAL_LOSS else list(dict.fromkeys((own, LAST10)))


@dataclass(frozen=True)
class SeedDifferences:
    """The differences of a claim's comparison, paired by seed."""

    comparison: Comparison
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
    """The verdict on a claim at one scale, with one variant and by one rule."""

    scale: str
    variant: str
    rule: str  # "best", "last" or "last10" of the evaluations
    decision: Decision
    why: str
    differences: tuple[SeedDifferences, ...]
    parts: tuple[RoundPart, ...]  # parts of the rounds, for the smallest difference
    control: bool = False  # our own control, which decides nothing

    @property
    def seeds(self) -> int:
        """The number of seeds that all compared cells have in common."""
        return min((len(d.seeds) for d in self.differences), default=0)

    @property
    def settings(self) -> str:
        """The settings of the runs, in words."""
        variant = self.variant.replace("-", " ").replace(VARIANT_SIGN, " and ")
        return variant or "settings as in the text"

    @property
    def condition(self) -> str:
        """The settings and the rule of this verdict, in words."""
        return f"{self.settings}, {RULE_NAMES[self.rule]}"


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on a claim, and the case that decides it."""

    claim: PaperClaim
    finding: str  # the id of the finding that the claim belongs to
    verdict: str  # such as "not seen at medium scale (momentum 0)"
    scale: str | None  # scale whose runs decide the claim, or were examined last
    rule: str  # rule that decides the claim
    why: str
    cases: tuple[CaseVerdict, ...]


@dataclass(frozen=True)
class IntervalLevels:
    """The number of tests of a claim, for the Bonferroni correction of its intervals."""

    comparisons: int  # number of comparisons in its finding
    settings: int  # variants with runs at this scale
    rules: int

    @property
    def confirming(self) -> float:
        """The confidence level of intervals that confirm a claim; as all must confirm, it ignores their number."""
        return 1 - ALPHA / (self.settings * self.rules)

    @property
    def refuting(self) -> float:
        """The confidence level of intervals that refute a claim, corrected for their number."""
        return 1 - ALPHA / (max(1, self.comparisons) * self.settings * self.rules)


# Claims -------------------------------------------------------------------------------------


def decide_findings(
    findings: Sequence[Finding], runs: Sequence[StoredRun]
) -> Iterator[tuple[Finding, list[ClaimVerdict]]]:
    """Decide the claims of every finding from the runs of their tables."""
    references = ReferenceRuns(runs)
    by_table: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_table.setdefault(run.table, []).append(run)
    for finding in findings:
        yield (
            finding,
            [
                decide_claim(claim, by_table.get(claim.table.name, []), finding, references)
                for claim in finding.claims
            ],
        )


def decide_claim(
    claim: PaperClaim, runs: Sequence[StoredRun], finding: Finding, references: ReferenceRuns
) -> ClaimVerdict:
    """Decide a claim at the largest scale that gives a verdict; also list the verdicts of all cases."""

    def conclude(
        verdict: str, scale: str | None, why: str, cases: tuple[CaseVerdict, ...] = ()
    ) -> ClaimVerdict:
        rule = get_deciding_rule(claim)
        return ClaimVerdict(claim, finding.id, verdict, scale, rule, why, cases)

    if claim.follows:
        return conclude("holds", BY_METHOD, claim.how)
    if not claim.comparisons:
        return conclude("undecided", None, f"not from these runs: {claim.how}")
    cases = tuple(iterate_cases(claim, runs, finding, references))
    if not cases:
        return conclude("undecided", None, "not run")
    deciding = [c for c in cases if c.rule == get_deciding_rule(claim) and not c.control]
    for scale in JUDGED_SCALES:
        here = [case for case in deciding if case.scale == scale]
        if any(case.decision in ("holds", "does not hold") for case in here):
            return conclude(*combine_cases(here), cases)
    shown = [case for case in deciding if case.scale in JUDGED_SCALES] or deciding or cases
    scale = max(shown, key=lambda case: (case.seeds, case.scale == FULL)).scale
    here = [case for case in shown if case.scale == scale]
    counting = [case for case in here if case.decision != "not yet trained"]
    most = max(counting or here, key=lambda case: case.seeds)
    verdict = "undecided" if counting else "not yet trained"
    return conclude(verdict, scale, f"{most.condition}: {most.why}", cases)


def combine_cases(cases: Sequence[CaseVerdict]) -> tuple[str, str, str]:
    """Combine the cases of a claim at one scale; return the verdict, the scale and the reason.

    Cases that are not yet trained do not count.
    """
    cases = [case for case in cases if case.decision != "not yet trained"]
    scale, found = cases[0].scale, {case.decision for case in cases}
    words = SCALED_WORDS[scale]
    why = "; ".join(f"{c.condition}: {name_decision(c.decision, scale)}, {c.why}" for c in cases)
    holding, failing = (
        "; ".join(case.settings for case in cases if case.decision == decision)
        for decision in ("holds", "does not hold")
    )
    if found == {"holds"}:
        return words["holds"], scale, why
    if holding:
        exceptions = f" ({words['does not hold']}: {failing})" if failing else ""
        return f"{words['holds']} under condition: {holding}{exceptions}", scale, why
    if found == {"does not hold"}:
        return words["does not hold"], scale, why
    return f"{words['does not hold']} ({failing})", scale, why


# Cases --------------------------------------------------------------------------------------


def iterate_cases(
    claim: PaperClaim, runs: Sequence[StoredRun], finding: Finding, references: ReferenceRuns
) -> Iterator[CaseVerdict]:
    """Yield a claim's verdict for every scale and variant with runs, by the paper's rule and by last 10."""
    rules = list_examined_rules(claim)
    for scale in (*JUDGED_SCALES, STAND_IN):
        at_scale = [run for run in runs if run.scale == scale]
        variants = {
            variant: cells
            for variant in sorted({run.variant for run in at_scale})
            if sum(map(bool, (cells := collect_cell_runs(claim, at_scale, variant)).values())) > 1
        }
        levels = IntervalLevels(finding.comparisons, len(variants), len(rules))
        for variant, cells in variants.items():
            for rule in rules:
                yield judge_case(claim, scale, variant, rule, cells, levels, references)


def choose_table_variant(claim: PaperClaim, variant: str) -> PublishedTable:
    """Return the table of a claim with a variant chosen; claims about attacks have no such variants."""
    named = [variant] if variant and not claim.is_about_attacks else []
    return claim.table.choose_variants(named)


def collect_cell_runs(
    claim: PaperClaim, runs: Sequence[StoredRun], variant: str
) -> dict[CellKey, dict[int, StoredRun]]:
    """Collect the runs of a claim's cells by seed; cells that the variant does not change use plain runs.

    Variants of attacks are the attacker's knowledge; every cell has runs with each variant.
    """
    if claim.is_about_attacks:
        labels = dict.fromkeys(claim.cells, variant)
    else:
        chosen = choose_table_variant(claim, variant)
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
    claim: PaperClaim,
    scale: str,
    variant: str,
    rule: str,
    cells: Mapping[CellKey, SeedRuns],
    levels: IntervalLevels,
    references: ReferenceRuns,
) -> CaseVerdict:
    """Judge a claim by the runs of one scale and variant, with one measurement rule."""
    values = {
        key: {
            s: v for s, run in runs.items() if (v := measure_claimed(claim, run, rule)) is not None
        }
        for key, runs in cells.items()
    }
    differences, missing = [], list[CellKey]()
    for comparison in claim.comparisons:
        seeds = sorted(set.intersection(*({*values[key]} for key in comparison.cells)))
        if not seeds:
            missing += [key for key in comparison.cells if not values[key]][:1]
            continue
        gaps = (
            sum(values[key][s] for key in comparison.first)
            - sum(values[key][s] for key in comparison.second)
            for s in seeds
        )
        differences.append(SeedDifferences(comparison, tuple(seeds), tuple(gaps)))
    decision, why = judge_differences(claim, differences, list(dict.fromkeys(missing)), levels)
    chosen = choose_table_variant(claim, variant)
    if scale != FULL and not claim.is_about_attacks:
        run_cells = [cell for cell in chosen.cells if cells.get((cell.row, cell.column))]
        state = references.check_cells(chosen, run_cells, scale)
        if not state.learned:
            decision = "undecided" if state.learned is None else "not yet trained"
            why = f"{state.why}; {why}"
    nearest = min(differences, key=lambda d: d.mean, default=None)
    parts = compare_rounds(claim.measure, cells, nearest) if nearest else ()
    control = any(chosen.variants[name].control for name in chosen.chosen)
    return CaseVerdict(scale, variant, rule, decision, why, tuple(differences), parts, control)


def measure_claimed(claim: PaperClaim, run: StoredRun, rule: str) -> float | None:
    """Return the number of a run that a claim compares; None if it was not measured."""
    if rule == AT_EQUAL_LOSS:
        return run.numbers.get(claim.measure)
    found = run.measure(claim.table.measured)
    by_rule = rule == claim.table.measured.rounds
    return found.get(claim.measure if by_rule else f"{claim.measure} {LAST10}")


def judge_differences(
    claim: PaperClaim,
    differences: Sequence[SeedDifferences],
    missing: Sequence[CellKey],
    levels: IntervalLevels,
) -> tuple[Decision, str]:
    """Decide a claim from the intervals of its differences; return the decision and the reason."""
    for d in differences:
        strict = d.interval(levels.refuting)
        if strict and is_refuted(claim, strict):
            return "does not hold", describe_difference(d, strict, levels.refuting)
    nearest = min(differences, key=lambda d: d.mean, default=None)
    if nearest is None:
        return "undecided", "not run"
    intervals = [d.interval(levels.confirming) for d in differences]
    interval = nearest.interval(levels.confirming)
    text = describe_difference(nearest, interval, levels.confirming)
    if interval is None:
        return "undecided", f"one seed, which decides nothing: {text}"
    if missing:
        return "undecided", f"not run: {name_cells(claim, missing)}; {text}"
    if all(found and is_confirmed(claim, found) for found in intervals):
        return "holds", text
    return "undecided", text


def name_cells(claim: PaperClaim, keys: Sequence[CellKey]) -> str:
    """Name cells of a claim by row, column or both, whichever distinguishes them."""
    rows, columns = ({key[i] for key in claim.cells} for i in (0, 1))
    if len(columns) == 1:
        return ", ".join(dict.fromkeys(row for row, _ in keys))
    if len(rows) == 1:
        return ", ".join(dict.fromkeys(column for _, column in keys))
    return "; ".join(f"{row}, {column}" for row, column in keys)


def is_confirmed(claim: PaperClaim, found: ConfidenceInterval) -> bool:
    """Return True if a claim holds for all differences in the interval."""
    if claim.within is not None:
        return -claim.within <= found.low and found.high <= claim.within
    return found.low >= claim.least if claim.least is not None else found.low > 0


def is_refuted(claim: PaperClaim, found: ConfidenceInterval) -> bool:
    """Return True if a claim holds for no difference in the interval."""
    if claim.within is not None:
        return found.low > claim.within or found.high < -claim.within
    return found.high < (claim.least or 0)


def compare_rounds(
    measure: str, cells: Mapping[CellKey, SeedRuns], found: SeedDifferences
) -> tuple[RoundPart, ...]:
    """Average the difference that a claim compares over parts of the rounds, paired by seed and round."""
    by_seed, comparison = [], found.comparison
    for seed in found.seeds:
        curves = {key: dict(cells[key][seed].points.get(measure, ())) for key in comparison.cells}
        common = set.intersection(*({*curve} for curve in curves.values()))
        by_seed.append(
            {
                t: 100 * sum(curves[key][t] for key in comparison.first)
                - 100 * sum(curves[key][t] for key in comparison.second)
                for t in sorted(common)
                if t > 0
            }
        )
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
    d: SeedDifferences, interval: ConfidenceInterval | None, level: float
) -> str:
    """Describe the difference that a claim compares: cells, mean, interval and number of seeds."""
    seeds = f"{len(d.seeds)} seed{'s' * (len(d.seeds) > 1)}"
    shown = f"{d.mean:+.2f}"
    if interval is not None:
        shown += f" ({interval.low:+.2f} … {interval.high:+.2f}, {100 * level:.4g} %)"
    return f"{d.comparison.label} = {shown.replace('-', '−')}, {seeds}"
