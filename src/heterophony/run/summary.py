"""What a run amounts to, computed from its events alone: G and P, fairness, bytes, seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, pstdev
from typing import Any, Literal

from ..core.errors import FolderError

Event = dict[str, Any]
Curve = Sequence[tuple[int, float]]  # (round, accuracy)
WORST_FRACTION = 0.1  # the share of clients that "worst" speaks of


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
    """The round that validation chooses, and what the test, which had no say, found there."""

    round: int
    validation: float
    test: float


@dataclass(frozen=True)
class Accuracy:
    """One accuracy over the rounds: its best, its last, and its last ten evaluations.

    And that of the round, the first of several, whose validation accuracy is the highest.
    """

    best: float
    best_round: int
    last: float
    last10: MeanStd
    chosen: ValidationChoice | None = None  # without validation examples there is no choice

    @classmethod
    def from_curve(cls, curve: Curve, validation: Curve = ()) -> Accuracy:
        at, best = find_highest_point(curve)
        values = [v for _, v in curve]
        chosen = None
        if validation:
            t, value = find_highest_point(validation)
            chosen = ValidationChoice(t, value, dict(curve)[t])
        return cls(best, at, values[-1], MeanStd.from_values(values[-10:]), chosen)


def find_highest_point(curve: Curve) -> tuple[int, float]:
    """The first of its highest points."""
    return max(curve, key=lambda p: (p[1], -p[0]))


@dataclass(frozen=True)
class Fairness:
    """How a measure is spread over the clients after the last round."""

    worst10: float  # mean accuracy of the worst tenth of the clients, at least one
    std: float

    @classmethod
    def from_accuracies(cls, accuracies: Sequence[float]) -> Fairness:
        worst = sorted(accuracies)[: max(1, int(WORST_FRACTION * len(accuracies)))]
        return cls(fmean(worst), pstdev(accuracies))


@dataclass(frozen=True)
class ClientResult:
    """One client after the last round: its own model and the common one on its own test data."""

    accuracy: float
    correct: int
    total: int
    generic: float | None
    train: int
    participations: int


@dataclass(frozen=True)
class NewClientResult:
    """One client who joined after training: as it arrived, and with its own model."""

    before: float
    accuracy: float
    correct: int
    total: int
    generic: float | None
    train: int


@dataclass(frozen=True)
class NewClients:
    """Those who joined after training; accuracies are pooled over their test examples."""

    rounds: int  # that each of them played alone
    before: float  # P of the model as it arrives, neither trained nor tuned
    P: float
    G: float | None
    fairness: Fairness  # of P
    clients: dict[str, NewClientResult]

    @classmethod
    def from_event(cls, event: Event) -> NewClients:
        before, own, generic = (
            event[k] and [c / n for c, n in zip(event[k], event["test"], strict=True)]
            for k in ("before", "P", "G")
        )
        clients = {
            c: NewClientResult(
                before[i],
                own[i],
                event["P"][i],
                event["test"][i],
                generic[i] if generic else None,
                event["train"][i],
            )
            for i, c in enumerate(event["clients"])
        }
        pooled = {k: event[k] and sum(event[k]) / sum(event["test"]) for k in ("before", "P", "G")}
        return cls(
            event["rounds"], **pooled, fairness=Fairness.from_accuracies(own), clients=clients
        )


@dataclass(frozen=True)
class Summary:
    """The content of ``result.json``. Accuracies are fractions, pooled over all test examples."""

    algorithm: str
    seed: int
    rounds: int
    G: Accuracy | None
    P: Accuracy
    P_local: Accuracy | None  # right after local training, over each round's participants
    fairness: dict[str, Fairness | None]
    clients: dict[str, ClientResult]
    bytes: dict[str, int]
    seconds: float
    work: dict[str, float]  # worker seconds, training and evaluating
    shared_parameters: int
    data_sha256: str
    model_sha256: str
    version: str
    simulated_seconds: float | None = None  # on the devices' clock, where there is one
    extra: dict[str, Any] = field(default_factory=dict)
    new_clients: NewClients | None = None
    personal_bytes: int | None = None  # of what stays, sent by devices only to measure G

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def compute_curves(
    events: Iterable[Event], clients: Literal["pooled", "mean"] = "pooled"
) -> dict[str, list[tuple[int, float]]]:
    """(round, accuracy) of G, P and P right after local training (of round t, shown at t + 1).

    Of G and P either all examples count alike, or all clients. ``G_valid`` and ``P_valid`` are
    those on validation examples, where a run holds such out.
    """
    names = ("G", "P", "P_local", "G_valid", "P_valid")
    out: dict[str, list[tuple[int, float]]] = {k: [] for k in names}
    sizes: dict[str, list[int]] = {}
    for e in events:
        if e["event"] == "start":
            test, validation = e["test"], e.get("validation", [])
            sizes = {"G": test, "P": test, "G_valid": validation, "P_valid": validation}
        elif e["event"] == "evaluation":
            for k, of in sizes.items():
                if e.get(k) is not None:
                    out[k].append((e["t"], compute_accuracy(e[k], of, clients)))
        elif e["event"] == "round" and e["P_local"]:
            right, seen = (sum(pair[i] for pair in e["P_local"]) for i in (0, 1))
            out["P_local"].append((e["t"] + 1, right / seen))
    return out


def compute_accuracy(
    right: Sequence[int | None], of: Sequence[int], clients: str = "pooled"
) -> float:
    """The share of right answers: of all examples, or the mean of every client's own.

    Clients that were not measured, or have nothing to be measured on, do not count.
    """
    known = [(c, n) for c, n in zip(right, of, strict=True) if c is not None and n]
    if clients == "pooled":
        return sum(c for c, _ in known) / sum(n for _, n in known)
    return fmean(c / n for c, n in known)


def find_last_evaluation(events: Sequence[Event]) -> Event | None:
    """The last evaluation of everything; one that left P out tells nothing about clients.

    A client that did not answer then has what it had when it last did.
    """
    whole = [e for e in reversed(events) if e["event"] == "evaluation" and e["P"] is not None]
    if not whole:
        return None
    known = {k: whole[0][k] and list(whole[0][k]) for k in ("G", "P")}
    for earlier in whole[1:]:
        if not any(None in counts for counts in known.values() if counts):
            break
        for k, counts in known.items():
            if counts and earlier[k]:
                known[k] = [b if a is None else a for a, b in zip(counts, earlier[k], strict=True)]
    return {**whole[0], **known}


def summarise(events: Sequence[Event]) -> Summary:
    """The result of a finished run."""
    if not events or events[0]["event"] != "start" or events[-1]["event"] != "end":
        raise FolderError("the run is not finished; go on with `heterophony resume`")
    try:
        return build_summary(events)
    except (KeyError, TypeError, IndexError, ValueError):
        raise FolderError("events.jsonl is damaged, or was written by another version") from None


def build_summary(events: Sequence[Event]) -> Summary:
    start, end = events[0], events[-1]
    last = find_last_evaluation(events)
    if last is None:
        raise ValueError("nothing was measured")
    rounds = [e for e in events if e["event"] == "round"]
    new = [e for e in events if e["event"] == "newcomers"]
    timed, lines = [*rounds, *new, end], compute_curves(events)
    own = [c / n for c, n in zip(last["P"], start["test"], strict=True)]
    generic = last["G"] and [c / n for c, n in zip(last["G"], start["test"], strict=True)]
    took_part = Counter(c for e in rounds for c in e["clients"])
    clients = {
        c: ClientResult(
            own[i],
            last["P"][i],
            start["test"][i],
            generic[i] if generic else None,
            start["train"][i],
            took_part[c],
        )
        for i, c in enumerate(start["clients"])
    }
    return Summary(
        algorithm=start["algorithm"],
        seed=start["seed"],
        rounds=start["rounds"],
        G=Accuracy.from_curve(lines["G"], lines["G_valid"]) if lines["G"] else None,
        P=Accuracy.from_curve(lines["P"], lines["P_valid"]),
        P_local=Accuracy.from_curve(lines["P_local"]) if lines["P_local"] else None,
        fairness={
            "P": Fairness.from_accuracies(own),
            "G": Fairness.from_accuracies(generic) if generic else None,
        },
        clients=clients,
        bytes={k: sum(e[f"bytes_{k}"] for e in rounds) for k in ("up", "down")},
        seconds=round(sum(e["seconds"] for e in timed), 3),
        work={k: round(sum(e["work"][k] for e in timed), 3) for k in ("train", "evaluate")},
        shared_parameters=start["shared_parameters"],
        data_sha256=start["data_sha256"],
        model_sha256=end["model_sha256"],
        version=start["version"],
        simulated_seconds=max((e["clock"] for e in rounds if "clock" in e), default=None),
        new_clients=NewClients.from_event(new[0]) if new else None,
        personal_bytes=sum(e.get("personal_bytes", 0) for e in rounds) or None,
    )
