"""Accuracies over the rounds, computed from the events of a run: pooled, or averaged over clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Literal

from .events import MEASURES, VALIDATION_MEASURES, Event, RoundEvent


def compute_curves(
    events: Iterable[Event], clients: Literal["pooled", "mean"] = "pooled"
) -> dict[str, list[tuple[int, float]]]:
    """Return (round, accuracy) points of every measure; empty for one that was not measured.

    G and P either pool the test examples of all clients, or average the clients' accuracies.
    ``G_valid`` and ``P_valid`` are the same on validation examples. ``P_local`` is P of a round's
    clients right after local training; that of round t is at t + 1.
    """
    names = ("G", "P", "P_local", "G_valid", "P_valid")
    out: dict[str, list[tuple[int, float]]] = {k: [] for k in names}
    test, validation = list[int](), list[int]()
    for e in events:
        if e["event"] == "start":
            test, validation = e["test"], e.get("validation", [])
        elif e["event"] == "evaluation":
            for measure in MEASURES:
                if (right := e.get(measure)) is not None:
                    out[measure].append((e["t"], compute_accuracy(right, test, clients)))
            for held_out in VALIDATION_MEASURES:
                if (right := e.get(held_out)) is not None:
                    out[held_out].append((e["t"], compute_accuracy(right, validation, clients)))
        elif e["event"] == "round" and (local := compute_local_accuracy(e)) is not None:
            out["P_local"].append((e["t"] + 1, local))
    return out


def compute_local_accuracy(event: RoundEvent) -> float | None:
    """Pool the accuracies right after local training; return None if they were not measured."""
    right, seen = (sum(pair[i] for pair in event["P_local"]) for i in (0, 1))
    return right / seen if seen else None


def compute_accuracy(
    right: Sequence[float | None], of: Sequence[int], clients: str = "pooled"
) -> float:
    """Compute the accuracy over all examples ("pooled"), or the mean of the clients' accuracies.

    Clients that did not reply, or have no examples, do not count.
    """
    known = [(c, n) for c, n in zip(right, of, strict=True) if c is not None and n]
    if clients == "pooled":
        return sum(c for c, _ in known) / sum(n for _, n in known)
    return fmean(c / n for c, n in known)
