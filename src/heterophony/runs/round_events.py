"""Make the events of a run from its plan and the replies of its clients."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from .. import __version__
from ..core.accelerator import ON_CPU, Compute
from ..core.algorithm import POOLED_CLIENT, Reply, Server
from ..core.scores import CONFUSION, LOSS_PREFIX
from ..core.tensors import Tensors
from ..jobs.client_store import ClientStore
from ..jobs.dry_runs import list_unprotected
from ..jobs.plan import Plan, describe_plan
from ..population.attacks import RoundEnd
from ..protection import describe_protection
from . import events

# Optional fields; mypy accepts them in the middle of an event only from such types


class StartFields(TypedDict, total=False):
    """Optional keys of the event ``start``."""

    validation: list[int]
    nets: list[str]
    task: str
    data_remark: str
    files: dict[str, str]
    device: str
    deterministic: bool
    precision: str
    training: str
    protection: list[dict[str, Any]]
    privacy: dict[str, Any]
    bad_clients: list[str]
    keep_best: str


class RoundFields(TypedDict, total=False):
    """Optional keys of the event ``round``."""

    personal_bytes: int
    asked: list[str]
    dropped: list[str]
    late: list[str]
    refused: list[str]
    void: bool
    simulated_seconds: float
    clock: float
    boards: dict[str, events.BoardRound]
    filtered: list[str]
    epsilon: float | None
    delta: float


# facts about every client that the server records besides its replies, under any protection
RECORDED_OUTSIDE = (
    "numbers of examples and of their labels",
    "G and P of every client",
    "digests of what clients keep",
    "which clients replied, and when",
)


def describe_protections(plan: Plan) -> StartFields:
    """Return the start event's fields for protections and simulated attacks."""
    found: StartFields = {}
    if plan.protections:
        found["protection"] = [describe_protection(p) for p in plan.protections]
    run = describe_plan(plan)
    for protection in plan.protections:
        if promise := protection.promise(run):
            found["privacy"] = {
                "unit": promise.unit,
                "delta": promise.delta,
                "accounting": promise.accounting,
                "outside": list_uncovered_facts(plan),
            }
    if plan.attack.is_active:
        found["bad_clients"] = plan.attack.list_bad_clients(plan.federation.clients, plan.seed)
    return found


def list_uncovered_facts(plan: Plan) -> list[str]:
    """List the facts about clients that a run records but that are not covered by its ε."""
    tensors = [f"tensor {name}" for name in list_unprotected(plan)]
    aside = ["personal parameters, averaged to measure G"] if plan.averages_personal else []
    return [*tensors, *(aside if plan.algorithm.common else []), *RECORDED_OUTSIDE]


def describe_protected_round(
    plan: Plan,
    t: int,
    filtered: Sequence[str],
    trained: Sequence[Reply],
    spent: float | None,
) -> RoundFields:
    """Return the round event's fields for protections: filtered clients, and ε after the round.

    ``trained`` contains all replies of the round; ``spent`` is ε before the round.
    """
    found: RoundFields = {"filtered": list(filtered)} if filtered else {}
    run = describe_plan(plan)
    for protection in plan.protections:
        if promise := protection.promise(run):
            found["epsilon"] = protection.spend(run, t + 1, spent, trained)
            found["delta"] = promise.delta
    return found


OWN_METRICS = ("P_local", "seconds")  # metrics with keys of their own in the event


@dataclass(frozen=True, kw_only=True)
class FinishedRound:
    """The clients, replies and times of a finished round, from which its event is made."""

    t: int
    selected: Sequence[str]  # clients; one that was selected twice is listed twice
    sent: Mapping[str, Tensors]  # by client
    trained: Sequence[Reply]  # in client order
    merged: Sequence[Reply]  # the replies that were merged
    refused: Sequence[Reply] = ()  # replies that arrived in time but would have damaged the model
    filtered: Sequence[str] = ()  # clients whose replies a protection left out or clipped
    spent: float | None = None  # ε before the round
    evaluated: Sequence[Reply]  # replies of the evaluation that ran during the training
    end: RoundEnd
    clock: float  # simulated time at the start of the round
    measures: Mapping[str, float]  # measured by the algorithm on the server
    boards: Mapping[str, events.BoardRound] | None = None  # by board name, if the run is on boards


def make_start_event(plan: Plan, server: Server, compute: Compute = ON_CPU) -> events.StartEvent:
    """Make the event that describes a run before its first round."""
    federation = plan.federation
    sizes = list(federation.sizes("validation").values())
    validation: StartFields = {"validation": sizes} if any(sizes) else {}
    nets: StartFields = (
        {"nets": [plan.net_of[c] for c in federation.clients]} if plan.net_of else {}
    )
    learned: StartFields = {} if plan.task.name == "classification" else {"task": plan.task.name}
    remark: StartFields = {"data_remark": federation.remark} if federation.remark else {}
    files: StartFields = {"files": plan.file_digests} if plan.file_digests else {}
    best: StartFields = {"keep_best": plan.choose_by} if plan.keep_best else {}
    where: StartFields = {} if plan.clients_on_boards else describe_compute(plan, compute)
    return {
        "event": "start",
        "version": __version__,
        "algorithm": plan.algorithm_name,
        "seed": plan.seed,
        "rounds": plan.rounds,
        "clients": list(federation.clients),
        "train": list(federation.sizes().values()),
        "test": list(federation.sizes("test").values()),
        **validation,
        **nets,
        "classes": list(federation.labels),
        "labels": federation.count_labels().tolist(),
        **learned,
        **remark,
        "shared_parameters": sum(v.numel() for v in server.model.values()),
        "data_sha256": federation.sha256,
        "start_sha256": plan.start_sha256,
        **files,
        **where,
        **describe_protections(plan),
        **best,
    }


