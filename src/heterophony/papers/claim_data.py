"""The verdicts on published claims: in words, as tables, and as plain data for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..results.statistics import ConfidenceInterval
from ..results.table import Cell, Column, Mark, ResultTable, Rows, Value
from . import claim_verdicts
from .claim_list import Finding, group_claims, list_claims
from .evidence import FULL, MEDIUM, STAND_IN, StoredRun
from .scaling import estimate_core_hours, explain_missing_cost, format_core_hours
from .verdicts import RULE_NAMES

SCALE_WORDS = {
    None: "not run",
    claim_verdicts.BY_METHOD: "the method",
    FULL: "full scale",
    MEDIUM: "medium scale",
    STAND_IN: "stand-in data",
}
CASE_TITLES = ("runs", "rule", "verdict", "smallest difference", "over the rounds")
UNDER_CONDITION = " under condition"
VERDICTS = (
    *("holds", f"holds{UNDER_CONDITION}", "does not hold"),
    *("seen at medium scale", f"seen at medium scale{UNDER_CONDITION}", "not seen at medium scale"),
    *("not yet trained", "undecided"),
)
OPEN_VERDICTS = ("not yet trained", "undecided")
MARKS: tuple[Mark, ...] = ("good", "limited", "bad", "good", "limited", "bad", "open", "open")


@dataclass(frozen=True)
class FindingVerdict:
    """A finding and the verdicts on its claims; the first claim covers the others."""

    finding: Finding
    claims: tuple[claim_verdicts.ClaimVerdict, ...]

    @property
    def verdict(self) -> str:
        """The verdict on the finding, which is the verdict on its first claim."""
        return self.claims[0].verdict

    @property
    def is_open(self) -> bool:
        """Whether no run decides the finding."""
        return classify_verdict(self.verdict) in OPEN_VERDICTS


def judge_all_claims(runs: Sequence[StoredRun], table: str | None = None) -> list[FindingVerdict]:
    """Judge the claims of all papers from these runs; with ``table``, only findings with a claim of this table."""
    findings = group_claims(list_claims())
    if table is not None:
        findings = [f for f in findings if any(c.table.name == table for c in f.claims)]
    decided = claim_verdicts.decide_findings(findings, runs)
    return [FindingVerdict(finding, tuple(claims)) for finding, claims in decided]


def list_verdicts(
    found: Sequence[FindingVerdict], table: str | None = None
) -> list[claim_verdicts.ClaimVerdict]:
    """List the verdicts on all claims, table by table, or on the claims of one published table."""
    claims = [claim for one in found for claim in one.claims]
    kept = [c for c in claims if table is None or c.claim.table.name == table]
    order = {claim.id: i for i, claim in enumerate(list_claims())}
    return sorted(kept, key=lambda c: order[c.claim.id])


# Words --------------------------------------------------------------------------------------


def classify_verdict(verdict: str) -> str:
    """Return which of ``VERDICTS`` a verdict on a claim is, without its conditions."""
    return max((w for w in VERDICTS if verdict.startswith(w)), key=len)


def summarise_findings(found: Sequence[FindingVerdict]) -> str:
    """Describe how many findings hold at each scale: ``98 findings from 160 claims: …``."""
    by_method = sum(one.claims[0].scale == claim_verdicts.BY_METHOD for one in found)
    counts = Counter(classify_verdict(one.verdict) for one in found)
    counts["holds"] -= by_method

    def count(word: str, one: str, several: str) -> str:
        limited = counts[f"{word}{UNDER_CONDITION}"]
        total = counts[word] + limited
        condition = f" ({limited} under a condition)" if limited else ""
        return f"{total} {one if total == 1 else several}{condition}"

    claims, total = sum(len(one.claims) for one in found), len(found)
    return (
        f"{total} finding{'s' * (total != 1)} from {claims} claim{'s' * (claims != 1)}:"
        f" {by_method} hold{'s' * (by_method == 1)} by the method;"
        f" at full scale {count('holds', 'holds', 'hold')}"
        f" and {count('does not hold', 'does not hold', 'do not hold')};"
        f" at medium scale {count('seen at medium scale', 'is seen', 'are seen')},"
        f" {count('not seen at medium scale', 'is not seen', 'are not seen')}"
        f" and {count('not yet trained', 'is not yet trained', 'are not yet trained')};"
        f" {count('undecided', 'is undecided', 'are undecided')}"
    )


def describe_found(found: claim_verdicts.ClaimVerdict) -> str:
    """Describe in one line which runs decide a claim, or why none do."""
    kind = classify_verdict(found.verdict)
    if kind in OPEN_VERDICTS or not found.cases:
        where = f"{SCALE_WORDS[found.scale]}, " if found.scale and found.cases else ""
        return f"{where}{found.why}"
    wanted = "does not hold" if "does not" in kind or "not seen" in kind else "holds"
    deciding = next(
        c
        for c in found.cases
        if (c.scale, c.rule, c.decision, c.control) == (found.scale, found.rule, wanted, False)
    )
    text = f"{SCALE_WORDS[deciding.scale]}, {deciding.condition}: {deciding.why}"
    return f"{text}{describe_disagreement(found, deciding)}"


def describe_disagreement(
    found: claim_verdicts.ClaimVerdict, deciding: claim_verdicts.CaseVerdict
) -> str:
    """Describe the decision on a claim by the last ten evaluations if it differs, otherwise an empty string."""
    for case in found.cases:
        same = (case.scale, case.variant) == (deciding.scale, deciding.variant)
        if same and case.rule == claim_verdicts.LAST10 and case.decision != deciding.decision:
            other = claim_verdicts.name_decision(case.decision, case.scale)
            return f"; the last ten evaluations disagree: {other}, {case.why}"
    return ""


def mark_verdict(verdict: str) -> Cell:
    """Return a table cell with a verdict, marked as good, limited, bad or open."""
    return Cell(verdict, mark=MARKS[VERDICTS.index(classify_verdict(verdict))])


def build_claim_table(claims: Sequence[claim_verdicts.ClaimVerdict]) -> ResultTable:
    """Build the table of claims: printed numbers, verdicts, our results, and the cost of deciding."""
    return ResultTable.build(
        ["claim", "printed", "verdict", "found", Column("to decide, core-hours")],
        [
            [
                *(one.claim.says, one.claim.printed, mark_verdict(one.verdict)),
                *(describe_found(one), describe_cost(one)),
            ]
            for one in claims
        ],
    )


def build_claim_overview(claims: Sequence[claim_verdicts.ClaimVerdict]) -> ResultTable:
    """Build the short table of claims for a terminal, with the publication of each."""
    return ResultTable.build(
        [
            *("work", "claim", Column("printed", kind="text", drop=1), "verdict"),
            Column("core-hours: medium / full"),
        ],
        [
            [
                f"{one.claim.table.paper}, {one.claim.table.where}",
                *(one.claim.says, one.claim.printed, one.verdict, describe_cost(one)),
            ]
            for one in claims
        ],
    )


def build_case_table(found: claim_verdicts.ClaimVerdict, rounds: bool = True) -> ResultTable:
    """Build the table of the cases of a claim: a row for each scale, variant and rule.

    ``rounds`` adds the difference over the rounds, which is too long for a terminal.
    """
    titles = CASE_TITLES if rounds else CASE_TITLES[:-1]
    rows: Rows = []
    for case in found.cases:
        parts = describe_parts(case.parts) if case.rule == found.rule else ""
        row: list[Value] = [
            f"{SCALE_WORDS[case.scale]}, {case.settings}{' (our control)' * case.control}",
            f"{RULE_NAMES[case.rule]}{'' if case.rule == found.rule else ', beside'}",
            mark_verdict(describe_decision(case)),
            case.why,
            parts,
        ]
        rows.append(row[: len(titles)])
    return ResultTable.build(titles, rows)


def build_decided_table(found: Sequence[FindingVerdict]) -> ResultTable:
    """Build the table of decided findings, with all their claims."""
    return ResultTable.build(
        ["verdict", "claims", "found"],
        [
            [
                mark_verdict(one.verdict),
                "\n".join(name_claim(claim, one) for claim in one.claims),
                describe_found(one.claims[0]),
            ]
            for one in found
            if not one.is_open
        ],
    )


def name_claim(one: claim_verdicts.ClaimVerdict, finding: FindingVerdict) -> str:
    """Describe a claim of a finding in one line; add its verdict if it differs from the finding's."""
    claim = one.claim
    own = "" if one.verdict == finding.verdict else f": {one.verdict}"
    return f"{claim.table.paper}, {claim.table.where}: {claim.says} ({claim.printed}){own}"


