"""Prepare the replies of a round for the merge: undo protections, simulate attacks, filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.algorithm import Reply, Server
from ..core.tensors import Tensors
from ..jobs.plan import Plan
from ..jobs.protecting import restore_replies, split_announced
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
