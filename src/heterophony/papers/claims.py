"""Check the orderings that a paper's numbers show on ours: by the paper's rule, and by last 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from ..analysis.significance import (
    PairedComparison,
    apply_holm_correction,
    compare_pairs,
    count_pairs_needed,
)
from .table import Ordering, PublishedTable
from .verdicts import ComparedNumber

RULE_NAMES = {
    "best": "best round",
    "last": "last round",
    "last10": "last 10",
    "matched": "at equal training loss",  # of attacks, which are not measured in rounds
}
ONE_SEED = "1 seed"
ROUNDING_DIGITS = 9  # means that differ by less are equal


@dataclass(frozen=True)
class Claim:
    """An ordering in the paper's numbers, and whether it holds in ours; None if unknown."""

    text: str
    holds: bool | None  # by the paper's rule
    why: str
    holds_last10: bool | None  # by the mean over the last ten evaluations
    why_last10: str
    seeds: str  # how many seeds, and whether they can tell the order from chance
    as_printed: bool  # whether our runs are the paper's; if not, this says nothing about the paper


def check_claims(table: PublishedTable, numbers: Sequence[ComparedNumber]) -> list[Claim]:
    """Check every ordering of the table in every selected column.

    Columns that are the same runs at this scale make the same claim, which is listed once.
    """
    columns = dict.fromkeys(n.column for n in numbers)
    claims = [
        check_ordering(ordering, column, numbers)
        for ordering in table.orderings
        for column in columns
        if fnmatchcase(column, ordering.columns)
    ]
    return list(dict.fromkeys(claims))


def check_ordering(ordering: Ordering, column: str, numbers: Sequence[ComparedNumber]) -> Claim:
    """Check one ordering in one column, by both rules."""
    here = {n.row: n for n in numbers if (n.column, n.measure) == (column, ordering.measure)}
    below = "all others" if ordering.below == "*" else ordering.below
    text = f"{name_place(column, numbers)}: {ordering.measure} of {ordering.above} is above {below}"
    as_printed = not any(n.in_place_of for n in numbers)
    rows = [r for r in here if r != ordering.above and fnmatchcase(r, ordering.below)]
    if ordering.above not in here or not rows:
        why = "not all of its rows were selected"
        return Claim(text, None, why, None, why, "", as_printed)
    top, others = here[ordering.above], {r: here[r] for r in rows}
    by_rule, by_last10 = judge_order(top, others, "values"), judge_order(top, others, "last10")
    return Claim(text, *by_rule, *by_last10, describe_seeds(top, others), as_printed)


def name_place(column: str, numbers: Sequence[ComparedNumber]) -> str:
    """Name what was run for a column; the paper's columns too, where they are not all the same."""
    first = next((n for n in numbers if n.column == column), None)
    if first is None:
        return column
    alone = first.in_place_of and len({n.in_place_of for n in numbers}) == 1
    return first.setup if alone else first.label


def judge_order(
    top: ComparedNumber, others: Mapping[str, ComparedNumber], which: Literal["values", "last10"]
) -> tuple[bool | None, str]:
    """Judge whether the mean of ``top`` is above all others, and say by how much."""
    pairs = {r: found for r, n in others.items() if (found := pair_seeds(top, n, which))}
    if len(pairs) < len(others):
        return None, f"no numbers of {', '.join(r for r in others if r not in pairs)}"
    nearest = min(pairs, key=lambda r: pairs[r].mean)
    gap = round(pairs[nearest].mean, ROUNDING_DIGITS)
    chance = describe_chance(pairs, nearest if gap <= 0 else None)
    if gap > 0:
        return True, f"by {gap:.2f} over {nearest}{chance}"
    if gap == 0:
        return False, f"{nearest} equals it{chance}"
    return False, f"{nearest} is above it by {-gap:.2f}{chance}"


def describe_chance(pairs: Mapping[str, PairedComparison], one: str | None) -> str:
    """Give p of all pairs, or of ``one`` of them; nothing if there are too few to have one."""
    if min(found.pairs for found in pairs.values()) < count_pairs_needed(len(pairs)):
        return ""
    p_values = dict(zip(pairs, apply_holm_correction([f.p for f in pairs.values()]), strict=True))
    return f", p = {p_values[one] if one else max(p_values.values()):.2g}"


def describe_seeds(top: ComparedNumber, others: Mapping[str, ComparedNumber]) -> str:
    """Say how many seeds there are, and if they are too few to tell an order from chance."""
    fewest = min(len({*top.seeds} & {*other.seeds}) for other in others.values())
    seeds = ONE_SEED if fewest == 1 else f"{fewest} seeds"
    few = fewest < count_pairs_needed(len(others))
    return f"{seeds}, too few to tell it from chance" if few else seeds


def pair_seeds(
    a: ComparedNumber, b: ComparedNumber, which: Literal["values", "last10"]
) -> PairedComparison | None:
    """Compare two rows over the seeds that both have; None without any."""
    ours, theirs = (dict(zip(x.seeds, getattr(x, which), strict=True)) for x in (a, b))
    common = [s for s in ours if s in theirs]
    if not common:
        return None
    return compare_pairs([ours[s] for s in common], [theirs[s] for s in common])


# In words -----------------------------------------------------------------------------------


def describe_claim(claim: Claim, rule: str) -> str:
    """Say whether an ordering holds, by the paper's rule (a key of ``RULE_NAMES``) and by last 10."""
    yes, no = ("holds", "does not hold") if claim.as_printed else ("seen here", "not seen here")
    if claim.as_printed and claim.seeds.startswith(f"{ONE_SEED},"):
        yes, no = "seen with one seed", "not seen with one seed"  # which decides nothing
    words = {True: yes, False: no, None: "cannot be told"}
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
