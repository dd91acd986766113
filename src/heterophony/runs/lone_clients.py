"""Tell whether only one client trained in each round: with few clients, the default rate selects one."""

from __future__ import annotations

from collections.abc import Iterable

from .events import Event


def describe_lone_clients(events: Iterable[Event]) -> str | None:
    """Say that every round had one client of several, so that nothing was averaged; else None."""
    known: list[str] = []
    rounds = 0
    for event in events:
        if event["event"] == "start":
            known = event["clients"]
        elif event["event"] == "round":
            if len(event["clients"]) != 1 or event["clients"][0] not in known:
                return None
            rounds += 1
    if len(known) < 2 or not rounds:
        return None
    return (
        f"one of {len(known)} clients trained in each round, so nothing was averaged;"
        " with a higher participation.rate more of them train"
    )
