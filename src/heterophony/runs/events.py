"""The events of a run, as ``events.jsonl`` records them, and how to select from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeGuard

from ..core.errors import FolderError


class WorkSeconds(TypedDict):
    """The seconds of work in a round or evaluation, added up over all workers."""

    train: Annotated[float, "seconds of training"]
    evaluate: Annotated[float, "seconds of evaluation"]


Span = list[str | float]
"""What a board did: `receive`, `train`, `evaluate` or `send`; the client; start and end in seconds."""


class BoardRound(TypedDict):
    """The activity of one board in a round. Times count from the start of the round, on the server's clock."""

    train: Annotated[float, "seconds of training, as the board reports"]
    evaluate: Annotated[float, "seconds of evaluation, as the board reports"]
    transfer: Annotated[float, "seconds in which tensors or replies were being transferred"]
    wait: Annotated[float, "seconds of the round without work or transfer"]
    bytes_down: Annotated[int, "bytes of all messages to the board"]
    bytes_up: Annotated[int, "bytes of all messages from the board"]
    peak_bytes: NotRequired[Annotated[float, "peak memory of its process so far"]]
    cpu_share: NotRequired[
        Annotated[float, "CPU seconds of its process per second, since its previous report"]
    ]
    celsius: NotRequired[Annotated[float, "highest temperature that the board reports"]]
    joules: NotRequired[
        Annotated[
            float, "energy that the board used since its previous report, if it reports energy"
        ]
    ]
    clients_possible: NotRequired[
        Annotated[
            float,
            "how many clients like those that it holds would fit into its memory, estimated from measured jobs",
        ]
    ]
    spans: Annotated[
        list[Span],
        "[what, client, start, end] of each transfer and job: `receive`, `train`, `evaluate`, `send`",
    ]


Counts = list[float | None]
"""Counts of correct answers, in the order of the clients; null for a client without a reply.

For tasks other than classification, the task's score, added up over the client's examples.
"""

MetricValues = dict[str, list[float | None]]
"""Values by metric name, in the order of the clients; null where the metric is undefined for a client."""

# one list per client, of [true class, predicted class, examples]
Confusions = list[list[list[int]] | None]

Measure = Literal["G", "P"]
MEASURES: tuple[Measure, ...] = ("G", "P")
ValidationMeasure = Literal["G_valid", "P_valid"]
VALIDATION_MEASURES: tuple[ValidationMeasure, ...] = ("G_valid", "P_valid")


class StartEvent(TypedDict):
    """Recorded once, before the first round."""

    event: Literal["start"]
    version: Annotated[str, "version of heterophony that started the run"]
    algorithm: Annotated[str, "name of the algorithm"]
    seed: Annotated[int, "seed of the run"]
    rounds: Annotated[int, "planned number of rounds"]
    clients: Annotated[list[str], "names of the clients; all counts per client follow this order"]
    train: Annotated[list[int], "number of training examples of each client"]
    test: Annotated[list[int], "number of test examples of each client"]
    validation: NotRequired[
        Annotated[
            list[int], "number of validation examples of each client, if the run holds any out"
        ]
    ]
    nets: NotRequired[Annotated[list[str], "the net of each client, if they differ"]]
    classes: Annotated[list[str], "names of the classes"]
    labels: Annotated[list[list[int]], "number of training examples of each client, by class"]
    task: NotRequired[
        Annotated[str, "the task, if it is not classification; G and P are then sums of scores"]
    ]
    data_remark: NotRequired[
        Annotated[
            str, "how the data differ from the published data set of the same name, if they do"
        ]
    ]
    shared_parameters: Annotated[int, "number of values in the shared model"]
    data_sha256: Annotated[str, "digest of the data and of their partition"]
    start_sha256: NotRequired[
        Annotated[str, "digest of the initial model; missing in runs of early versions"]
    ]
    files: NotRequired[
        Annotated[
            dict[str, str],
            "SHA-256 of each file that decides availability or speeds, if there are any",
        ]
    ]
    device: NotRequired[
        Annotated[
            str,
            "the accelerator that computes; missing in runs on boards, which choose their own",
        ]
    ]
    deterministic: NotRequired[
        Annotated[
            bool,
            "false if `engine.deterministic = false`: repeated runs may then differ in their bits",
        ]
    ]
    precision: NotRequired[Annotated[str, "`engine.precision`, if it is not `float32`"]]
    training: NotRequired[
        Annotated[
            str,
            "how plain passes of training run: in `groups` of clients, `direct` (one client at a time, without"
            " autograd), or by `autograd`; all have the same bits",
        ]
    ]
    protection: NotRequired[
        Annotated[list[dict[str, Any]], "the protections that are active, with their settings"]
    ]
    privacy: NotRequired[
        Annotated[
            dict[str, Any],
            "what ε and δ cover: unit, δ, how ε was computed, and what lies outside of them",
        ]
    ]
    bad_clients: NotRequired[
        Annotated[list[str], "clients that a simulated attack makes malicious"]
    ]
    keep_best: NotRequired[
        Annotated[
            str,
            "the validation score (`G` or `P`) that decides whose models are kept, with"
            " `evaluation.keep_best`",
        ]
    ]


