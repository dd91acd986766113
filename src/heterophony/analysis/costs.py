"""Cumulative costs of a run at each evaluation: bytes and seconds of all rounds before it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from ..runs.events import Event, select_rounds

CostColumns = dict[str, list[float]]


def compute_cumulative_costs(events: Sequence[Event], measured: Sequence[int]) -> CostColumns:
    """Columns with one entry per evaluation; evaluation t is made before round t.

    ``MB`` counts 10⁶ bytes, up and down. ``simulated`` exists if devices have a simulated clock.
    """
    rounds = select_rounds(events)
    numbers = [e["t"] for e in rounds]
    before = [bisect_left(numbers, t) for t in measured]

    def sum_until_measured(each: Iterable[float]) -> list[float]:
        sums = list(accumulate(each, initial=0))
        return [sums[n] for n in before]

    out: CostColumns = {
        "t": list(measured),
        "MB": [
            n / 1e6 for n in sum_until_measured(e["bytes_up"] + e["bytes_down"] for e in rounds)
        ],
        "seconds": [round(s, 3) for s in sum_until_measured(e["seconds"] for e in rounds)],
    }
    if any("clock" in e for e in rounds):
        clock = [0.0, *(e.get("clock", 0.0) for e in rounds)]
        out["simulated"] = [round(clock[n], 3) for n in before]
    return out
