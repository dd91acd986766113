"""Run a job: train, evaluate or join as one client, with protections on both the client and the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ..core.accelerator import (
    ON_CPU,
    Compute,
    computing,
    copy_memory_to_cpu,
    copy_to_cpu,
    translate_device_errors,
)
from ..core.algorithm import Algorithm, Reply
from ..core.client import Client
from ..core.errors import ConfigError, DivergedError
from ..core.meeting import Meeting
from ..core.randomness import seeded
from ..core.tensors import Memory, Tensors, state
from ..protection import get_kind
from ..protection.base import PREFIX, Departure
from ..protection.private_client import guard_examples
from .blocks import evaluate_in_blocks, evaluates_in_blocks
from .client_store import ClientStore
from .evaluation import adapts_models, compute_scores, evaluate, needs_personal_parameters
from .plan import Job, Plan


def announce_to_clients(plan: Plan, sent: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """On the server: add the tensors that protections announce to the tensors for each client of the round."""
    out, cohort = dict(sent), list(sent)
    for protection in plan.protections:
        for client in cohort:
            told = protection.announce(client, cohort, plan.federation.clients)
            out[client] = out[client] | told.under(PREFIX) if told else out[client]
    return out


def split_announced(sent: Tensors) -> tuple[Tensors, Tensors]:
    """Split received tensors into the algorithm's tensors and those that protections announced."""
    return sent.without(f"{PREFIX}*"), sent.below(PREFIX)


def split_memory(memory: Memory) -> tuple[Memory, Memory]:
    """Split a client's memory into the algorithm's and the protections' part."""
    own = {k: v for k, v in memory.items() if not k.startswith(PREFIX)}
    return own, {k: v for k, v in memory.items() if k.startswith(PREFIX)}


def protect_reply(
    plan: Plan, job: Job, reply: Reply, kept: Memory, announced: Tensors
) -> tuple[Reply, Memory]:
    """On the client: transform a reply before it leaves; also return the protections' new memory.

    ``job`` has the tensors that the algorithm sent; ``kept`` is the protections' memory so far.
    """
    departure = Departure(
        client=job.client,
        t=job.t,
        received=job.tensors,
        announced=announced,
        weight=reply.weight,
        seed=plan.derive_draw_seed(job.turn),
        secret=plan.secret,
        metrics=reply.metrics,
    )
    tensors, memory, told = reply.tensors, dict[str, Tensors](), dict[str, float]()
    for protection in plan.protections:
        group = PREFIX + get_kind(protection)
        departed = protection.leave(tensors, kept.get(group, Tensors()), departure)
        tensors = departed.tensors
        told |= departed.metrics
        if departed.kept:
            memory[group] = departed.kept
    guarded = any(p.guards_replies for p in plan.protections)
    metrics = told if guarded else {**reply.metrics, **told}
    return replace(reply, tensors=tensors, metrics=metrics), memory


def restore_tensors(plan: Plan, tensors: Tensors, sent: Tensors) -> Tensors:
    """On the server: undo the protections' encoding of a reply's tensors.

    Raise CodecError if no client with these protections could have sent them.
    """
    received = split_announced(sent)[0]
    for protection in reversed(plan.protections):
        tensors = protection.arrive(tensors, received)
    return tensors


def restore_reply(plan: Plan, reply: Reply, sent: Tensors) -> Reply:
    """On the server: undo the protections' encoding of a reply."""
    return replace(reply, tensors=restore_tensors(plan, reply.tensors, sent))


def restore_replies(
    plan: Plan, replies: Sequence[Reply], sent: Mapping[str, Tensors]
) -> list[Reply]:
    """On the server: undo the protections' encoding of all replies of a round."""
    if not plan.protections:
        return list(replies)
    return [restore_reply(plan, r, sent[r.client]) for r in replies]


def work(plan: Plan, job: Job, client_store: ClientStore, compute: Compute = ON_CPU) -> Reply:
    """Run one client's job of one round.

    Every engine and every board runs its jobs through this function, except evaluations in blocks, which
    ``work_together`` runs for several clients at once.

    A client's net and batches are on the device of ``compute``; the tensors of the job and of its reply
    are on the CPU. An attack of the privacy audit always runs on the CPU.
    """
    with (
        computing(compute if job.custom_work is None else ON_CPU),
        translate_device_errors(f"client {job.client}, round {job.t}"),
    ):
        return run_job(plan, job, client_store)


