"""Dry runs: before a run starts, simulated replies show which tensors are sent and which protections work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor

from ..algorithms import get_display_name
from ..core.algorithm import Reply, Server
from ..core.errors import ConfigError
from ..core.randomness import seeded
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..core.temporary import temporary_folder
from ..core.tensors import Tensors, list_moves, matches_any
from ..data.federation import Federation
from ..population.attacks import Attack
from ..population.participation import Poisson
from ..protection import get_kind
from ..protection.base import MergeKind, Protection
from .client_store import FolderClientStore
from .plan import Job, Plan
from .work import train

DUMMY_CLIENT = "0"


def make_blank_targets(plan: Plan) -> Tensor:
    """Make the targets of a dry run's blank examples; in a classification, one of each class."""
    if plan.task.name == "classification":
        return torch.arange(plan.federation.classes)
    y = plan.federation.y
    return torch.zeros(2, *y.shape[1:], dtype=y.dtype)


def make_dry_plan(plan: Plan, y: Tensor, batch: int | None = None, like: str = "") -> Plan:
    """Make the plan of a dry run: a single client with blank examples and these targets.

    If clients have different nets, the single client gets the net of the client ``like``; default:
    the server's.
    """
    rows = {DUMMY_CLIENT: torch.arange(len(y))}
    x = torch.zeros(len(y), *plan.federation.shape, dtype=plan.federation.x.dtype)
    dummy = Federation(
        "dummy",
        x,
        y,
        BYTES_TO_PLUS_MINUS_ONE,
        plan.federation.labels,
        rows,
        rows,
        task=plan.federation.task,
        record=plan.federation.record,
    )
    training = replace(plan.training, epochs=1, steps=None, batch=batch or len(y))
    net_of = {DUMMY_CLIENT: plan.net_of[like]} if like in plan.net_of else {}
    dry_plan = replace(plan, federation=dummy, training=training, training_of={}, attack=Attack())
    return replace(dry_plan, net_of=net_of)


def simulate_reply(
    plan: Plan, y: Tensor, batch: int | None = None, like: str = ""
) -> tuple[Reply, Tensors]:
    """Simulate a client's first reply, on blank examples; also return the tensors that the client received."""
    dry_plan = make_dry_plan(plan, y, batch, like)
    with temporary_folder() as folder, seeded(plan.seed, "trial"):
        store = FolderClientStore(folder / "clients", folder / "scratch")
        sent = dry_plan.algorithm.send(dry_plan.create_initial_server(), DUMMY_CLIENT)
        job = Job(kind="train", t=0, client=DUMMY_CLIENT, tensors=sent)
        return train(dry_plan, job, {}, store)[0], sent


TOLERANCE = 1e-4  # relative to the largest value: far above rounding, far below effects
ADVICE = {
    "sum": "add noise on the clients (where = 'device'), or choose another algorithm or protection",
    "symmetric": "choose krum or norm_bound, or another algorithm",
}


def check_merge(plan: Plan) -> None:
    """Raise ConfigError if the algorithm's merge is not of the kind that a protection requires."""
    needed = {p.merge_kind: p for p in plan.protections if p.merge_kind != "any"}
    guarding = [p for p in plan.protections if p.guards_replies]
    if not needed and not guarding:
        return
    bare, name = replace(plan, protections=()), get_display_name(plan.algorithm_name)
    replies, sent = simulate_replies(bare)
    if any(matches_any(k, plan.algorithm.rows_vary) for k in replies[0].tensors):
        raise ConfigError(
            f"protection.{get_kind([*needed.values(), *guarding][0])}: {name} compresses what it"
            " sends; choose another algorithm or protection"
        )
    if guarding and not list_moves(replies[0].tensors, sent):
        raise ConfigError(
            f"protection.{get_kind(guarding[0])}: nothing that {name} sends is a change of what it"
            " received, so there is nothing to clip; choose another algorithm"
        )
    if "sum" in needed and isinstance(plan.participation, Poisson):
        check_empty_round(bare, needed["sum"], name)
    for kind, protection in needed.items():
        if not is_merge_of_kind(bare, kind, replies, sent):
            refuse_merge(plan, kind, protection)


def refuse_merge(plan: Plan, kind: MergeKind, protection: Protection) -> NoReturn:
    """Raise ConfigError because the algorithm's merge is not of this kind; the message says what to change."""
    name = get_display_name(plan.algorithm_name)
    what = (
        "depends on more than the sum of the replies"
        if kind == "sum"
        else "depends on which client sent which reply"
    )
    weighted = kind == "sum" and plan.weights != "uniform"
    hint = "set aggregation.weights = 'uniform', " if weighted else ""
    raise ConfigError(
        f"protection.{get_kind(protection)}: the merge of {name} {what}; {hint}{ADVICE[kind]}"
    )


