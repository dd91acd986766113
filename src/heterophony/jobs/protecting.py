"""Apply a plan's protections: on the client before a reply leaves, on the server when it arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core.algorithm import Reply
from ..core.tensors import Memory, Tensors
from ..protection import get_kind
from ..protection.base import PREFIX, Departure
from .plan import Job, Plan


def announce_to_clients(plan: Plan, sent: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """On the server: add to what each client is sent what the protections must tell it."""
    out, cohort = dict(sent), list(sent)
    for protection in plan.protections:
        for client in cohort:
            told = protection.announce(client, cohort, plan.federation.clients)
            out[client] = out[client] | told.under(PREFIX) if told else out[client]
    return out


def split_announced(sent: Tensors) -> tuple[Tensors, Tensors]:
    """Separate what the algorithm sent from what protections announced."""
    return sent.without(f"{PREFIX}*"), sent.below(PREFIX)


def split_memory(memory: Memory) -> tuple[Memory, Memory]:
    """Separate what the algorithm keeps on a client from what protections keep there."""
    own = {k: v for k, v in memory.items() if not k.startswith(PREFIX)}
    return own, {k: v for k, v in memory.items() if k.startswith(PREFIX)}


def protect_reply(
    plan: Plan, job: Job, reply: Reply, kept: Memory, announced: Tensors
) -> tuple[Reply, Memory]:
    """On the client: transform a reply before it leaves; return also what the protections keep.

    ``job`` has what the algorithm sent, ``kept`` what the protections kept in earlier rounds.
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
    """On the server: return the tensors of a reply as the algorithm gave them on the client.

    Raise CodecError if no client's half could have sent them.
    """
    received = split_announced(sent)[0]
    for protection in reversed(plan.protections):
        tensors = protection.arrive(tensors, received)
    return tensors


def restore_reply(plan: Plan, reply: Reply, sent: Tensors) -> Reply:
    """On the server: return a reply in the form that the algorithm's client gave it."""
    return replace(reply, tensors=restore_tensors(plan, reply.tensors, sent))


def restore_replies(
    plan: Plan, replies: Sequence[Reply], sent: Mapping[str, Tensors]
) -> list[Reply]:
    """Restore the replies of a round; without protections they are returned as they are."""
    if not plan.protections:
        return list(replies)
    return [restore_reply(plan, r, sent[r.client]) for r in replies]
