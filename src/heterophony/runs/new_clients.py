"""Let clients join after training: they receive the model, personalise it, and are evaluated."""

from __future__ import annotations

import time

from ..core.algorithm import Server
from ..engines.base import Engine
from ..jobs.plan import Job, Plan
from .events import NewClientsEvent
from .round_events import make_new_clients_event


def join_new_clients(plan: Plan, engine: Engine, server: Server) -> NewClientsEvent | None:
    """Let every new client join, each in one job; return None if there are no new clients.

    Their replies are never merged, so a job can be repeated after an interruption.
    """
    new = plan.federation.new
    if not new:
        return None
    begun = time.perf_counter()
    sizes = plan.federation.whole().sizes()
    average, send = server.average | server.model, plan.algorithm.send
    jobs = [
        Job(
            kind="join",
            t=server.t,
            client=c,
            tensors=send(server, c),
            generic_model=average,
            cost=sizes[c],
        )
        for c in new
    ]
    replies = list(engine.run(jobs))
    return make_new_clients_event(plan, server.t, replies, round(time.perf_counter() - begun, 4))