def describe_compute(plan: Plan, compute: Compute) -> StartFields:
    """Return the start event's fields for device, precision and kind of training."""
    found: StartFields = {"device": str(compute.device)}
    if not compute.is_cpu and not compute.deterministic:
        found["deterministic"] = False
    if compute.precision != "float32":
        found["precision"] = compute.precision
    found["training"] = plan.find_fastest_training(compute)
    return found


def make_evaluation_event(plan: Plan, t: int, replies: Sequence[Reply]) -> events.EvaluationEvent:
    """Make the event of an evaluation after ``t`` rounds: scores, losses and metrics of every client."""
    event: events.EvaluationEvent = {
        "event": "evaluation",
        "t": t,
        "G": list_scores(plan, replies, "G"),
        "P": list_scores(plan, replies, "P"),
    }
    if plan.federation.validates:
        for measure in events.VALIDATION_MEASURES:
            event[measure] = list_scores(plan, replies, measure)
    measures = ("G", "P", *(events.VALIDATION_MEASURES if plan.federation.validates else ()))
    losses = {m: list_by_client(plan, replies, f"{LOSS_PREFIX}{m}") for m in measures}
    event["loss"] = {m: of for m, of in losses.items() if event.get(m) is not None}
    if plan.metrics:
        event["metrics"] = {
            measure: {
                m.name: list_by_client(plan, replies, f"{measure}/{m.name}") for m in plan.metrics
            }
            for measure in measures
        }
    if plan.confusion:
        event["confusion"] = {m: list_confusions(plan, replies, m) for m in measures}
    return event


def list_by_client(plan: Plan, replies: Sequence[Reply], metric: str) -> list[float | None]:
    """List a metric of the replies in client order; None for a client that did not report it."""
    found = {r.client: r.metrics.get(metric) for r in replies}
    return [found.get(c) for c in plan.federation.clients]


def list_scores(plan: Plan, replies: Sequence[Reply], measure: str) -> events.Counts | None:
    """List the scores of an evaluation in client order; None if no client has measured them."""
    if not any(measure in r.metrics for r in replies):
        return None
    found = list_by_client(plan, replies, measure)
    return [None if value is None else to_recorded_score(plan, value) for value in found]


def list_confusions(plan: Plan, replies: Sequence[Reply], measure: str) -> events.Confusions:
    """List the confusions of an evaluation in client order: [true class, predicted class, examples]."""
    prefix = f"{measure}/{CONFUSION}_"
    found: dict[str, list[list[int]]] = {}
    for reply in replies:
        cells = [
            (k.removeprefix(prefix), n) for k, n in reply.metrics.items() if k.startswith(prefix)
        ]
        found[reply.client] = sorted([*map(int, cell.split("_")), int(n)] for cell, n in cells)
    return [found.get(c) or None for c in plan.federation.clients]


def to_recorded_score(plan: Plan, value: float) -> float:
    """Return a summed score as events record it; counts of correct answers become integers."""
    return int(value) if plan.task.name == "classification" else float(value)


def make_round_event(plan: Plan, done: FinishedRound, seconds: float) -> events.RoundEvent:
    """Make the event of a round of training that took ``seconds``."""
    tested = plan.federation.sizes("test")
    tested[POOLED_CLIENT] = sum(tested.values())
    names = dict.fromkeys(k for r in done.merged for k in r.metrics if k not in OWN_METRICS)
    means = {k: average_metric(k, done.merged) for k in names}
    losses = {k.removeprefix(LOSS_PREFIX): v for k, v in sorted(means.items()) if is_loss_metric(k)}
    others = {k: v for k, v in sorted(means.items()) if not is_loss_metric(k)}
    pooled = plan.algorithm.pooled  # pooled training sends nothing
    boards: RoundFields = {"boards": dict(done.boards)} if done.boards else {}
    return {
        "event": "round",
        "t": done.t,
        "clients": [r.client for r in done.merged],
        "bytes_down": 0 if pooled else count_sent_bytes(done),
        "bytes_up": 0 if pooled else sum(r.tensors.nbytes for r in done.trained),
        **describe_personal_bytes(plan, done.trained),
        "examples": sum(r.examples for r in done.trained),
        "fedavg_examples": plan.count_fedavg_examples(
            done.t, [r.client for r in done.trained], done.clock
        ),
        "loss": losses,
        "measures": {**others, **done.measures},
        "P_local": [
            [to_recorded_score(plan, r.metrics["P_local"]), tested[r.client]]
            for r in done.merged
            if "P_local" in r.metrics
        ],
        "work": {
            "train": sum_work_seconds(done.trained),
            "evaluate": sum_work_seconds(done.evaluated),
        },
        **describe_faults(plan, done),
        **boards,
        **describe_protected_round(plan, done.t, done.filtered, done.trained, done.spent),
        "seconds": seconds,
    }


