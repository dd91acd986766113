"""The summary of a run, as stored in ``result.json``: computed only from its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from ..core.errors import FolderError, HeterophonyError
from ..core.files import read_json, write_json
from ..core.scores import get_metric_info
from .curves import Accuracy, Fairness, NewClients, compute_curves, compute_loss_curves, list_sizes
from .events import (
    Counts,
    EndEvent,
    EvaluationEvent,
    Event,
    RoundEvent,
    StartEvent,
    find_kept_round,
    find_last_evaluation,
    get_end,
    get_new_clients,
    get_start,
    select_evaluations,
    select_rounds,
)
from .run_index import RESULT_FILE

MetricCurve = list[tuple[int, float]]
OMITTED_IF_EMPTY = (  # keys of result.json
    *("loss", "metrics", "data_remark", "compute", "protection", "privacy", "bad_clients"),
    *("nets", "kept_round", "stopped", "examples_per_round", "relative_work"),
)


def compute_metric_curves(events: Sequence[Event]) -> dict[str, dict[str, MetricCurve]]:
    """Return a run's (round, value) points by metric and measure (``G``, ``P``, ``G_valid``, ``P_valid``).

    The clients' values are averaged on the scale that the metric's ``pooling`` sets.
    """
    sizes = list_sizes(get_start(events))
    out: dict[str, dict[str, MetricCurve]] = {}
    for event in select_evaluations(events):
        for measure, metrics in event.get("metrics", {}).items():
            for name, values in metrics.items():
                pooled = get_metric_info(name).pool(values, sizes[measure])
                if pooled is not None:
                    out.setdefault(name, {}).setdefault(measure, []).append((event["t"], pooled))
    return out


def pool_last_metrics(events: Sequence[Event]) -> dict[str, dict[str, float | None]]:
    """Return the value of every metric at the end, or in the kept round, by measure."""
    kept = find_kept_round(events)
    curves = compute_metric_curves(
        [e for e in events if kept is None or e["event"] != "evaluation" or e["t"] <= kept]
    )
    return {name: {m: c[-1][1] for m, c in of.items()} for name, of in curves.items()}


@dataclass(frozen=True)
class ClientResult:
    """Final accuracies of the personal and the generic model on one client's test data."""

    accuracy: float
    correct: float
    total: int
    generic: float | None
    train: int
    participations: int


@dataclass(frozen=True)
class NetResult:
    """Final accuracy of the personal models of all clients that have the same net."""

    P: float | None  # pooled over their test examples
    clients: int