def work_together(
    plan: Plan, jobs: Sequence[Job], client_store: ClientStore, compute: Compute = ON_CPU
) -> list[Reply]:
    """Run several jobs; clients that train meet in ``fit`` and train as one computation.

    The replies are the same as from ``work``, except for their times: each gets an equal share.
    """
    kinds = {job.kind for job in jobs}
    if len(jobs) > 1 and kinds == {"train"}:
        # a job reads only what its client kept from earlier rounds
        with client_store.saving_together():
            return train_together(plan, jobs, client_store, compute)
    if (
        len(jobs) > 1
        and kinds == {"evaluate"}
        and compute.fast
        and compute.is_usual
        and evaluates_in_blocks(plan)
    ):
        with computing(compute):
            return evaluate_in_blocks(plan, jobs, client_store)
    return [work(plan, job, client_store, compute) for job in jobs]


def train_together(
    plan: Plan, jobs: Sequence[Job], client_store: ClientStore, compute: Compute
) -> list[Reply]:
    """Run several training jobs; the clients meet in ``fit`` if their passes may run as one computation."""
    if not compute.fast or not plan.trains_in_groups:
        return [work(plan, job, client_store, compute) for job in jobs]
    begun = time.perf_counter()
    with computing(compute):
        replies = Meeting([partial(work, plan, job, client_store, compute) for job in jobs]).run()
    share = {"seconds": (time.perf_counter() - begun) / len(jobs)}
    return [replace(reply, metrics={**reply.metrics, **share}) for reply in replies]


def run_job(plan: Plan, job: Job, client_store: ClientStore) -> Reply:
    """Run one job on the current device, and measure its time."""
    begun = time.perf_counter()
    memory = client_store.load_memory(job.client, before=job.t)
    if job.custom_work is not None:
        reply = job.custom_work(plan, job, client_store)
    elif job.kind == "evaluate":
        last = job.t == plan.rounds
        kept = client_store.digest_memory(job.client, before=job.t) if last else ""
        reply = replace(evaluate(plan, job, memory, client_store), kept=kept)
    elif job.kind == "join":
        reply = join(plan, job, client_store)
        reply = replace(reply, kept=client_store.digest_memory(job.client, before=job.t + 1))
    else:
        reply, memory = train(plan, job, memory, client_store)
        if job.keeps_memory:
            kept = client_store.save_memory(job.client, job.t, memory)
            # a board checks its own files, which the server lacks
            reply = reply if plan.clients_on_boards else replace(reply, kept=kept)
    seconds = time.perf_counter() - begun
    return replace(reply, metrics={**reply.metrics, "seconds": seconds})


def train(plan: Plan, job: Job, memory: Memory, client_store: ClientStore) -> tuple[Reply, Memory]:
    """Run a training job with protections; return the reply to the server and the client's new memory."""
    if not plan.protections:
        return train_unprotected(plan, job, memory, client_store)
    received, announced = split_announced(job.tensors)
    job, (own, kept) = replace(job, tensors=received), split_memory(memory)
    reply, new_memory = train_unprotected(plan, job, own, client_store)
    reply, kept = protect_reply(plan, job, reply, kept, announced)
    return reply, {**new_memory, **kept}


def train_unprotected(
    plan: Plan, job: Job, memory: Memory, client_store: ClientStore
) -> tuple[Reply, Memory]:
    """Run a training job without protections; return the reply and the client's new memory."""
    client = plan.build_client(job, memory, client_store, choose_client(plan))
    update = train_locally(plan, job, client)
    personal, samples = copy_to_cpu(client.stays()), len(client.data.train)
    metrics = {name: parse_metric(name, value) for name, value in client.metrics.items()}
    # after an adaptation, P measures a different model
    if plan.is_evaluated(job.t + 1) and not adapts_models(plan.algorithm):
        own = partial(plan.algorithm.predict, client)
        metrics["P_local"] = compute_scores(plan, client, [own], client.data.test)[0]
    kept = copy_memory_to_cpu(client.memory)
    new_memory = {**kept, **({"net": personal} if personal else {})}
    aside = personal if needs_personal_average(plan, job, client_store) else Tensors()
    weight = samples if plan.weights == "samples" else 1
    reply = Reply(job.client, "train", update, samples, weight, metrics, aside)
    return replace(reply, turn=job.turn, examples=client.examples), new_memory