def count_sent_bytes(done: FinishedRound) -> int:
    """Count the bytes of the tensors that a round sent to the selected clients."""
    models = {id(tensors): tensors for tensors in done.sent.values()}
    sizes = {key: tensors.nbytes for key, tensors in models.items()}
    return sum(sizes[id(done.sent[c])] for c in done.selected)


def is_loss_metric(metric: str) -> bool:
    """Return True if a metric in a reply is a loss."""
    return metric.startswith(LOSS_PREFIX)


def describe_personal_bytes(plan: Plan, trained: Sequence[Reply]) -> RoundFields:
    """Return the round event's field for the bytes of personal parameters that boards sent."""
    sent = sum(r.aside.nbytes for r in trained) if plan.clients_on_boards else 0
    return {"personal_bytes": sent} if sent else {}


def describe_faults(plan: Plan, done: FinishedRound) -> RoundFields:
    """Return the round event's fields for missing replies and simulated time, if the run can have either."""
    if plan.fault_free and len(done.trained) == len(done.selected) and not done.refused:
        return {}
    replied = {r.client for r in done.trained}
    out: RoundFields = {
        "asked": list(done.selected),
        "dropped": [c for c in done.selected if c not in replied],
        "late": [done.trained[i].client for i in done.end.late],
        "void": not done.merged,
    }
    if done.refused:
        out["refused"] = [r.client for r in done.refused]
    if plan.speeds.simulates_time:
        out["simulated_seconds"] = done.end.seconds
        out["clock"] = done.clock + done.end.seconds
    return out


def average_metric(name: str, replies: Sequence[Reply]) -> float:
    """Average a metric over the replies that report it, weighted by their training examples."""
    pairs = [(r.metrics[name], r.samples) for r in replies if name in r.metrics]
    return sum(v * n for v, n in pairs) / sum(n for _, n in pairs)


def make_new_clients_event(
    plan: Plan, t: int, replies: Sequence[Reply], seconds: float
) -> events.NewClientsEvent:
    """Make the event of the clients that joined after ``t`` rounds, from one reply per client."""
    new, by_client = plan.federation.new, {r.client: r for r in replies}
    train, test = (plan.federation.include_new_clients().sizes(part) for part in ("train", "test"))
    metrics = [by_client[c].metrics for c in new]
    return {
        "event": "new_clients",
        "t": t,
        "rounds": plan.effective_new_client_rounds,
        "clients": list(new),
        "train": [train[c] for c in new],
        "test": [test[c] for c in new],
        "before": [to_recorded_score(plan, m["before"]) for m in metrics],
        "P": [to_recorded_score(plan, m["P"]) for m in metrics],
        "G": [to_recorded_score(plan, m["G"]) for m in metrics]
        if all("G" in m for m in metrics)
        else None,
        "sha256": [by_client[c].kept for c in new],
        "seconds": seconds,
        "work": {"train": sum_work_seconds(replies), "evaluate": 0.0},
    }


def make_end_event(
    plan: Plan,
    client_store: ClientStore,
    server: Server,
    evaluated: Sequence[Reply],
    seconds: float,
) -> events.EndEvent:
    """Make a run's end event; its last evaluation took ``seconds``."""
    return {
        "event": "end",
        "t": server.t,
        "model_sha256": compute_model_sha256(plan, client_store, server, evaluated),
        "seconds": seconds,
        "work": {"train": 0.0, "evaluate": sum_work_seconds(evaluated)},
    }


def sum_work_seconds(replies: Sequence[Reply]) -> float:
    """Add up the seconds that workers spent on the jobs of these replies."""
    return round(sum(r.metrics["seconds"] for r in replies), 4)


def compute_model_sha256(
    plan: Plan, client_store: ClientStore, server: Server, replies: Sequence[Reply]
) -> str:
    """Compute the digest of a run's models: the server's tensors, client memories and given tensors.

    Clients send the digest of their memory with the last evaluation, so memories need not be sent.
    """
    groups = {"model": server.model, **{f"memory/{k}": v for k, v in server.memory.items()}}
    flat = Tensors({f"{g}|{k}": v for g, tensors in groups.items() for k, v in tensors.items()})
    kept = {r.client: r.kept for r in replies}
    clients = [kept.get(c, "") for c in plan.federation.clients]  # empty: it did not reply
    if server.t < plan.rounds and not plan.clients_on_boards:  # no client knew it was the end
        store = client_store
        clients = [store.digest_memory(c, before=server.t) for c in plan.federation.clients]
    if plan.algorithm.pooled:  # the server's own store has the memory
        clients.append(client_store.digest_memory(POOLED_CLIENT, before=server.t))
    given = [plan.given.digest()] if plan.given else []
    return hashlib.sha256("\n".join([flat.digest(), *clients, *given]).encode()).hexdigest()