class EvaluationEvent(TypedDict):
    """Recorded when an evaluation is due: before the training of round ``t``, and after the last round."""

    event: Literal["evaluation"]
    t: Annotated[int, "number of rounds before this evaluation"]
    G: Annotated[
        Counts | None,
        "correct answers of the generic model on each client's test examples;"
        " null if there is no generic model; a client that did not reply has null",
    ]
    P: Annotated[
        Counts | None,
        "correct answers of each client's personal model on its own test examples;"
        " null if personal models are not ready yet; a client that did not reply has null",
    ]
    G_valid: NotRequired[
        Annotated[Counts | None, "as G, on validation examples, if the run holds any out"]
    ]
    P_valid: NotRequired[
        Annotated[Counts | None, "as P, on validation examples, if the run holds any out"]
    ]
    loss: NotRequired[
        Annotated[
            dict[str, list[float | None]],
            "mean loss over each client's examples, for each measure among `G`, `P`, `G_valid` and `P_valid`"
            " that was evaluated; null for a client that did not reply, or whose loss is not finite;"
            " missing in runs of early versions",
        ]
    ]
    metrics: NotRequired[
        Annotated[
            dict[str, MetricValues],
            "further metrics for `G`, `P`, `G_valid` and `P_valid`, if the run measures any",
        ]
    ]
    confusion: NotRequired[
        Annotated[
            dict[str, Confusions],
            "with the metric `confusion`: for each client, true class, predicted class and number of"
            " examples; pairs of classes without examples are left out",
        ]
    ]


class RoundEvent(TypedDict):
    """Recorded after each round of training.

    ``asked``, ``dropped``, ``late`` and ``void`` are recorded if the configuration simulates faults
    or speeds, or if a client did not reply.
    """

    event: Literal["round"]
    t: Annotated[int, "number of the round, counted from 0"]
    clients: Annotated[
        list[str],
        "clients whose replies were merged, once per reply;"
        ' `["*"]` if one model is trained on the data of all clients',
    ]
    bytes_down: Annotated[int, "bytes of the tensors sent to the selected clients"]
    bytes_up: Annotated[int, "bytes of the tensors in the replies, merged or not"]
    personal_bytes: NotRequired[
        Annotated[int, "bytes of personal parameters that boards sent, only to measure G"]
    ]
    examples: NotRequired[
        Annotated[
            int,
            "examples that the clients trained on, counting every pass over the data;"
            " missing in runs of early versions",
        ]
    ]
    fedavg_examples: NotRequired[
        Annotated[int, "examples that FedAvg would have trained on with the same settings"]
    ]
    loss: Annotated[
        dict[str, float],
        "training loss by phase, averaged over the merged clients by training examples",
    ]
    measures: Annotated[
        dict[str, float],
        "other numbers that the algorithm reports: the clients' numbers, averaged in the same way,"
        " and the server's",
    ]
    P_local: Annotated[
        list[list[float]],
        "[correct answers, test examples] of each merged client right after local training;"
        " empty if no evaluation follows, or if the algorithm fine-tunes before it predicts",
    ]
    work: Annotated[WorkSeconds, "seconds of training and evaluation, added up over all workers"]
    asked: NotRequired[Annotated[list[str], "selected clients"]]
    dropped: NotRequired[Annotated[list[str], "selected clients that sent no reply"]]
    late: NotRequired[
        Annotated[list[str], "clients whose replies arrived after the round had closed"]
    ]
    refused: NotRequired[
        Annotated[
            list[str],
            "clients on boards whose updates were refused, because they would have damaged the model",
        ]
    ]
    filtered: NotRequired[
        Annotated[list[str], "clients whose replies a protection left out of the merge or clipped"]
    ]
    epsilon: NotRequired[
        Annotated[float | None, "ε that the run has spent so far; null if there is no bound"]
    ]
    delta: NotRequired[Annotated[float, "δ that belongs to ε"]]
    void: NotRequired[Annotated[bool, "true if no reply was merged"]]
    boards: NotRequired[
        Annotated[dict[str, BoardRound], "what each board did, by name, if the run is on boards"]
    ]
    simulated_seconds: NotRequired[
        Annotated[float, "simulated duration of the round, if speeds of clients are simulated"]
    ]
    clock: NotRequired[
        Annotated[
            float, "simulated time at the end of the round, if speeds of clients are simulated"
        ]
    ]
    seconds: Annotated[float, "real duration of the round"]


