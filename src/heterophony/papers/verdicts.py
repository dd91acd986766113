"""Compare our numbers and orderings with the printed ones, and judge which differences exceed noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf, log, sqrt
from statistics import fmean, stdev
from typing import Literal

from ..results import statistics
from ..runs.curves import Curve, compute_curves, compute_loss_curves, select_last_ten
from ..runs.events import Event
from . import table

ACCURACY_MEASURES = ("G", "P")
ROUNDING_ERROR = 1e-9  # gaps that differ by less are equal
Verdict = Literal[
    "within noise", "better", "worse", "undecided", "not comparable", "no number printed"
]
# personal parameters of these algorithms are averaged only to measure G: no client has the measured model.
# FedBABU is not among them: its heads are trained only after the last round, and are all the same.
AVERAGED_TO_MEASURE = frozenset(
    ["fedbn", "fedper", "fedrep", "fedsa_lora", "gpfl", "pfakd", "pfedpara"]
)
AVERAGED_MARK = "*"
AVERAGED_NOTE = f"G{AVERAGED_MARK}: personal parameters (heads) were averaged only to measure G; no client has this model"
# a cell's numbers: seed -> values of "MEASURE" and "MEASURE last10"
ValuesBySeed = dict[int, dict[str, float]]


@dataclass(frozen=True)
class ComparedNumber:
    """One number of a published table: as printed, and as measured here."""

    row: str
    column: str
    data: str  # name of the data set used here
    measure: str
    printed: table.PrintedNumber | None
    seeds: tuple[int, ...]
    values: tuple[float, ...]  # one per seed, computed as in the paper
    last10: tuple[float, ...]  # mean over the last ten evaluations, one per seed
    verdict: Verdict
    why: str = ""
    model: str = ""  # name of the net used here
    # the paper's columns that these runs stand for; empty if they were run as printed
    in_place_of: tuple[str, ...] = ()
    averaged: bool = False  # whether personal parameters were averaged only to measure G

    @property
    def setup(self) -> str:
        """The data set and the net used here."""
        return ", ".join(filter(None, (self.data, self.model)))

    @property
    def label(self) -> str:
        """The data that were run: the paper's column, or its stand-in."""
        if not self.in_place_of:
            return self.column
        return f"{self.setup} in place of {', '.join(self.in_place_of)}"

    @property
    def unit(self) -> str:
        """The unit of the measure: ``%`` for accuracies, else empty."""
        return "%" if self.measure in ACCURACY_MEASURES else ""

    @property
    def measure_label(self) -> str:
        """The measure's name, marked if personal parameters were averaged only for the measurement."""
        name = table.MEASURE_NAMES.get(self.measure, self.measure)
        return f"{name}{AVERAGED_MARK if self.averaged else ''}"

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


def measure_run(events: Sequence[Event], rule: table.MeasurementRule) -> dict[str, float]:
    """Compute the numbers of a run by the paper's rule and over the last ten evaluations, in percent."""
    lines = compute_curves(events, rule.clients)
    if rule.personal == "just_trained":
        lines["P"] = lines["P_local"]
    return measure_curves({**lines, table.GENERIC_LOSS: compute_loss_curves(events)["G"]}, rule)


def measure_curves(lines: Mapping[str, Curve], rule: table.MeasurementRule) -> dict[str, float]:
    """Compute the numbers of a run from its curves, by the paper's rule and over the last ten evaluations."""
    out: dict[str, float] = {}
    for rounds, suffix in ((rule.rounds, ""), ("last10", " last10")):
        part = {m: 100 * aggregate_rounds(lines[m], rounds) for m in ACCURACY_MEASURES if lines[m]}
        if len(part) == len(ACCURACY_MEASURES) and all(part.values()):
            part["score"] = sum(log(part[m] / 10) for m in ACCURACY_MEASURES)
        if losses := lines.get(table.GENERIC_LOSS):
            part[table.GENERIC_LOSS] = aggregate_rounds(losses, rounds, best=min)
        out |= {f"{m}{suffix}": v for m, v in part.items()}
    return out


def aggregate_rounds(
    curve: Curve, rounds: str, best: Callable[[list[float]], float] = max
) -> float:
    """Return the best value of a curve, the last, or the mean of the last ten, by the rule ``rounds``."""
    values, last10 = [v for _, v in curve], select_last_ten(curve)
    return {"best": best(values), "last": values[-1], "last10": fmean(last10)}[rounds]


