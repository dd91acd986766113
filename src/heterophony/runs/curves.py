"""Curves of accuracy and loss over the rounds, and their summary: best, last, mean of the last ten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Literal

from .events import (
    MEASURES,
    VALIDATION_MEASURES,
    EvaluationEvent,
    Event,
    NewClientsEvent,
    RoundEvent,
    StartEvent,
)

Curve = Sequence[tuple[int, float]]  # (round, accuracy)


def find_highest_point(curve: Curve) -> tuple[int, float]:
    """Return the highest point of a curve, or the first of several equally high ones."""
    return max(curve, key=lambda p: (p[1], -p[0]))


def select_last_ten(curve: Curve) -> list[float]:
    """Return the accuracies of the last ten evaluations on a curve.

    The evaluation of the untrained model, before the first round, is used only if it is the only one.
    """
    trained = [v for t, v in curve if t > 0]
    return trained[-10:] or [v for _, v in curve]


WORST_FRACTION = 0.1  # the fraction of clients in ``worst10``


@dataclass(frozen=True)
class MeanStd:
    """The mean and the (population) standard deviation of several accuracies."""

    mean: float
    std: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> MeanStd:
        """Compute the mean and the standard deviation of some accuracies."""
        return cls(fmean(values), pstdev(values))


@dataclass(frozen=True)
class ValidationChoice:
    """The round with the best validation accuracy, and the test accuracy in that round."""

    round: int
    validation: float
    test: float


@dataclass(frozen=True)
class Accuracy:
    """The summary of a curve of accuracies: the best, the last, and the mean of the last ten.

    ``last10`` leaves out the evaluation of the untrained model, before the first round. ``chosen`` is the
    first round with the highest validation accuracy.
    """

    best: float
    best_round: int
    last: float
    last10: MeanStd
    chosen: ValidationChoice | None = None  # None without validation examples

    @classmethod
    def from_curve(cls, curve: Curve, validation: Curve = ()) -> Accuracy:
        """Summarise a curve of accuracies; choose a round if there is a validation curve."""
        at, best = find_highest_point(curve)
        chosen = None
        if validation:
            t, value = find_highest_point(validation)
            chosen = ValidationChoice(t, value, dict(curve)[t])
        last10 = MeanStd.from_values(select_last_ten(curve))
        return cls(best, at, curve[-1][1], last10, chosen)


@dataclass(frozen=True)
class Fairness:
    """The differences in accuracy between clients after the last round."""

    worst10: float  # mean accuracy of the worst tenth of the clients, at least one
    std: float

    @classmethod
    def from_accuracies(cls, accuracies: Sequence[float]) -> Fairness:
        """Compute the worst tenth and the standard deviation of the clients' accuracies."""
        worst = sorted(accuracies)[: max(1, int(WORST_FRACTION * len(accuracies)))]
        return cls(fmean(worst), pstdev(accuracies))


@dataclass(frozen=True)
class NewClientResult:
    """The accuracies of a client that joined after training, before and after it personalised the model."""

    before: float
    accuracy: float
    correct: float
    total: int
    generic: float | None
    train: int


@dataclass(frozen=True)
class NewClients:
    """The results of the clients that joined after training, pooled over their test examples."""

    rounds: int  # rounds that each client trained on its own data
    before: float  # accuracy before they train or fine-tune
    P: float
    G: float | None
    fairness: Fairness  # fairness of P
    clients: dict[str, NewClientResult]

    @classmethod
    def from_event(cls, event: NewClientsEvent) -> NewClients:
        """Compute the results of new clients from the run's event about them."""
        test, correct, generic = event["test"], event["P"], event["G"]
        accuracies = [c / n for c, n in zip(correct, test, strict=True)]
        clients = {
            c: NewClientResult(
                before=event["before"][i] / test[i],
                accuracy=accuracies[i],
                correct=correct[i],
                total=test[i],
                generic=generic[i] / test[i] if generic else None,
                train=event["train"][i],
            )
            for i, c in enumerate(event["clients"])
        }
        return cls(
            rounds=event["rounds"],
            before=sum(event["before"]) / sum(test),
            P=sum(correct) / sum(test),
            G=sum(generic) / sum(test) if generic else None,
            fairness=Fairness.from_accuracies(accuracies),
            clients=clients,
        )


def compute_curves(
    events: Iterable[Event], clients: Literal["pooled", "mean"] = "pooled"
) -> dict[str, list[tuple[int, float]]]:
    """Return (round, accuracy) points for every measure; a measure that was not recorded has no points.

    G and P either pool the test examples of all clients, or average the clients' accuracies.
    ``G_valid`` and ``P_valid`` are the same on validation examples. ``P_local`` is P of a round's
    clients right after local training; the point for round t is at t + 1.
    """
    names = ("G", "P", "P_local", "G_valid", "P_valid")
    out: dict[str, list[tuple[int, float]]] = {k: [] for k in names}
    sizes: dict[str, list[int]] = {}
    for e in events:
        if e["event"] == "start":
            sizes = list_sizes(e)
        elif e["event"] == "evaluation":
            for measure in (*MEASURES, *VALIDATION_MEASURES):
                if (right := e.get(measure)) is not None:
                    accuracy = compute_accuracy(right, sizes[measure], clients)
                    out[measure].append((e["t"], accuracy))
        elif e["event"] == "round" and (local := compute_local_accuracy(e)) is not None:
            out["P_local"].append((e["t"] + 1, local))
    return out


def compute_loss_curves(events: Iterable[Event]) -> dict[str, list[tuple[int, float]]]:
    """Return (round, loss) points for every measure; a loss that is not finite has no point.

    Runs of early versions did not record losses.
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
    """Return the example counts of all clients, by measure (``G``, ``P``, ``G_valid``, ``P_valid``)."""
    test, validation = start["test"], start.get("validation", [])
    return {"G": test, "P": test, "G_valid": validation, "P_valid": validation}


def pool_losses(event: EvaluationEvent, sizes: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Average the losses of one evaluation over all examples, by measure.

    A measure is left out if any evaluated client has a loss that is not finite.
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
    """Compute the accuracy over all examples ("pooled"), or the mean of the clients' accuracies ("mean").

    Clients without a reply or without examples are left out.
    """
    known = [(c, n) for c, n in zip(right, of, strict=True) if c is not None and n]
    if clients == "pooled":
        return sum(c for c, _ in known) / sum(n for _, n in known)
    return fmean(c / n for c, n in known)
