"""Verdicts on claims as plain data for programs, and in the words that all pages share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..analysis.significance import ConfidenceInterval
from .claim_cost import estimate_core_hours, explain_missing_cost, format_core_hours
from .claim_verdicts import BY_METHOD, LAST10, CaseVerdict, ClaimVerdict, RoundPart
from .claims import RULE_NAMES
from .evidence import STAND_IN

SCALE_WORDS = {
    None: "not run",
    BY_METHOD: "the method",
    "full": "full scale",
    "medium": "medium scale",
    STAND_IN: "stand-in data",
}
STAND_IN_WORDS = {
    "holds": "undecided; holds on stand-in data",
    "does not hold": "undecided; does not hold on stand-in data",
    "undecided": "undecided",
}
CASE_TITLES = ("runs", "rule", "verdict", "smallest difference, 95 % interval", "over the rounds")
COUNTED_WORDS = {  # each verdict, and how one and several are counted
    "holds": ("holds", "hold"),
    "holds under condition": ("holds under a condition", "hold under a condition"),
    "does not hold": ("does not hold", "do not hold"),
    "undecided": ("is undecided", "are undecided"),
}


def classify_verdict(verdict: str) -> str:
    """Return which of the four verdicts it is, without its conditions."""
    return max((w for w in COUNTED_WORDS if verdict.startswith(w)), key=len)


def count_verdicts(found: Iterable[ClaimVerdict]) -> str:
    """Count the verdicts: ``125 claims: 3 hold, …``."""
    counts = Counter(classify_verdict(one.verdict) for one in found)
    parts = [
        f"{counts[word]} {one if counts[word] == 1 else several}"
        for word, (one, several) in COUNTED_WORDS.items()
    ]
    total = sum(counts.values())
    return f"{total} claim{'s' * (total != 1)}: {', '.join(parts)}"


def describe_found(found: ClaimVerdict) -> str:
    """Describe in one line what decides a claim, or why nothing does."""
    kind = classify_verdict(found.verdict)
    if kind == "undecided" or not found.cases:
        where = f"{SCALE_WORDS[found.scale]}, " if found.scale and found.cases else ""
        return f"{where}{found.why}"
    wanted = "does not hold" if kind == "does not hold" else "holds"
    deciding = next(c for c in found.cases if (c.scale, c.decision) == (found.scale, wanted))
    return f"{SCALE_WORDS[deciding.scale]}, {deciding.condition}: {deciding.why}"


def list_cases(found: ClaimVerdict) -> list[list[str]]:
    """List what the runs say, in the columns of ``CASE_TITLES``: a row for each scale, variant and rule."""
    return [
        [
            f"{SCALE_WORDS[case.scale]}, {case.settings}",
            RULE_NAMES[case.rule],
            describe_decision(case),
            case.why,
            describe_parts(case.parts) if case.rule != LAST10 else "",
        ]
        for case in found.cases
    ]


def describe_decision(case: CaseVerdict) -> str:
    """Say what a case decides: nothing, on data that are not the paper's."""
    if case.scale != STAND_IN:
        return case.decision
    return STAND_IN_WORDS[case.decision]


def describe_cost(found: ClaimVerdict) -> str:
    """Say what it costs to decide a claim, in core-hours at both scales."""
    if found.claim.follows:
        return "0"
    hours = estimate_core_hours(found.claim)
    if not any(hours.values()):
        return explain_missing_cost(found.claim) or "–"
    return " / ".join(format_core_hours(hours[scale]) for scale in ("medium", "full"))


def describe_parts(parts: Sequence[RoundPart]) -> str:
    """Describe the difference over the rounds."""
    texts = []
    for p in parts:
        spread = f" ({p.interval.low:+.1f} … {p.interval.high:+.1f})" if p.interval else ""
        texts.append(f"rounds {p.first_round}–{p.last_round}: {p.mean:+.1f}{spread}")
    return ", ".join(texts).replace("-", "−")


def summarise_verdict(found: ClaimVerdict) -> dict[str, Any]:
    """Return a verdict as plain data for JSON."""
    return {
        "id": found.claim.id,
        "paper": found.claim.table.paper,
        "where": found.claim.table.where,
        "table": found.claim.table.name,
        "says": found.claim.says,
        "printed": found.claim.printed,
        "measure": found.claim.measure,
        "how": found.claim.how,
        "command": found.claim.command or None,
        "verdict": found.verdict,
        "core_hours": {k: v and round(v, 2) for k, v in estimate_core_hours(found.claim).items()},
        "needs": explain_missing_cost(found.claim) or None,
        "scale": found.scale,
        "why": found.why,
        "cases": [summarise_case(case) for case in found.cases],
    }


def summarise_case(case: CaseVerdict) -> dict[str, Any]:
    return {
        "scale": case.scale,
        "variant": case.variant or None,
        "rule": case.rule,
        "verdict": describe_decision(case),
        "why": case.why,
        "seeds": case.seeds,
        "differences": [
            {
                "first": list(d.first),
                "second": list(d.second),
                "seeds": list(d.seeds),
                "values": [round(v, 3) for v in d.values],
                "mean": round(d.mean, 3),
                "ci95": to_pair(d.interval()),
            }
            for d in case.differences
        ],
        "rounds": [
            {
                "from": p.first_round,
                "to": p.last_round,
                "mean": round(p.mean, 3),
                "ci95": to_pair(p.interval),
            }
            for p in case.parts
        ],
    }


def to_pair(interval: ConfidenceInterval | None) -> list[float] | None:
    return None if interval is None else [round(interval.low, 3), round(interval.high, 3)]