def compare_numbers(
    cells: Sequence[table.Cell],
    ours: Mapping[tuple[str, str], ValuesBySeed],
    reasons: Mapping[tuple[str, str], str],
    stand_ins: Mapping[str, tuple[str, ...]] | None = None,
    printed_seeds: int = 1,
) -> list[ComparedNumber]:
    """Compare our numbers with the printed ones in these cells.

    ``reasons`` explains, by cell, why the numbers cannot be compared. A printed number is the mean over
    ``printed_seeds`` runs. ``stand_ins`` maps columns on other data to the paper's columns; their
    printed numbers are left out.
    """
    out = []
    for cell in cells:
        key = (cell.row, cell.column)
        values, reason = ours.get(key, {}), reasons.get(key, "")
        for measure in tuple(cell.printed) or ACCURACY_MEASURES:
            by_seed = {s: v for s, v in values.items() if measure in v}
            here = tuple(v[measure] for v in by_seed.values())
            last10 = tuple(v[f"{measure} last10"] for v in by_seed.values())
            in_place_of = (stand_ins or {}).get(cell.column, ())
            printed = None if in_place_of else cell.printed.get(measure)
            verdict, why = judge_number(measure, printed, here, reason, printed_seeds)
            out.append(
                ComparedNumber(
                    row=cell.row,
                    column=cell.column,
                    data=cell.config["data"]["name"],
                    measure=measure,
                    printed=printed,
                    seeds=tuple(by_seed),
                    values=here,
                    last10=last10,
                    verdict=verdict,
                    why=why,
                    model=cell.config.get("model", {}).get("name", ""),
                    in_place_of=in_place_of,
                    averaged=measure == "G"
                    and cell.config.get("algorithm", {}).get("name") in AVERAGED_TO_MEASURE,
                )
            )
    return out


def judge_number(
    measure: str,
    printed: table.PrintedNumber | None,
    ours: Sequence[float],
    reason: str,
    printed_seeds: int = 1,
) -> tuple[Verdict, str]:
    """Judge our mean against the printed number; return the verdict and the reason."""
    if reason or not ours:
        return "not comparable", reason or f"no {measure} was measured"
    if printed is None:
        return "no number printed", ""
    if len(ours) < 2:
        return "undecided", "one seed has no deviation, so the difference cannot be told from noise"
    band, how = compute_noise_band(ours, printed, printed_seeds)
    gap = fmean(ours) - printed.value
    if abs(gap) <= band + ROUNDING_ERROR:
        return "within noise", how
    lower_is_better = measure == table.GENERIC_LOSS
    return ("better" if (gap < 0) == lower_is_better else "worse"), how


def compute_noise_band(
    ours: Sequence[float], printed: table.PrintedNumber, printed_seeds: int
) -> tuple[float, str]:
    """Compute and describe how much our mean may differ from the printed one by chance (95 %).

    This is Welch's test. If the paper prints no deviation, or has one run, our deviation is used for both.
    """
    own = stdev(ours)
    known = printed.std is not None and printed_seeds > 1
    theirs = printed.std if known and printed.std is not None else own
    a, b = own**2 / len(ours), theirs**2 / printed_seeds
    squares = a**2 / (len(ours) - 1) + (b**2 / (printed_seeds - 1) if known else 0)
    # Welch's degrees of freedom; if one deviation is used for both, the degrees of freedom of its estimate
    welch = (a + b) ** 2 / squares if squares else inf
    band = statistics.compute_t_quantile(welch if known else len(ours) - 1) * sqrt(a + b)
    runs = f"{printed_seeds} run{'' if printed_seeds == 1 else 's'}"
    assumed = f"{theirs:.2f}, {runs}" if known else f"not printed, assumed as ours, {runs}"
    return (
        band,
        f"± {band:.2f} (95 %; deviations: ours {own:.2f}, {len(ours)} seeds; the paper's {assumed})",
    )


RULE_NAMES = {
    "best": "best round",
    "last": "last round",
    "last10": "last 10",
    "matched": "at equal training loss",  # for attacks, which are not measured over rounds
}
ONE_SEED = "1 seed"
ROUNDING_DIGITS = 9  # means that differ by less are equal


@dataclass(frozen=True)
class Claim:
    """An ordering in a published table, and whether it holds for our numbers; None if unknown."""

    text: str
    holds: bool | None  # verdict by the paper's rule
    why: str
    holds_last10: bool | None  # verdict by the last ten evaluations
    why_last10: str
    seeds: str  # the number of seeds, and whether they suffice for a p value
    as_printed: bool  # whether our runs have the paper's settings


def check_claims(table: table.PublishedTable, numbers: Sequence[ComparedNumber]) -> list[Claim]:
    """Check every ordering of a published table in every selected column.

    Columns with the same runs at this scale make the same claim, which is listed once.
    """
    columns = dict.fromkeys(n.column for n in numbers)
    claims = [
        check_ordering(ordering, column, numbers)
        for ordering in table.orderings
        for column in columns
        if fnmatchcase(column, ordering.columns)
    ]
    return list(dict.fromkeys(claims))