def parse_metric(name: str, value: Any) -> float:
    """Convert an algorithm's metric, which may be a tensor with one element, to a plain number.

    Raise ConfigError for anything else.
    """
    if isinstance(value, int | float):
        return value
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        what = type(value).__name__ if shape is None else f"{type(value).__name__} {tuple(shape)}"
        raise ConfigError(
            f"client.metrics['{name}']: must be a number, not {what}; record its mean, or float(…)"
        ) from None


def choose_client(plan: Plan) -> Callable[..., Client]:
    """Return the constructor of clients that train: ``Client``, unless a protection replaces it."""
    chosen = [p.choose_client(plan.secret) for p in plan.protections]
    return next((kind for kind in chosen if kind is not None), Client)


def needs_personal_average(plan: Plan, job: Job, client_store: ClientStore) -> bool:
    """Return True if the reply contains personal parameters, to be averaged for G.

    In a simulation with equal nets, it always does. Boards send them only if G needs them and the
    user has agreed.
    """
    if not plan.algorithm.common or not plan.averages_personal:
        return False
    if not plan.clients_on_boards:
        return True
    initial = {"net": state(plan.template)}
    client = plan.build_client(replace(job, tensors=Tensors()), initial, client_store)
    return needs_personal_parameters(plan, client)


def train_locally(plan: Plan, job: Job, client: Client) -> Tensors:
    """Run ``Algorithm.local`` on a client; return its update. Raise DivergedError if it is not finite."""
    with (
        seeded(plan.derive_draw_seed(job.turn), "local", job.t, job.client),
        guard_examples(client),
    ):
        update = plan.algorithm.local(client)
    if not isinstance(update, Mapping):
        raise ConfigError(
            f"algorithm {plan.algorithm_name}: local() returned {type(update).__name__}; return the"
            " tensors to send, as in `return client.shared()`"
        )
    update = Tensors({k: v for k, v in update.items() if client.kinds.get(k) != "given"})
    for name, v in update.items():
        if v.is_floating_point() and not is_finite(v):
            raise DivergedError(
                f"client {job.client}, round {job.t}: '{name}' of its update holds NaN or infinity;"
                " lower training.lr"
            )
    return copy_to_cpu(update)


def is_finite(tensor: Tensor) -> bool:
    """Return True if no entry of a tensor is NaN or infinite."""
    # the sum is faster to check, but the sum of finite entries may be infinite
    return isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def join(plan: Plan, job: Job, client_store: ClientStore) -> Reply:
    """Run a new client's job: evaluate it, train it for some rounds on its own data, evaluate it again.

    Every round starts with the same tensors from the server and the client's own memory.
    """
    arrived = plan.build_client(job, {}, client_store)
    own = partial(plan.algorithm.predict, arrived)
    before = compute_scores(plan, arrived, [own], arrived.data.test)[0]
    memory: Memory = {}
    for t in range(job.t, job.t + plan.effective_new_client_rounds):
        client = plan.build_client(replace(job, t=t), memory, client_store)
        train_locally(plan, replace(job, t=t), client)
        memory = copy_memory_to_cpu({**client.memory, "net": state(client.net)})
    client_store.save_memory(job.client, job.t, memory)
    joined = replace(job, tensors=select_tensors_after_joining(plan.algorithm, job.tensors, memory))
    reply = evaluate(plan, joined, memory, client_store)
    return replace(reply, kind="join", metrics={**reply.metrics, "before": before})


def select_tensors_after_joining(algorithm: Algorithm, sent: Tensors, memory: Memory) -> Tensors:
    """Select the received tensors that a new client needs to predict.

    The client's memory has the whole net that it trained, so it needs only the extras. If the
    algorithm adapts models before predicting, the client starts with the server's tensors, like
    every other client.
    """
    return sent.only("*/*") if memory and not adapts_models(algorithm) else sent
