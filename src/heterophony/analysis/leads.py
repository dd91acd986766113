"""Find who leads in a measure beyond chance; a lead that chance could give is not highlighted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from .significance import ALPHA, apply_holm_correction, compare_pairs, count_pairs_needed

# of one series: its measures by seed and data; runs with the same key form a pair
MeasuresByBlock = Mapping[tuple[int, str], Mapping[str, float]]
BOLD_NOTE = (
    f"Bold: higher than every other row beyond chance (paired by seed, p < {ALPHA} after Holm)."
)


def find_clear_leader(series: Mapping[str, MeasuresByBlock], key: str) -> str | None:
    """Find the series whose measure is higher than that of all others, beyond chance.

    The highest is compared with each other one over the seeds and data that both have. All
    p values, corrected for their number (Holm), must be below ALPHA.
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
        pairs = compare_pairs([known[leader][b] for b in common], [values[b] for b in common])
        if pairs.mean <= 0:
            return None
        p_values.append(pairs.p)
    return leader if max(apply_holm_correction(p_values)) < ALPHA else None


# In words -----------------------------------------------------------------------------------


def explain_highlighting(table: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str | None:
    """Say what bold means in these columns, or why nothing is bold; None if nothing is compared."""
    if any(key in row["leads"] for row in table for key in keys):
        return BOLD_NOTE
    reason = explain_missing_lead(table)
    return reason and f"Nothing is bold: {reason}."


def explain_missing_lead(table: Sequence[Mapping[str, Any]]) -> str | None:
    """Say why no row leads beyond chance; None if fewer than two are finished."""
    finished = [row for row in table if row["state"] == "finished"]
    if len(finished) < 2:
        return None
    common = set.intersection(*(set(row["seeds"]) for row in finished))
    needed = count_pairs_needed(len(finished) - 1)
    if not common:
        return f"the rows have no seed in common; comparing them takes at least {needed}"
    if len(common) < needed:
        seeds = "one seed" if len(common) == 1 else f"{len(common)} seeds"
        return (
            f"{seeds} cannot tell {len(finished)} rows apart from chance; it takes at least"
            f" {needed} seeds"
        )
    return f"over {len(common)} seeds, no row is higher than all others beyond chance"