def check_empty_round(plan: Plan, protection: Protection, name: str) -> None:
    """Raise ConfigError if the algorithm cannot merge a round without replies.

    Such a round has one reply, which repeats the tensors that the server sent.
    """
    server = plan.create_initial_server()
    sent = plan.algorithm.send(server, plan.federation.clients[0])
    try:
        merge_simulated(plan, server, [Reply("", "train", sent, 0, 1.0)])
    except Exception:  # an algorithm may fail in any way on such a reply
        raise ConfigError(
            f"protection.{get_kind(protection)}: {name} cannot merge a round without replies, which"
            " participation.kind = 'poisson' can produce; choose another kind, or where = 'device'"
        ) from None


def list_unprotected(plan: Plan) -> list[str]:
    """List a reply's tensors that no protection covers: those that are not changes of received tensors."""
    replies, sent = simulate_replies(replace(plan, protections=()))
    moves = set(list_moves(replies[0].tensors, sent))
    return [k for k in replies[0].tensors if k not in moves]


def simulate_replies(plan: Plan) -> tuple[list[Reply], Tensors]:
    """Simulate the replies of three clients with different examples, steps, weights and changes.

    Also return the tensors that the clients received.
    """
    y, replies, sent = make_blank_targets(plan), list[Reply](), Tensors()
    own = plan.federation.clients[:3]
    others = (name for name in ("b", "c", "d") if name not in own)  # for runs of one or two
    for i, client in enumerate([*own, *others][:3]):
        # more examples of one class, so that counts in replies are not multiples of the weights
        more = y[max(0, i - 1) : i].repeat(i * len(y), *[1] * (y.dim() - 1))
        reply, sent = simulate_reply(plan, torch.cat([y, more]), len(y))
        source = torch.Generator().manual_seed(i)
        moved = {
            k: sent[k] + 0.1 * torch.randn(sent[k].shape, generator=source)
            for k in list_moves(reply.tensors, sent)
        }
        replies.append(replace(reply, client=client, tensors=reply.tensors | moved))
    return replies, sent


def is_merge_of_kind(plan: Plan, kind: MergeKind, replies: Sequence[Reply], sent: Tensors) -> bool:
    """Return True if the algorithm's merge is of this kind.

    Kind ``sum``: the merge depends only on the sum of changes. Otherwise: it ignores who sent which reply.
    """
    server = plan.create_initial_server()
    if kind == "sum":
        changed = shift_to_zero_sum(replies, sent)
    else:
        replies = [replace(r, weight=1.0) for r in replies]
        changed = [
            replace(r, tensors=other.tensors, samples=other.samples, metrics=other.metrics)
            for r, other in zip(replies, [*replies[1:], replies[0]], strict=True)
        ]
    return are_servers_close(
        merge_simulated(plan, server, replies), merge_simulated(plan, server, changed)
    )


def shift_to_zero_sum(replies: Sequence[Reply], sent: Tensors) -> list[Reply]:
    """Change two simulated replies in opposite directions, so that the weighted sum stays the same."""
    source = torch.Generator().manual_seed(len(replies))
    names = list_moves(replies[0].tensors, sent)
    shift = Tensors({k: 0.1 * torch.randn(sent[k].shape, generator=source) for k in names})
    factors = [1 / replies[0].weight, -1 / replies[1].weight, *[0.0] * (len(replies) - 2)]
    biggest = max(abs(f) for f in factors)
    return [
        replace(r, tensors=r.tensors | (r.tensors.only(*names) + shift * (factor / biggest)))
        for r, factor in zip(replies, factors, strict=True)
    ]


def merge_simulated(plan: Plan, server: Server, replies: Sequence[Reply]) -> Server:
    """Merge simulated replies, using the random draws of the server's round."""
    with seeded(plan.seed, "merge", server.t):
        return plan.algorithm.merge(server, replies)


def are_servers_close(a: Server, b: Server) -> bool:
    """Return True if two server states are close in all tensors of model and memory."""
    for x, y in ((flatten_server(a), flatten_server(b)), (flatten_server(b), flatten_server(a))):
        for name, v in x.items():
            if name not in y or v.shape != y[name].shape:
                return False
            scale = 1e-6 + float(v.double().abs().max()) if v.numel() else 1.0
            if v.numel() and float((v.double() - y[name].double()).abs().max()) > TOLERANCE * scale:
                return False
    return True


def flatten_server(server: Server) -> Tensors:
    """Return all tensors of the server's model and memory, under unique names."""
    groups = {"model": server.model, **server.memory}
    return Tensors({f"{g}|{k}": v for g, tensors in groups.items() for k, v in tensors.items()})
