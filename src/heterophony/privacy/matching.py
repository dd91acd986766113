"""Match algorithms by training loss: find the rounds after which they have learned equally much.

After the same number of rounds one algorithm has often learned more than another, and what has
learned more is mostly harder to attack. So attacks can be compared at the same loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from ..runs.events import Event, select_rounds

Record = dict[str, Any]
MAIN_PHASE = "main"  # of training, where an algorithm names none: most train the shared part in it


def list_training_losses(events: Iterable[Event]) -> dict[int, float]:
    """List the training loss of the last of so many rounds: of the main phase, or of all if none is."""
    return {
        e["t"] + 1: e["loss"].get(MAIN_PHASE, fmean(e["loss"].values()))
        for e in select_rounds(events)
        if e["loss"]
    }


def match_rounds(losses: Mapping[int, float], levels: Iterable[float]) -> dict[float, int]:
    """Return for each level the first round whose loss is not above it; without levels not reached."""
    found = {
        level: next((t for t in sorted(losses) if losses[t] <= level), None) for level in levels
    }
    return {level: t for level, t in found.items() if t is not None}


def collect_losses(records: Iterable[Record]) -> dict[str, dict[int, float]]:
    """Collect the recorded losses of an audit, by algorithm and round."""
    out: dict[str, dict[int, float]] = {}
    for r in records:
        if r["event"] == "loss":
            out.setdefault(r["algorithm"], {})[r["round"]] = r["loss"]
    return out


def collect_matched_rounds(records: Iterable[Record]) -> dict[str, dict[float, int]]:
    """Collect the rounds that are attacked, by algorithm and level; empty if rounds were asked for."""
    found = list(records)
    levels = found[0]["victims"].get("losses", ())
    if not levels:
        return {}
    return {name: match_rounds(losses, levels) for name, losses in collect_losses(found).items()}


def list_common_levels(matched: Mapping[str, Mapping[float, int]]) -> list[float]:
    """List the levels that all algorithms reach, highest first: only they can be compared."""
    reached = [set(rounds) for rounds in matched.values()]
    return sorted(set.intersection(*reached), reverse=True) if reached else []
