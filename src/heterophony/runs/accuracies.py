"""Accuracies of a run in few numbers: over rounds, over clients, and of clients that joined later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from .curve_points import Curve, find_highest_point, select_last_ten
from .events import NewClientsEvent

WORST_FRACTION = 0.1  # the fraction of clients in ``worst10``


@dataclass(frozen=True)
class MeanStd:
    """Mean and (population) standard deviation."""

    mean: float
    std: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> MeanStd:
        return cls(fmean(values), pstdev(values))


@dataclass(frozen=True)
class ValidationChoice:
    """The round with the best validation accuracy, and the test accuracy in that round."""

    round: int
    validation: float
    test: float


@dataclass(frozen=True)
class Accuracy:
    """One accuracy over the rounds: the best, the last, and the mean of the last ten evaluations.

    ``last10`` leaves out the untrained model, which is evaluated before the first round.
    ``chosen`` is the first round with the highest validation accuracy.
    """

    best: float
    best_round: int
    last: float
    last10: MeanStd
    chosen: ValidationChoice | None = None  # None without validation examples

    @classmethod
    def from_curve(cls, curve: Curve, validation: Curve = ()) -> Accuracy:
        at, best = find_highest_point(curve)
        chosen = None
        if validation:
            t, value = find_highest_point(validation)
            chosen = ValidationChoice(t, value, dict(curve)[t])
        last10 = MeanStd.from_values(select_last_ten(curve))
        return cls(best, at, curve[-1][1], last10, chosen)


@dataclass(frozen=True)
class Fairness:
    """How much accuracies differ between clients after the last round."""

    worst10: float  # mean accuracy of the worst tenth of the clients, at least one
    std: float

    @classmethod
    def from_accuracies(cls, accuracies: Sequence[float]) -> Fairness:
        worst = sorted(accuracies)[: max(1, int(WORST_FRACTION * len(accuracies)))]
        return cls(fmean(worst), pstdev(accuracies))


@dataclass(frozen=True)
class NewClientResult:
    """One client that joined after training, before and after it personalised the model."""

    before: float
    accuracy: float
    correct: float
    total: int
    generic: float | None
    train: int


@dataclass(frozen=True)
class NewClients:
    """The clients that joined after training; accuracies are pooled over their test examples."""

    rounds: int  # that each of them trained alone
    before: float  # accuracy before they train or tune
    P: float
    G: float | None
    fairness: Fairness  # of P
    clients: dict[str, NewClientResult]

    @classmethod
    def from_event(cls, event: NewClientsEvent) -> NewClients:
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
