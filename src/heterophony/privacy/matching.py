"""Match algorithms by loss: find the rounds after which they have learned equally much.

After the same number of rounds one algorithm has often learned more than another, and a network that
has learned more is mostly harder to attack. So attacks can be compared at the same loss. Imports no
torch, so that commands start quickly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Record = dict[str, Any]


def match_rounds(losses: Mapping[int, float], levels: Iterable[float]) -> dict[float, int]:
    """Return for each level the first round whose loss is at most that; none for levels not reached."""
    found = {
        level: next((t for t in sorted(losses) if losses[t] <= level), None) for level in levels
    }
    return {level: t for level, t in found.items() if t is not None}


def collect_losses(records: Iterable[Record]) -> dict[str, dict[int, float]]:
    """Collect the recorded losses of the algorithms that send parameters, by round."""
    out: dict[str, dict[int, float]] = {}
    for r in records:
        if lists_sent_parameters(r):
            out.setdefault(r["algorithm"], {})
        elif r["event"] == "loss":
            out.setdefault(r["algorithm"], {})[r["round"]] = r["loss"]
    return out


def lists_sent_parameters(record: Record) -> bool:
    """Tell whether a record lists parameters that an algorithm sends."""
    return bool(record["event"] == "visible" and record["names"])


def collect_matched_rounds(records: Iterable[Record]) -> dict[str, dict[float, int]]:
    """Collect the rounds that reach each level, by algorithm; empty if no losses were asked for."""
    found = list(records)
    levels = found[0]["victims"].get("losses", ())
    if not levels:
        return {}
    return {name: match_rounds(losses, levels) for name, losses in collect_losses(found).items()}


def list_common_levels(matched: Mapping[str, Mapping[float, int]]) -> list[float]:
    """List the levels that all algorithms reach, highest first: only they can be compared."""
    reached = [set(rounds) for rounds in matched.values()]
    return sorted(set.intersection(*reached), reverse=True) if reached else []
