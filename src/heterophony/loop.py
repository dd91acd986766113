"""The loop on the server: evaluate and train side by side, merge, commit; again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from . import __version__
from .algorithm import EVERYBODY, Reply, Server
from .engines import Engine
from .newcomers import joined
from .plan import Job, Plan
from .randomness import seeded
from .store import RunFolder
from .tensors import Tensors, mix

Event = dict[str, Any]


def play(plan: Plan, engine: Engine, folder: RunFolder) -> Iterator[Event]:
    """Play the rounds that are left, committing each; yields the events as they are recorded.

    The evaluation of the state after t rounds influences nothing, so it shares the engine with
    the training of round t and fills what would be idle.
    """
    server = folder.newest(plan.federation.sizes())
    if server is None:
        server = plan.start()
        yield from recorded(folder, [opening(plan, server)])
    server = replace(server, statistics=plan.statistics)
    while server.t < plan.rounds:
        begun = time.perf_counter()
        after, events = round_of(plan, engine, server)
        events[-1]["seconds"] = round(time.perf_counter() - begun, 4)
        yield from recorded(folder, events)
        server = after
        folder.commit(server)
        folder.place.forget(events[-1]["clients"], before=folder.oldest())
    if not ended(folder):
        begun = time.perf_counter()
        replies = list(engine.run(evaluations(plan, server)))
        seconds = round(time.perf_counter() - begun, 4)
        last = evaluation(plan, server.t, replies)
        new = joined(plan, engine, folder, server)
        yield from recorded(folder, [last, *new, closing(plan, folder, server, replies, seconds)])
        folder.commit(server)


def round_of(plan: Plan, engine: Engine, server: Server) -> tuple[Server, list[Event]]:
    """Measure the state before round t where that is due, and train it to the next."""
    t, chosen = server.t, plan.chosen(server.t)
    sizes, down = plan.federation.sizes(), {c: plan.algorithm.send(server, c) for c in chosen}
    jobs = [Job("train", t, c, down[c], cost=sizes.get(c, 0)) for c in chosen]
    if plan.measured(t):
        jobs += evaluations(plan, server)
    trained, measured = list[Reply](), list[Reply]()
    for reply in engine.run(jobs):
        (trained if reply.kind == "train" else measured).append(reply)
    order = {c: i for i, c in enumerate(plan.federation.clients)}
    trained.sort(key=lambda r: order.get(r.client, 0))
    with seeded(plan.seed, "merge", t):
        after = replace(plan.algorithm.merge(server, trained), t=t + 1, average=averaged(trained))
    events = [evaluation(plan, t, measured)] if measured else []
    event = trained_round(plan, t, {} if plan.algorithm.pooled else down, trained, measured)
    event["measures"] |= plan.algorithm.measures(server, trained, after)
    return after, [*events, event]


def evaluations(plan: Plan, server: Server) -> list[Job]:
    """Every client's test, with what it would be sent now."""
    cost = plan.federation.sizes("test")
    send, average = plan.algorithm.send, server.average | server.model
    return [
        Job("evaluate", server.t, c, send(server, c), average, cost[c])
        for c in plan.federation.clients
    ]


def averaged(replies: list[Reply]) -> Tensors:
    """The mean of what stays: for G alone, never for learning."""
    whole = sum(r.weight for r in replies)
    return mix([r.aside for r in replies], [r.weight / whole for r in replies])


def recorded(folder: RunFolder, events: list[Event]) -> Iterator[Event]:
    for event in events:
        folder.record(event)
        yield event


def ended(folder: RunFolder) -> bool:
    return any(e["event"] == "end" for e in folder.read())


# Events -------------------------------------------------------------------------------------


def opening(plan: Plan, server: Server) -> Event:
    federation = plan.federation
    return {
        "event": "start",
        "version": __version__,
        "algorithm": plan.name,
        "seed": plan.seed,
        "rounds": plan.rounds,
        "clients": list(federation.clients),
        "train": list(federation.sizes().values()),
        "test": list(federation.sizes("test").values()),
        "classes": list(federation.labels),
        "labels": federation.counts().tolist(),
        "shared_parameters": sum(v.numel() for v in server.model.values()),
        "data_sha256": federation.sha256,
        "start_sha256": plan.start_sha256,
    }


def evaluation(plan: Plan, t: int, replies: list[Reply]) -> Event:
    """Right answers per client, in client order; null for what there is not, or not now."""
    by_client = {r.client: r.metrics for r in replies}
    ordered = [by_client[c] for c in plan.federation.clients]
    return {
        "event": "evaluation",
        "t": t,
        "G": [int(m["G"]) for m in ordered] if plan.algorithm.common else None,
        "P": [int(m["P"]) for m in ordered] if "P" in ordered[0] else None,
    }


def trained_round(
    plan: Plan, t: int, down: Mapping[str, Tensors], replies: list[Reply], measured: list[Reply]
) -> Event:
    """What happened in round t; bytes are those of the tensors that travelled."""
    tested = plan.federation.sizes("test")
    tested[EVERYBODY] = sum(tested.values())
    known = ("P_local", "seconds")
    means = {k: averaged_metric(k, replies) for r in replies for k in r.metrics if k not in known}
    return {
        "event": "round",
        "t": t,
        "clients": [r.client for r in replies],
        "bytes_down": sum(v.nbytes for v in down.values()),
        "bytes_up": 0 if plan.algorithm.pooled else sum(r.tensors.nbytes for r in replies),
        "loss": {k[5:]: v for k, v in sorted(means.items()) if k.startswith("loss/")},
        "measures": {k: v for k, v in sorted(means.items()) if not k.startswith("loss/")},
        "P_local": [
            [int(r.metrics["P_local"]), tested[r.client]] for r in replies if "P_local" in r.metrics
        ],
        "work": {
            "train": worked(replies),
            "evaluate": worked(measured),
        },
    }


def averaged_metric(name: str, replies: list[Reply]) -> float:
    """Over the clients that have it, by samples."""
    pairs = [(r.metrics[name], r.samples) for r in replies if name in r.metrics]
    return sum(v * n for v, n in pairs) / sum(n for _, n in pairs)


def closing(
    plan: Plan, folder: RunFolder, server: Server, measured: list[Reply], seconds: float
) -> Event:
    return {
        "event": "end",
        "t": server.t,
        "model_sha256": fingerprint(plan, folder, server),
        "seconds": seconds,
        "work": {"train": 0.0, "evaluate": worked(measured)},
    }


def worked(replies: list[Reply]) -> float:
    """Seconds of work, added up over workers."""
    return round(sum(r.metrics["seconds"] for r in replies), 4)


def fingerprint(plan: Plan, folder: RunFolder, server: Server) -> str:
    """A hash of hashes: the server's tensors, and what every client keeps, in client order."""
    groups = {"model": server.model, **{f"memory/{k}": v for k, v in server.memory.items()}}
    flat = Tensors({f"{g}|{k}": v for g, tensors in groups.items() for k, v in tensors.items()})
    everyone = [*plan.federation.clients, *([EVERYBODY] if plan.algorithm.pooled else [])]
    clients = [folder.place.digest(c, before=server.t) for c in everyone]
    return hashlib.sha256("\n".join([flat.digest(), *clients]).encode()).hexdigest()
