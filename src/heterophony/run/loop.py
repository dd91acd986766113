"""The loop on the server: evaluate and train side by side, merge, commit; again."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from .. import __version__
from ..core.algorithm import POOLED_CLIENT, Reply, Server
from ..core.randomness import seeded
from ..core.tensors import Tensors, mix
from ..engines.base import Engine
from ..jobs.plan import Job, Plan
from ..population.faults import RoundEnd
from .new_clients import join_new_clients
from .store import RunFolder

Event = dict[str, Any]


def run_rounds(plan: Plan, engine: Engine, folder: RunFolder) -> Iterator[Event]:
    """Play the rounds that are left, committing each; yields the events as they are recorded.

    The evaluation of the state after t rounds influences nothing, so it shares the engine with
    the training of round t and fills what would be idle.
    """
    server = folder.restore_newest_commit(plan.federation.sizes())
    if server is None:
        server = plan.create_initial_server()
        yield from record_events(folder, [make_start_event(plan, server)])
    server, now = replace(server, statistics=plan.buffer_names), read_clock(folder)
    while server.t < plan.rounds:
        begun = time.perf_counter()
        after, events = run_round(plan, engine, server, now)
        events[-1]["seconds"] = round(time.perf_counter() - begun, 4)
        yield from record_events(folder, events)
        server, now = after, events[-1].get("clock", now)
        folder.commit(server)
        last = events[-1]
        folder.client_store.delete_old_memories(
            last.get("asked") or last["clients"], before=folder.find_oldest_commit()
        )
    if not has_end_event(folder):
        begun = time.perf_counter()
        replies = list(engine.run(build_evaluation_jobs(plan, server)))
        seconds = round(time.perf_counter() - begun, 4)
        last = make_evaluation_event(plan, server.t, replies)
        new = join_new_clients(plan, engine, server)
        yield from record_events(
            folder, [last, *new, make_end_event(plan, folder, server, replies, seconds)]
        )
        folder.commit(server)


def run_round(
    plan: Plan, engine: Engine, server: Server, now: float = 0.0
) -> tuple[Server, list[Event]]:
    """Measure the state before round t where that is due, and train it to the next.

    ``now`` is the simulated clock when the round begins.
    """
    t = server.t
    chosen = plan.select_clients(t, now, engine.list_available_clients(plan.federation.clients))
    down = {c: plan.algorithm.send(server, c) for c in chosen}
    jobs = build_training_jobs(plan, t, chosen, down)
    if plan.is_evaluated(t):
        jobs += build_evaluation_jobs(plan, server)
    trained, measured = list[Reply](), list[Reply]()
    for reply in engine.run(jobs):
        (trained if reply.kind == "train" else measured).append(reply)
    order = {c: i for i, c in enumerate(plan.federation.clients)}
    trained.sort(key=lambda r: (order.get(r.client, 0), r.turn))
    closing = simulate_round_end(plan, chosen, down, trained, now)
    merged = [trained[i] for i in closing.merged]
    after = replace(server, t=t + 1)  # a round without replies changes nothing
    if merged:
        with seeded(plan.seed, "merge", t):
            after = plan.algorithm.merge(server, merged)
        after = replace(after, t=t + 1, average=average_personal(merged))
    event = make_round_event(plan, t, chosen, down, trained, merged, measured)
    if merged:
        event["measures"] |= plan.algorithm.measures(server, merged, after)
    if not plan.fault_free or len(trained) < len(chosen):
        event |= describe_faults(plan, chosen, trained, closing, now)
    return after, [*([make_evaluation_event(plan, t, measured)] if measured else []), event]


def build_training_jobs(
    plan: Plan, t: int, chosen: list[str], down: Mapping[str, Tensors]
) -> list[Job]:
    """The work of those who do not vanish; a client that was drawn twice has two turns."""
    sizes, left, turns, jobs = plan.federation.sizes(), Counter(chosen), Counter[str](), list[Job]()
    for c in chosen:
        left[c] -= 1
        if not is_dropped_out(plan, t, c):
            cost, last = sizes.get(c, 0), left[c] == 0
            jobs.append(Job("train", t, c, down[c], cost=cost, turn=turns[c], keeps_memory=last))
        turns[c] += 1
    return jobs


def is_dropped_out(plan: Plan, t: int, client: str) -> bool:
    return not plan.fault_free and plan.faults.has_dropped_out(t, client, plan.seed)


def simulate_round_end(
    plan: Plan, chosen: list[str], down: Mapping[str, Tensors], trained: list[Reply], now: float
) -> RoundEnd:
    """How the round ends; replies count from 0 in their order, then those who never reply."""
    if plan.fault_free:
        return RoundEnd(0.0, tuple(range(len(trained))), ())
    if not chosen:
        return RoundEnd(
            plan.faults.compute_idle_seconds(plan.federation.clients, now, plan.seed), (), ()
        )
    arrivals, busy = list[float | None](), dict[str, float]()
    for r in trained:  # a device has one turn after the other
        up, examples = r.tensors.nbytes, r.examples
        took = plan.devices.compute_round_seconds(
            r.client, down[r.client].nbytes, examples, up, plan.seed
        )
        busy[r.client] = busy.get(r.client, 0.0) + took
        arrivals.append(busy[r.client])
    return plan.faults.determine_round_end([*arrivals, *[None] * (len(chosen) - len(trained))])


def build_evaluation_jobs(plan: Plan, server: Server) -> list[Job]:
    """Every client's test, with what it would be sent now."""
    tests, validations = (plan.federation.sizes(part) for part in ("test", "validation"))
    send, average = plan.algorithm.send, server.average | server.model
    return [
        Job("evaluate", server.t, c, send(server, c), average, tests[c] + validations[c])
        for c in plan.federation.clients
    ]