@dataclass(frozen=True)
class Summary:
    """The content of ``result.json``. Accuracies are fractions, pooled over all test examples.

    ``P_mean`` is P as the mean over clients, as some papers report it. ``fairness``, ``clients``,
    ``loss`` and ``metrics`` describe the models that the run keeps, from the last round or from
    ``kept_round``.
    """

    algorithm: str
    seed: int
    rounds: int
    G: Accuracy | None
    P: Accuracy
    P_mean: Accuracy  # P as the mean over clients
    P_local: Accuracy | None  # P of each round's clients, right after local training
    fairness: dict[str, Fairness | None]
    clients: dict[str, ClientResult]
    bytes: dict[str, int]
    seconds: float
    work: dict[str, float]  # seconds of training and evaluation, added up over workers
    shared_parameters: int
    data_sha256: str
    model_sha256: str
    version: str
    examples_per_round: float | None = None  # over all clients; None if not recorded
    relative_work: float | None = None  # examples per round, relative to FedAvg's
    simulated_seconds: float | None = None  # None if speeds are not simulated
    extra: dict[str, Any] = field(default_factory=dict)
    new_clients: NewClients | None = None
    personal_bytes: int | None = None  # personal parameters that clients sent, only to measure G
    loss: dict[str, float | None] = field(default_factory=dict)  # test loss of G and P at the end
    task: str = "classification"  # for other tasks, accuracies are their scores
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)  # at the end
    data_remark: str | None = None  # differences from the published data set of the same name
    compute: dict[str, Any] = field(default_factory=dict)  # if not on the CPU in float32
    protection: list[dict[str, Any]] = field(default_factory=list)  # each with its settings
    epsilon: float | None = None  # ε spent by the run; None if there is no bound
    delta: float | None = None  # None if no protection promises differential privacy
    privacy: dict[str, Any] = field(default_factory=dict)  # what ε covers, and what it does not
    bad_clients: list[str] = field(default_factory=list)  # malicious clients of a simulated attack
    # by net, if clients have different ones
    nets: dict[str, NetResult] = field(default_factory=dict)
    kept_round: int | None = None  # the best round on validation examples, if its models are kept
    stopped: str = ""  # why the run stopped before its last round, if it did

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain data for ``result.json``, without optional values that are empty."""
        out = asdict(self)
        if self.task == "classification":
            del out["task"]
        for key in OMITTED_IF_EMPTY:
            if not out[key] and out[key] != 0:
                del out[key]
        if self.delta is None:  # without differential privacy there is no ε
            del out["epsilon"], out["delta"]
        return out


def summarise(events: Sequence[Event]) -> Summary:
    """Compute the summary of a finished run."""
    if get_end(events) is None or events[0]["event"] != "start":
        raise FolderError("the run is not finished; continue it with `heterophony resume`")
    try:
        return build_summary(events)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise FolderError("events.jsonl is damaged, or was written by another version") from None


def build_summary(events: Sequence[Event]) -> Summary:
    """Compute the summary of a finished run; damaged events raise errors of many types."""
    start, end, last = get_start(events), get_end(events), find_last_evaluation(events)
    if end is None or last is None or last["P"] is None:
        raise ValueError("the run is not finished, or nothing was measured")
    rounds, new, lines = select_rounds(events), get_new_clients(events), compute_curves(events)
    by_client = compute_curves(events, "mean")
    timed = [*rounds, *([new] if new else []), end]
    examples_per_round, relative_work = summarise_examples(rounds)
    clients = build_client_results(start, last, rounds)
    own = [c.accuracy for c in clients.values()]
    generic = [c.generic for c in clients.values() if c.generic is not None]
    return Summary(
        algorithm=start["algorithm"],
        seed=start["seed"],
        rounds=end["t"] if "stopped" in end else start["rounds"],
        G=Accuracy.from_curve(lines["G"], lines["G_valid"]) if lines["G"] else None,
        P=Accuracy.from_curve(lines["P"], lines["P_valid"]),
        P_mean=Accuracy.from_curve(by_client["P"], by_client["P_valid"]),
        P_local=Accuracy.from_curve(lines["P_local"]) if lines["P_local"] else None,
        fairness={
            "P": Fairness.from_accuracies(own),
            "G": Fairness.from_accuracies(generic) if generic else None,
        },
        clients=clients,
        bytes={
            "up": sum(e["bytes_up"] for e in rounds),
            "down": sum(e["bytes_down"] for e in rounds),
        },
        seconds=round(sum(e["seconds"] for e in timed), 3),
        work={
            "train": round(sum(e["work"]["train"] for e in timed), 3),
            "evaluate": round(sum(e["work"]["evaluate"] for e in timed), 3),
        },
        shared_parameters=start["shared_parameters"],
        data_sha256=start["data_sha256"],
        model_sha256=end["model_sha256"],
        version=start["version"],
        examples_per_round=examples_per_round,
        relative_work=relative_work,
        simulated_seconds=max((e["clock"] for e in rounds if "clock" in e), default=None),
        new_clients=NewClients.from_event(new) if new else None,
        personal_bytes=sum(e.get("personal_bytes", 0) for e in rounds) or None,
        loss=summarise_losses(events),
        task=start.get("task", "classification"),
        metrics=pool_last_metrics(events),
        data_remark=start.get("data_remark"),
        compute=describe_unusual_compute(start),
        protection=start.get("protection", []),
        epsilon=rounds[-1].get("epsilon") if rounds else None,
        delta=rounds[-1].get("delta") if rounds else None,
        privacy=start.get("privacy", {}),
        bad_clients=start.get("bad_clients", []),
        nets=summarise_nets(start, clients),
        kept_round=find_kept_round(events),
        stopped=end.get("stopped", ""),
    )


def build_client_results(
    start: StartEvent, last: EvaluationEvent, rounds: Sequence[RoundEvent]
) -> dict[str, ClientResult]:
    """Return each client's result in the last evaluation; ``generic`` is None if G was not measured."""
    assert last["P"] is not None
    correct, counts = require_all_counts(last["P"]), last["G"] and require_all_counts(last["G"])
    participations = Counter(c for e in rounds for c in e["clients"])
    return {
        c: ClientResult(
            accuracy=correct[i] / start["test"][i],
            correct=correct[i],
            total=start["test"][i],
            generic=counts[i] / start["test"][i] if counts else None,
            train=start["train"][i],
            participations=participations[c],
        )
        for i, c in enumerate(start["clients"])
    }


def summarise_nets(start: StartEvent, clients: Mapping[str, ClientResult]) -> dict[str, NetResult]:
    """Return the clients' P by net; empty if all clients have the same net."""
    found = dict[str, list[ClientResult]]()
    for net, result in zip(start.get("nets", ()), clients.values(), strict=False):
        found.setdefault(net, []).append(result)
    totals = {net: sum(r.total for r in results) for net, results in found.items()}
    return {
        net: NetResult(
            sum(r.correct for r in results) / totals[net] if totals[net] else None, len(results)
        )
        for net, results in found.items()
    }


