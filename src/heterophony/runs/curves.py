"""Accuracies and losses over the rounds, computed from the events of a run: pooled, or averaged over clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal

from .events import MEASURES, VALIDATION_MEASURES, EvaluationEvent, Event, RoundEvent, StartEvent


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


def compute_loss_curves(events: Iterable[Event]) -> dict[str, list[tuple[int, float]]]:
    """Return (round, loss) points of every measure, over all examples; those of early runs are empty.

    A loss that is not finite has no point.
    """
    out: dict[str, list[tuple[int, float]]] = {k: [] for k in (*MEASURES, *VALIDATION_MEASURES)}
    sizes: dict[str, list[int]] = {}
    for e in events:
        if e["event"] == "start":
            sizes = list_sizes(e)
        elif e["event"] == "evaluation":
            for measure, loss in pool_losses(e, sizes).items():
                out[measure].append((e["t"], loss))
    return out


def list_sizes(start: StartEvent) -> dict[str, list[int]]:
    """Return the number of examples of each client, by measure."""
    test, validation = start["test"], start.get("validation", [])
    return {"G": test, "P": test, "G_valid": validation, "P_valid": validation}


def pool_losses(event: EvaluationEvent, sizes: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Average the losses of one evaluation over all examples, by measure.

    Where a client was evaluated and its loss is not finite, the average is not finite, and left out.
    """
    found: dict[str, float] = {}
    for measure in (*MEASURES, *VALIDATION_MEASURES):
        scores, losses = event.get(measure), event.get("loss", {}).get(measure)
        if scores is None or losses is None:
            continue
        rows = zip(losses, scores, sizes[measure], strict=True)
        evaluated = [(loss, n) for loss, score, n in rows if score is not None and n]
        known = [(loss, n) for loss, n in evaluated if loss is not None]
        if known and len(known) == len(evaluated):
            found[measure] = sum(loss * n for loss, n in known) / sum(n for _, n in known)
    return found


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
