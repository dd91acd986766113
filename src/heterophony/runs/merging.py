"""Prepare the replies of a round for the merge: undo protections, simulate attacks, filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from ..core.algorithm import Reply, Server
from ..core.errors import CodecError, DivergedError, HeterophonyError, NotFiniteError
from ..core.randomness import seeded
from ..core.tensors import Tensors, mix
from ..engines.base import Judge
from ..jobs.plan import Plan
from ..jobs.work import restore_replies, split_announced
from ..protection.base import Gathered, Gathering


def gather_replies(
    plan: Plan, server: Server, replies: Sequence[Reply], sent: Mapping[str, Tensors]
) -> Gathered:
    """Return the replies to merge. Without protections and attacks, these are the same objects."""
    if not plan.protections and not plan.attack.is_active:
        return Gathered(replies)
    received = {c: split_announced(v)[0] for c, v in sent.items()}
    restored = restore_replies(plan, replies, sent)
    ready: Sequence[Reply] = plan.attack.falsify_replies(
        restored, received, plan.federation.clients, server.t, plan.seed
    )
    gathering = Gathering(
        t=server.t,
        received=received,
        expected=plan.expected_replies,
        empty_reply=make_empty_reply(plan, server),
        secret=plan.secret,
    )
    filtered = dict[str, None]()
    for protection in reversed(plan.protections):
        gathered = protection.gather(ready, gathering)
        ready = gathered.replies
        filtered |= dict.fromkeys(gathered.filtered)
    return Gathered(ready, tuple(filtered))


def make_empty_reply(plan: Plan, server: Server) -> Reply:
    """Make a reply that moves nothing: that of a client which returns what it received."""
    first = plan.federation.clients[0]
    received = plan.algorithm.send(server, first)
    return Reply("", "train", received, 0, 1.0, aside=server.average)


def drop_empty_replies(replies: Sequence[Reply]) -> list[Reply]:
    """Drop replies that no client sent; rounds record who took part."""
    return [r for r in replies if r.client]


class MergedRound(NamedTuple):
    """The server after a round, and the replies that were merged or refused."""

    after: Server
    merged: list[Reply]
    refused: list[Reply]


def merge_replies(
    plan: Plan, server: Server, replies: list[Reply], judge: Judge | None
) -> MergedRound:
    """Merge the replies, except updates that the judge of untrusted clients refuses."""
    try:
        return MergedRound(merge_checked(plan, server, replies, judge), replies, [])
    except CodecError as error:
        suspects = find_responsible_clients(plan, server, replies, judge)
        if judge is None:
            who = f"client {' or '.join(suspects)}" if suspects else "several clients together"
            raise DivergedError(
                f"round {server.t}: {error}, by the update of {who}; lower training.lr"
            ) from None
        if not suspects and error.__cause__ is not None:
            raise error.__cause__ from None  # a mistake in the algorithm, not in an update
        # if no client alone is responsible, nothing of this round can be trusted
        refused = [r for r in replies if r.client in suspects] or replies
        for reply in refused:
            judge.refuse_update(reply, server.t, error)
        merged = [r for r in replies if suspects and r.client not in suspects]
        return MergedRound(merge_checked(plan, server, merged, judge), merged, refused)


def find_responsible_clients(
    plan: Plan, server: Server, replies: Sequence[Reply], judge: Judge | None
) -> list[str]:
    """List the clients without whose updates the merged model is valid."""
    found = []
    for client in dict.fromkeys(r.client for r in replies):
        rest = [r for r in replies if r.client != client]
        try:
            merge_checked(plan, server, rest, judge)
        except CodecError:
            continue
        found.append(client)
    return found


def merge_checked(plan: Plan, server: Server, replies: list[Reply], judge: Judge | None) -> Server:
    """Return the server after its round; raise CodecError if its state is not valid."""
    if not replies:
        return replace(server, t=server.t + 1)
    try:
        after = merge(plan, server, replies)
    except Exception as error:
        if judge is None or isinstance(error, HeterophonyError):
            raise
        raise CodecError(f"the updates cannot be merged: {error!r}") from error
    check_finite(server, after)
    if judge is not None:
        judge.check_merged(after)
    return after


def merge(plan: Plan, server: Server, replies: list[Reply]) -> Server:
    """Return the server after its round, unchecked."""
    with seeded(plan.seed, "merge", server.t):
        after = plan.algorithm.merge(server, replies)
    return replace(after, t=server.t + 1, average=average_personal(replies))


def check_finite(before: Server, after: Server) -> None:
    """Require finite tensors of the model and of the server's memory; old ones were checked."""
    groups = {"": (before.model, after.model)}
    groups |= {f"{g}: ": (before.memory.get(g, Tensors()), v) for g, v in after.memory.items()}
    for where, (old, new) in groups.items():
        for name, v in new.items():
            if v is old.get(name) or not v.is_floating_point():
                continue
            if not bool(torch.isfinite(v).all()):
                raise NotFiniteError(f"'{where}{name}' of the merged model holds NaN or infinity")


def average_personal(replies: list[Reply]) -> Tensors:
    """Average the clients' personal parameters. Only G uses the average; no client trains on it."""
    total = sum(r.weight for r in replies)
    return mix([r.aside for r in replies], [r.weight / total for r in replies])