class NewClientsEvent(TypedDict):
    """Recorded after the last evaluation, if clients join after training."""

    event: Literal["new_clients"]
    t: Annotated[int, "number of rounds before they joined"]
    rounds: Annotated[int, "number of rounds that each new client trains on its own data"]
    clients: Annotated[list[str], "names of the new clients; the lists below follow this order"]
    train: Annotated[list[int], "number of training examples of each new client"]
    test: Annotated[list[int], "number of test examples of each new client"]
    before: Annotated[
        list[float],
        "each new client's correct answers on its test examples before it trains or fine-tunes",
    ]
    P: Annotated[
        list[float], "correct answers of each new client's personal model on its test examples"
    ]
    G: Annotated[
        list[float] | None,
        "correct answers of the generic model on each new client's test examples;"
        " null if there is no generic model",
    ]
    sha256: Annotated[list[str], "digest of each new client's memory"]
    seconds: Annotated[float, "real duration"]
    work: Annotated[WorkSeconds, "seconds of training and evaluation, added up over all workers"]


class EndEvent(TypedDict):
    """Recorded once, when the run is finished."""

    event: Literal["end"]
    t: Annotated[int, "number of rounds of the run"]
    model_sha256: Annotated[
        str, "digest of the server's tensors, of each client's memory, and of given tensors"
    ]
    stopped: NotRequired[Annotated[str, "why the run stopped before its last round, if it did"]]
    seconds: Annotated[float, "real duration of the last evaluation"]
    work: Annotated[WorkSeconds, "seconds of training and evaluation, added up over all workers"]


Event = StartEvent | EvaluationEvent | RoundEvent | NewClientsEvent | EndEvent
EVENT_TYPES = (StartEvent, EvaluationEvent, RoundEvent, NewClientsEvent, EndEvent)


def is_event(line: object) -> TypeGuard[Event]:
    """Return True if a line of JSON is an event, of a known or unknown kind."""
    return isinstance(line, dict) and "event" in line


def get_start(events: Sequence[Event]) -> StartEvent:
    """Return the start event of a run; raise FolderError if the events do not begin with it."""
    first = events[0] if events else None
    if not is_event(first) or first["event"] != "start":
        raise FolderError("events.jsonl is damaged: it does not begin with the start of a run")
    return first


def get_end(events: Sequence[Event]) -> EndEvent | None:
    """Return the end event of a run; None if the run is not finished."""
    last = events[-1] if events else None
    return last if last is not None and last["event"] == "end" else None


def select_evaluations(events: Iterable[Event]) -> list[EvaluationEvent]:
    """Return the evaluations of a run, in order."""
    return [e for e in events if e["event"] == "evaluation"]


def select_rounds(events: Iterable[Event]) -> list[RoundEvent]:
    """Return the events of training rounds, in order."""
    return [e for e in events if e["event"] == "round"]


def measure_validation(event: EvaluationEvent, by: Measure, examples: int) -> float | None:
    """Return the validation score of an evaluation, pooled over clients; None if it was not measured."""
    if not examples:
        return None
    counts = event.get("G_valid") if by == "G" else event.get("P_valid")
    return None if counts is None else sum(c or 0.0 for c in counts) / examples


def find_kept_round(events: Sequence[Event]) -> int | None:
    """Return the round whose models are kept: the first with the best validation score so far.

    Return None if the run keeps the models of its last round.
    """
    start = get_start(events)
    if "keep_best" not in start:
        return None
    by: Measure = "G" if start["keep_best"] == "G" else "P"
    examples = sum(start.get("validation", []))
    scores = [(e["t"], measure_validation(e, by, examples)) for e in select_evaluations(events)]
    known = [(score, -t) for t, score in scores if score is not None]
    return -max(known)[1] if known else None


def get_new_clients(events: Iterable[Event]) -> NewClientsEvent | None:
    """Return the event of the clients that joined after training; None if no clients joined."""
    return next((e for e in events if e["event"] == "new_clients"), None)


def find_last_evaluation(events: Iterable[Event]) -> EvaluationEvent | None:
    """Return a run's last evaluation of personal models, or the kept round's; None if there is none.

    A client that did not reply has the counts of its previous reply.
    """
    events = list(events)
    starts = bool(events) and events[0]["event"] == "start"
    kept = find_kept_round(events) if starts else None
    measured = [e for e in select_evaluations(events) if e["P"] is not None]
    newest_first = [e for e in reversed(measured) if kept is None or e["t"] <= kept]
    if not newest_first:
        return None
    last, *earlier = newest_first
    out = last.copy()
    for measure in MEASURES:
        out[measure] = fill_missing_counts(last[measure], [e[measure] for e in earlier])
    return out


def fill_missing_counts(counts: Counts | None, earlier: Iterable[Counts | None]) -> Counts | None:
    """Replace each missing count of an evaluation by the same client's newest earlier count."""
    for older in earlier:
        if counts is None or None not in counts:
            break
        if older:
            counts = [b if a is None else a for a, b in zip(counts, older, strict=True)]
    return counts