def describe_decision(case: claim_verdicts.CaseVerdict) -> str:
    """Describe the decision in a case of a claim; with stand-in data, the case is undecided."""
    words = claim_verdicts.name_decision(case.decision, case.scale)
    standing = case.scale == STAND_IN and case.decision in claim_verdicts.SCALED_WORDS[STAND_IN]
    return f"undecided; {words}" if standing else words


def describe_cost(found: claim_verdicts.ClaimVerdict) -> str:
    """Describe the cost of deciding a claim, in core-hours at both scales."""
    if found.claim.follows:
        return "0"
    hours = estimate_core_hours(found.claim)
    if not any(hours.values()):
        return explain_missing_cost(found.claim) or "–"
    return " / ".join(format_core_hours(hours[scale]) for scale in (MEDIUM, FULL))


def describe_parts(parts: Sequence[claim_verdicts.RoundPart]) -> str:
    """Describe the difference that a claim compares, for each part of the rounds."""
    texts = []
    for p in parts:
        spread = f" ({p.interval.low:+.1f} … {p.interval.high:+.1f})" if p.interval else ""
        texts.append(f"rounds {p.first_round}–{p.last_round}: {p.mean:+.1f}{spread}")
    return ", ".join(texts).replace("-", "−")


# Plain data ---------------------------------------------------------------------------------