def check_ordering(
    ordering: table.Ordering, column: str, numbers: Sequence[ComparedNumber]
) -> Claim:
    """Check one ordering in one column, by the paper's rule and over the last ten evaluations."""
    here = {n.row: n for n in numbers if (n.column, n.measure) == (column, ordering.measure)}
    text = f"{name_column_data(column, numbers)}: {ordering.describe()}"
    as_printed = not any(n.in_place_of for n in numbers)
    rows = [r for r in here if r != ordering.above and fnmatchcase(r, ordering.below)]
    if ordering.above not in here or not rows:
        why = "not all of its rows were selected"
        return Claim(text, None, why, None, why, "", as_printed)
    top, others = here[ordering.above], {r: here[r] for r in rows}
    by_rule, by_last10 = judge_order(top, others, "values"), judge_order(top, others, "last10")
    return Claim(text, *by_rule, *by_last10, describe_seeds(top, others), as_printed)


def name_column_data(column: str, numbers: Sequence[ComparedNumber]) -> str:
    """Return the name of the data run for a column; stand-ins also name the paper's columns."""
    first = next((n for n in numbers if n.column == column), None)
    if first is None:
        return column
    alone = first.in_place_of and len({n.in_place_of for n in numbers}) == 1
    return first.setup if alone else first.label


def judge_order(
    top: ComparedNumber, others: Mapping[str, ComparedNumber], which: Literal["values", "last10"]
) -> tuple[bool | None, str]:
    """Decide whether a row's mean is above the means of all others; also describe the smallest gap."""
    pairs = {r: found for r, n in others.items() if (found := compare_rows_by_seed(top, n, which))}
    if len(pairs) < len(others):
        return None, f"no numbers of {', '.join(r for r in others if r not in pairs)}"
    nearest = min(pairs, key=lambda r: pairs[r].mean)
    gap = round(pairs[nearest].mean, ROUNDING_DIGITS)
    chance = format_p_value(pairs, nearest if gap <= 0 else None)
    if gap > 0:
        return True, f"by {gap:.2f} over {nearest}{chance}"
    if gap == 0:
        return False, f"{nearest} equals it{chance}"
    return False, f"{nearest} is above it by {-gap:.2f}{chance}"


def format_p_value(pairs: Mapping[str, statistics.PairedComparison], one: str | None) -> str:
    """Format the largest p value of an ordering, or row ``one``'s p value; empty with too few seeds."""
    if min(found.pairs for found in pairs.values()) < statistics.count_pairs_needed(len(pairs)):
        return ""
    p_values = dict(
        zip(pairs, statistics.apply_holm_correction([f.p for f in pairs.values()]), strict=True)
    )
    return f", p = {p_values[one] if one else max(p_values.values()):.2g}"


def describe_seeds(top: ComparedNumber, others: Mapping[str, ComparedNumber]) -> str:
    """Describe the number of seeds of an ordering, and whether there are too few to rule out chance."""
    fewest = min(len({*top.seeds} & {*other.seeds}) for other in others.values())
    seeds = ONE_SEED if fewest == 1 else f"{fewest} seeds"
    few = fewest < statistics.count_pairs_needed(len(others))
    return f"{seeds}, too few to tell it from chance" if few else seeds


def compare_rows_by_seed(
    a: ComparedNumber, b: ComparedNumber, which: Literal["values", "last10"]
) -> statistics.PairedComparison | None:
    """Compare two rows of a table over their common seeds; None without a common seed."""
    ours, theirs = (dict(zip(x.seeds, getattr(x, which), strict=True)) for x in (a, b))
    common = [s for s in ours if s in theirs]
    if not common:
        return None
    return statistics.compare_pairs([ours[s] for s in common], [theirs[s] for s in common])


# In words -----------------------------------------------------------------------------------


def describe_claim(claim: Claim, rule: str) -> str:
    """Describe whether an ordering holds, by the paper's rule (a key of ``RULE_NAMES``) and by last 10."""
    yes, no = ("holds", "does not hold") if claim.as_printed else ("seen here", "not seen here")
    if claim.as_printed and claim.seeds.startswith(f"{ONE_SEED},"):
        yes, no = "seen with one seed", "not seen with one seed"  # a single seed decides nothing
    words = {True: yes, False: no, None: "cannot be decided"}
    own, last10 = RULE_NAMES[rule], RULE_NAMES["last10"]
    if claim.holds is None:
        return f"{words[None]}: {claim.text} ({claim.why})"
    if rule == "last10":
        return f"{words[claim.holds]}: {claim.text} ({last10}: {claim.why}; {claim.seeds})"
    reasons = f"{own}: {claim.why}; {last10}: {claim.why_last10}; {claim.seeds}"
    if claim.holds == claim.holds_last10:
        return f"{words[claim.holds]}: {claim.text} ({reasons})"
    return (
        f"{words[claim.holds]} by {own}, {words[claim.holds_last10]} by {last10}:"
        f" {claim.text} ({reasons})"
    )