def summarise_losses(events: Sequence[Event]) -> dict[str, float | None]:
    """Return the losses at the end, or in the kept round, by measure; None if not finite."""
    kept = find_kept_round(events)
    *_, last = [e for e in select_evaluations(events) if kept is None or e["t"] <= kept]
    curves = compute_loss_curves(events)
    return {m: dict(curves[m]).get(last["t"]) for m in last.get("loss", {}) if m in curves}


def describe_unusual_compute(start: StartEvent) -> dict[str, Any]:
    """Describe the run's device and precision if they are not the CPU and float32."""
    found = {k: v for k, v in start.items() if k in ("device", "deterministic", "precision")}
    return {k: v for k, v in found.items() if (k, v) != ("device", "cpu")}


def summarise_examples(rounds: Sequence[RoundEvent]) -> tuple[float | None, float | None]:
    """Return the mean number of examples that clients trained on per round, and its ratio to FedAvg's.

    Both are None if a round did not record its examples.
    """
    if not rounds or any("examples" not in e or "fedavg_examples" not in e for e in rounds):
        return None, None
    done, usual = sum(e["examples"] for e in rounds), sum(e["fedavg_examples"] for e in rounds)
    return done / len(rounds), done / usual if usual else None


def require_all_counts(counts: Counts) -> list[float]:
    """Return the counts of an evaluation; raise ValueError if a client has none."""
    known = [c for c in counts if c is not None]
    if len(known) < len(counts):
        raise ValueError("a client was never evaluated")
    return known


STANDARD_ERRORS = 2  # accuracies within this many standard errors of the chance level may be chance


def describe_chance_level(summary: Summary, start: StartEvent) -> str | None:
    """Return a warning if a run is no better than chance, otherwise None.

    That is, if neither the last evaluation nor the mean of the last ten is above the noise of chance.
    """
    if "task" in start or len(start["classes"]) < 2:  # other scores have no known chance level
        return None
    level, tested = compute_chance_level(start), sum(start["test"])
    limit = level + STANDARD_ERRORS * sqrt(level * (1 - level) / max(1, tested))
    measured = {"G": summary.G, "P": summary.P}
    known = {name: a for name, a in measured.items() if a is not None}
    if any(max(a.last, a.last10.mean) > limit for a in known.values()):
        return None
    verb = "is" if len(known) == 1 else "are"
    return (
        f"no better than chance: {' and '.join(known)} {verb} within noise of {100 * level:.1f} %, the accuracy of"
        " always giving the same answer; train for more rounds, let more clients train in each"
        " (participation.rate), or change training.lr or training.momentum"
    )


def compute_chance_level(start: StartEvent) -> float:
    """Return the accuracy of always predicting the largest class of a run's training examples."""
    counts = [sum(column) for column in zip(*start["labels"], strict=True)]
    largest: float = max(counts) / max(1, sum(counts))
    return max(largest, 1 / len(start["classes"]))


def describe_run_state(events: Sequence[Event]) -> str:
    """Return the state of a run for display: ``finished``, or ``round 3 of 20``."""
    if get_end(events) is not None:
        return "finished"
    return f"round {len(select_rounds(events))} of {get_start(events)['rounds']}"


def summarise_so_far(events: Sequence[Event]) -> Summary | None:
    """Summarise a run as if it had ended now; return None before the first evaluation."""
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


# Compared with a run of Local ---------------------------------------------------------------------------


def record_below_local(folder: Path) -> None:
    """Add to ``result.json`` the share of clients that have a lower accuracy than in a run of Local.

    The run of Local must have the same seed and data, and be in the same parent folder. Whichever of the two
    finishes last adds the share.
    """
    own = read_json(folder / RESULT_FILE)
    for file in sorted(folder.parent.glob(f"*/{RESULT_FILE}")):
        with suppress(OSError, HeterophonyError, LookupError, TypeError, AttributeError):
            if own["algorithm"] == "local":
                add_below_local(file, read_json(file), own)
            elif is_result_of_local(file) and add_below_local(
                folder / RESULT_FILE, own, read_json(file)
            ):
                return


def is_result_of_local(file: Path) -> bool:
    """Return True if a ``result.json`` belongs to a run of Local, as the beginning of the file says."""
    with file.open("rb") as stream:
        return b'"algorithm": "local"' in stream.read(40)


def add_below_local(file: Path, result: dict[str, Any], local: Mapping[str, Any]) -> bool:
    """Add the share of clients below Local to a result; return False if the runs cannot be compared."""
    clients = result["clients"]
    same = all(result[k] == local[k] for k in ("seed", "data_sha256"))
    if not same or clients.keys() != local["clients"].keys() or result["algorithm"] == "local":
        return False
    worse = [c["accuracy"] < local["clients"][k]["accuracy"] for k, c in clients.items()]
    write_json(file, {**result, "below_local": sum(worse) / len(worse)})
    return True