def average_personal(replies: list[Reply]) -> Tensors:
    """The mean of what stays: for G alone, never for learning."""
    whole = sum(r.weight for r in replies)
    return mix([r.aside for r in replies], [r.weight / whole for r in replies])


def record_events(folder: RunFolder, events: list[Event]) -> Iterator[Event]:
    for event in events:
        folder.append_event(event)
        yield event


def read_clock(folder: RunFolder) -> float:
    """The simulated seconds that have passed in the recorded rounds."""
    return max((float(e.get("clock", 0.0)) for e in folder.iterate_events()), default=0.0)


def has_end_event(folder: RunFolder) -> bool:
    return any(e["event"] == "end" for e in folder.iterate_events())


# Events -------------------------------------------------------------------------------------


def make_start_event(plan: Plan, server: Server) -> Event:
    federation = plan.federation
    validation = list(federation.sizes("validation").values())
    return {
        "event": "start",
        "version": __version__,
        "algorithm": plan.algorithm_name,
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
        **({"files": plan.file_digests} if plan.file_digests else {}),
    }


def make_evaluation_event(plan: Plan, t: int, replies: list[Reply]) -> Event:
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
            k: [get_correct_count(said, c, k) for c in plan.federation.clients]
            if k in measured
            else None
            for k in measures
        },
    }


def get_correct_count(
    said: Mapping[str, Mapping[str, float]], client: str, measure: str
) -> int | None:
    return int(said[client][measure]) if client in said else None


def make_round_event(
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
    tested[POOLED_CLIENT] = sum(tested.values())
    known = ("P_local", "seconds")
    means = {k: average_metric(k, replies) for r in replies for k in r.metrics if k not in known}
    return {
        "event": "round",
        "t": t,
        "clients": [r.client for r in replies],
        "bytes_down": 0 if plan.algorithm.pooled else sum(down[c].nbytes for c in chosen),
        "bytes_up": 0 if plan.algorithm.pooled else sum(r.tensors.nbytes for r in trained),
        **describe_personal_bytes(plan, trained),
        "loss": {k[5:]: v for k, v in sorted(means.items()) if k.startswith("loss/")},
        "measures": {k: v for k, v in sorted(means.items()) if not k.startswith("loss/")},
        "P_local": [
            [int(r.metrics["P_local"]), tested[r.client]] for r in replies if "P_local" in r.metrics
        ],
        "work": {
            "train": sum_work_seconds(trained),
            "evaluate": sum_work_seconds(measured),
        },
    }


def describe_personal_bytes(plan: Plan, trained: list[Reply]) -> Event:
    """The bytes of what stays that left a device, only to measure G; in simulation nothing does."""
    sent = sum(r.aside.nbytes for r in trained) if plan.clients_on_devices else 0
    return {"personal_bytes": sent} if sent else {}


def describe_faults(
    plan: Plan, chosen: list[str], trained: list[Reply], closing: RoundEnd, now: float
) -> Event:
    """Who was asked, who vanished, who came too late, and the simulated time."""
    seconds = closing.seconds
    timed = (
        {"simulated_seconds": seconds, "clock": now + seconds}
        if plan.devices.simulates_time
        else {}
    )
    came = {r.client for r in trained}
    return {
        "asked": chosen,
        "dropped": [c for c in chosen if c not in came],
        "late": [trained[i].client for i in closing.late],
        "void": not closing.merged,
        **timed,
    }


def average_metric(name: str, replies: list[Reply]) -> float:
    """Over the clients that have it, by samples."""
    pairs = [(r.metrics[name], r.samples) for r in replies if name in r.metrics]
    return sum(v * n for v, n in pairs) / sum(n for _, n in pairs)


def make_end_event(
    plan: Plan, folder: RunFolder, server: Server, measured: list[Reply], seconds: float
) -> Event:
    return {
        "event": "end",
        "t": server.t,
        "model_sha256": compute_model_sha256(plan, folder, server, measured),
        "seconds": seconds,
        "work": {"train": 0.0, "evaluate": sum_work_seconds(measured)},
    }


def sum_work_seconds(replies: list[Reply]) -> float:
    """Seconds of work, added up over workers."""
    return round(sum(r.metrics["seconds"] for r in replies), 4)


def compute_model_sha256(
    plan: Plan, folder: RunFolder, server: Server, replies: list[Reply]
) -> str:
    """A hash of hashes: the server's tensors, and what every client keeps, in client order.

    Clients tell the digest of what they keep, wherever they are.
    """
    groups = {"model": server.model, **{f"memory/{k}": v for k, v in server.memory.items()}}
    flat = Tensors({f"{g}|{k}": v for g, tensors in groups.items() for k, v in tensors.items()})
    kept = {r.client: r.kept for r in replies}  # one who never answered: unknown
    clients = [kept.get(c, "") for c in plan.federation.clients]
    if plan.algorithm.pooled:  # whoever holds all data is here
        clients.append(folder.client_store.digest_memory(POOLED_CLIENT, before=server.t))
    return hashlib.sha256("\n".join([flat.digest(), *clients]).encode()).hexdigest()
