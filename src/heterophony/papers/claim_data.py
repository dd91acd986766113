"""Verdicts on claims in words, and as plain data for programs, with what it costs to decide them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..analysis.significance import ConfidenceInterval
from .claim_verdicts import CaseVerdict, ClaimVerdict, RoundPart


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
        "scale": found.scale,
        "why": found.why,
        "cases": [summarise_case(case) for case in found.cases],
    }


def summarise_case(case: CaseVerdict) -> dict[str, Any]:
    return {
        "scale": case.scale,
        "variant": case.variant or None,
        "rule": case.rule,
        "verdict": case.decision,
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
    return interval and [round(interval.low, 3), round(interval.high, 3)]
