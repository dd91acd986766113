"""The loop on the server: evaluate and train side by side, merge, commit; again."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from .. import __version__
from ..core.algorithm import EVERYBODY, Reply, Server
from ..core.randomness import seeded
from ..core.tensors import Tensors, mix
from ..engines.base import Engine
from ..jobs.plan import Job, Plan
from ..population.faults import Closing
from .new_clients import joined
from .store import RunFolder

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
    server, now = replace(server, statistics=plan.statistics), clock(folder)
    while server.t < plan.rounds:
        begun = time.perf_counter()
        after, events = round_of(plan, engine, server, now)
        events[-1]["seconds"] = round(time.perf_counter() - begun, 4)
        yield from recorded(folder, events)
        server, now = after, events[-1].get("clock", now)
        folder.commit(server)
        last = events[-1]
        folder.place.forget(last.get("asked") or last["clients"], before=folder.oldest())
    if not ended(folder):
        begun = time.perf_counter()
        replies = list(engine.run(evaluations(plan, server)))
        seconds = round(time.perf_counter() - begun, 4)
        last = evaluation(plan, server.t, replies)
        new = joined(plan, engine, server)
        yield from recorded(folder, [last, *new, closing(plan, folder, server, replies, seconds)])
        folder.commit(server)


def round_of(
    plan: Plan, engine: Engine, server: Server, now: float = 0.0
) -> tuple[Server, list[Event]]:
    """Measure the state before round t where that is due, and train it to the next.

    ``now`` is the simulated clock when the round begins.
    """
    t = server.t
    chosen = plan.chosen(t, now, engine.present(plan.federation.clients))
    down = {c: plan.algorithm.send(server, c) for c in chosen}
    jobs = trainings(plan, t, chosen, down)
    if plan.measured(t):
        jobs += evaluations(plan, server)
    trained, measured = list[Reply](), list[Reply]()
    for reply in engine.run(jobs):
        (trained if reply.kind == "train" else measured).append(reply)
    order = {c: i for i, c in enumerate(plan.federation.clients)}
    trained.sort(key=lambda r: (order.get(r.client, 0), r.turn))
    closing = closed(plan, chosen, down, trained, now)
    merged = [trained[i] for i in closing.merged]
    after = replace(server, t=t + 1)  # a round without replies changes nothing
    if merged:
        with seeded(plan.seed, "merge", t):
            after = plan.algorithm.merge(server, merged)
        after = replace(after, t=t + 1, average=averaged(merged))
    event = trained_round(plan, t, chosen, down, trained, merged, measured)
    if merged:
        event["measures"] |= plan.algorithm.measures(server, merged, after)
    if not plan.reliable or len(trained) < len(chosen):
        event |= faults_of(plan, chosen, trained, closing, now)
    return after, [*([evaluation(plan, t, measured)] if measured else []), event]


def trainings(plan: Plan, t: int, chosen: list[str], down: Mapping[str, Tensors]) -> list[Job]:
    """The work of those who do not vanish; a client that was drawn twice has two turns."""
    sizes, left, turns, jobs = plan.federation.sizes(), Counter(chosen), Counter[str](), list[Job]()
    for c in chosen:
        left[c] -= 1
        if not vanished(plan, t, c):
            cost, last = sizes.get(c, 0), left[c] == 0
            jobs.append(Job("train", t, c, down[c], cost=cost, turn=turns[c], keeps=last))
        turns[c] += 1
    return jobs


def vanished(plan: Plan, t: int, client: str) -> bool:
    return not plan.reliable and plan.faults.vanishes(t, client, plan.seed)


def closed(
    plan: Plan, chosen: list[str], down: Mapping[str, Tensors], trained: list[Reply], now: float
) -> Closing:
    """How the round ends; replies count from 0 in their order, then those who never reply."""
    if plan.reliable:
        return Closing(0.0, tuple(range(len(trained))), ())
    if not chosen:
        return Closing(plan.faults.rest(plan.federation.clients, now, plan.seed), (), ())
    arrivals, busy = list[float | None](), dict[str, float]()
    for r in trained:  # a device has one turn after the other
        up, examples = r.tensors.nbytes, r.examples
        took = plan.devices.seconds(r.client, down[r.client].nbytes, examples, up, plan.seed)
        busy[r.client] = busy.get(r.client, 0.0) + took
        arrivals.append(busy[r.client])
    return plan.faults.close([*arrivals, *[None] * (len(chosen) - len(trained))])


def evaluations(plan: Plan, server: Server) -> list[Job]:
    """Every client's test, with what it would be sent now."""
    tests, validations = (plan.federation.sizes(part) for part in ("test", "validation"))
    send, average = plan.algorithm.send, server.average | server.model
    return [
        Job("evaluate", server.t, c, send(server, c), average, tests[c] + validations[c])
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


def clock(folder: RunFolder) -> float:
    """The simulated seconds that have passed in the recorded rounds."""
    return max((float(e.get("clock", 0.0)) for e in folder.read()), default=0.0)


def ended(folder: RunFolder) -> bool:
    return any(e["event"] == "end" for e in folder.read())


# Events -------------------------------------------------------------------------------------


def opening(plan: Plan, server: Server) -> Event:
    federation = plan.federation
    validation = list(federation.sizes("validation").values())
    return {
        "event": "start",
        "version": __version__,
        "algorithm": plan.name,
        "seed": plan.seed,
        "rounds": plan.rounds,
        "clients": list(federation.clients),
        "train": list(federation.sizes().values()),
        "test": list(federation.sizes("test").values()),
        **({"validation": validation} if any(validation) else {}),
        "classes": list(federation.labels),
        "labels": federation.counts().tolist(),
        "shared_parameters": sum(v.numel() for v in server.model.values()),
        "data_sha256": federation.sha256,
        "start_sha256": plan.start_sha256,
        **({"files": plan.files} if plan.files else {}),
    }


def evaluation(plan: Plan, t: int, replies: list[Reply]) -> Event:
    """Right answers per client, in client order; null for what there is not, or not now.

    A client that never answered has null in the place of its number.
    """
    said = {r.client: r.metrics for r in replies}
    measures = ["G", "P", *(["G_valid", "P_valid"] if plan.federation.validates else [])]
    measured = {k for metrics in said.values() for k in metrics}
    return {
        "event": "evaluation",
        "t": t,
        **{
            k: [counted(said, c, k) for c in plan.federation.clients] if k in measured else None
            for k in measures
        },
    }


def counted(said: Mapping[str, Mapping[str, float]], client: str, measure: str) -> int | None:
    return int(said[client][measure]) if client in said else None


def trained_round(
    plan: Plan,
    t: int,
    chosen: list[str],
    down: Mapping[str, Tensors],
    trained: list[Reply],
    replies: list[Reply],
    measured: list[Reply],
) -> Event:
    """What happened in round t; bytes are those of the tensors that travelled, merged or not."""
    tested = plan.federation.sizes("test")
    tested[EVERYBODY] = sum(tested.values())
    known = ("P_local", "seconds")
    means = {k: averaged_metric(k, replies) for r in replies for k in r.metrics if k not in known}
    return {
        "event": "round",
        "t": t,
        "clients": [r.client for r in replies],
        "bytes_down": 0 if plan.algorithm.pooled else sum(down[c].nbytes for c in chosen),
        "bytes_up": 0 if plan.algorithm.pooled else sum(r.tensors.nbytes for r in trained),
        **shared_aside(plan, trained),
        "loss": {k[5:]: v for k, v in sorted(means.items()) if k.startswith("loss/")},
        "measures": {k: v for k, v in sorted(means.items()) if not k.startswith("loss/")},
        "P_local": [
            [int(r.metrics["P_local"]), tested[r.client]] for r in replies if "P_local" in r.metrics
        ],
        "work": {
            "train": worked(trained),
            "evaluate": worked(measured),
        },
    }


def shared_aside(plan: Plan, trained: list[Reply]) -> Event:
    """The bytes of what stays that left a device, only to measure G; in simulation nothing does."""
    sent = sum(r.aside.nbytes for r in trained) if plan.apart else 0
    return {"personal_bytes": sent} if sent else {}


def faults_of(
    plan: Plan, chosen: list[str], trained: list[Reply], closing: Closing, now: float
) -> Event:
    """Who was asked, who vanished, who came too late, and the simulated time."""
    seconds = closing.seconds
    timed = {"simulated_seconds": seconds, "clock": now + seconds} if plan.devices.timed else {}
    came = {r.client for r in trained}
    return {
        "asked": chosen,
        "dropped": [c for c in chosen if c not in came],
        "late": [trained[i].client for i in closing.late],
        "void": not closing.merged,
        **timed,
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
        "model_sha256": fingerprint(plan, folder, server, measured),
        "seconds": seconds,
        "work": {"train": 0.0, "evaluate": worked(measured)},
    }


def worked(replies: list[Reply]) -> float:
    """Seconds of work, added up over workers."""
    return round(sum(r.metrics["seconds"] for r in replies), 4)


def fingerprint(plan: Plan, folder: RunFolder, server: Server, replies: list[Reply]) -> str:
    """A hash of hashes: the server's tensors, and what every client keeps, in client order.

    Clients tell the digest of what they keep, wherever they are.
    """
    groups = {"model": server.model, **{f"memory/{k}": v for k, v in server.memory.items()}}
    flat = Tensors({f"{g}|{k}": v for g, tensors in groups.items() for k, v in tensors.items()})
    kept = {r.client: r.kept for r in replies}  # one who never answered: unknown
    clients = [kept.get(c, "") for c in plan.federation.clients]
    if plan.algorithm.pooled:  # whoever holds all data is here
        clients.append(folder.place.digest(EVERYBODY, before=server.t))
    return hashlib.sha256("\n".join([flat.digest(), *clients]).encode()).hexdigest()
