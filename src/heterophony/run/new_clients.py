"""Clients who join after training: sent the common state, personalised, measured; merged never."""

from __future__ import annotations

import time
from typing import Any

from ..core.algorithm import Server
from ..engines.base import Engine
from ..jobs.plan import Job, Plan

Event = dict[str, Any]


def join_new_clients(plan: Plan, engine: Engine, server: Server) -> list[Event]:
    """All newcomers, each in one job that can be repeated at will; no event where there are none.

    Counts are right answers on each newcomer's own test data: ``before`` of the model as it
    arrives, ``P`` of its own in the end, ``G`` of the common one.
    """
    new = plan.federation.new
    if not new:
        return []
    begun = time.perf_counter()
    sizes, tested = (plan.federation.whole().sizes(part) for part in ("train", "test"))
    average, send = server.average | server.model, plan.algorithm.send
    jobs = [Job("join", server.t, c, send(server, c), average, sizes[c]) for c in new]
    replies = {r.client: r for r in engine.run(jobs)}
    said = [replies[c].metrics for c in new]
    return [
        {
            "event": "newcomers",
            "t": server.t,
            "rounds": plan.effective_new_client_rounds,
            "clients": list(new),
            "train": [sizes[c] for c in new],
            "test": [tested[c] for c in new],
            "before": [int(m["before"]) for m in said],
            "P": [int(m["P"]) for m in said],
            "G": [int(m["G"]) for m in said] if plan.algorithm.common else None,
            "sha256": [replies[c].kept for c in new],
            "seconds": round(time.perf_counter() - begun, 4),
            "work": {"train": round(sum(m["seconds"] for m in said), 4), "evaluate": 0.0},
        }
    ]
