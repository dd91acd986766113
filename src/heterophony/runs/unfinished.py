"""Unfinished runs: how far they are, and their numbers so far."""

from __future__ import annotations

from collections.abc import Sequence

from .events import EndEvent, Event, find_last_evaluation, get_end, get_start, select_rounds
from .summary import Summary, summarise


def describe_state(events: Sequence[Event]) -> str:
    """Return ``finished``, or ``round 3 of 20``."""
    if get_end(events) is not None:
        return "finished"
    return f"round {len(select_rounds(events))} of {get_start(events)['rounds']}"


def summarise_so_far(events: Sequence[Event]) -> Summary | None:
    """Summarise a run as if it ended now; return None before the first evaluation."""
    if get_end(events) is not None:
        return summarise(events)
    if find_last_evaluation(events) is None:
        return None
    end: EndEvent = {
        "event": "end",
        "t": len(select_rounds(events)),
        "model_sha256": "",
        "seconds": 0.0,
        "work": {"train": 0.0, "evaluate": 0.0},
    }
    return summarise([*events, end])