def summarise_verdict(found: claim_verdicts.ClaimVerdict) -> dict[str, Any]:
    """Return the verdict on a claim as plain data for JSON."""
    return {
        "id": found.claim.id,
        "finding": found.finding,
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
        "rule": found.rule,
        "core_hours": {k: v and round(v, 2) for k, v in estimate_core_hours(found.claim).items()},
        "needs": explain_missing_cost(found.claim) or None,
        "why": found.why,
        "cases": [summarise_case(case) for case in found.cases],
    }


def summarise_case(case: claim_verdicts.CaseVerdict) -> dict[str, Any]:
    """Return the verdict in a case of a claim as plain data for JSON."""
    return {
        "scale": case.scale,
        "variant": case.variant or None,
        "control": case.control,
        "rule": case.rule,
        "verdict": describe_decision(case),
        "why": case.why,
        "seeds": case.seeds,
        "differences": [
            {
                "first": [list(key) for key in d.comparison.first],
                "second": [list(key) for key in d.comparison.second],
                "seeds": list(d.seeds),
                "values": [round(v, 3) for v in d.values],
                "mean": round(d.mean, 3),
                "ci95": round_interval(d.interval()),
            }
            for d in case.differences
        ],
        "rounds": [
            {
                "from": p.first_round,
                "to": p.last_round,
                "mean": round(p.mean, 3),
                "ci95": round_interval(p.interval),
            }
            for p in case.parts
        ],
    }


def round_interval(interval: ConfidenceInterval | None) -> list[float] | None:
    """Return the rounded ends of a confidence interval, for JSON."""
    return None if interval is None else [round(interval.low, 3), round(interval.high, 3)]
