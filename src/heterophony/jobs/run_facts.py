"""What protections may depend on: facts about a run, from its configuration or its plan."""

from __future__ import annotations

from ..core.algorithm import Algorithm
from ..population.attacks import Attack
from ..population.faults import Faults
from ..population.participation import (
    Participation,
    Poisson,
    RandomParticipation,
    Skewed,
    Uniform,
)
from ..protection.base import Protection, RunFacts
from .plan import Plan

KINDS: dict[type, str] = {Poisson: "poisson", Uniform: "uniform", Skewed: "skewed"}


def collect_run_facts(
    *,
    rounds: int,
    clients: int,
    algorithm: Algorithm,
    participation: Participation,
    weights: str,
    batch: int,
    buffers: str,
    faults: Faults,
    attack: Attack,
    protections: tuple[Protection, ...],
) -> RunFacts:
    """Collect the facts of a run with these settings."""
    rate, kind = 1.0 if algorithm.everybody else None, "everybody"
    if not algorithm.everybody:
        kind = KINDS.get(type(participation), "own")
        if isinstance(participation, Poisson):
            rate = participation.compute_rate(clients)
        elif isinstance(participation, RandomParticipation):
            rate = participation.compute_sample_size(clients) / clients
    return RunFacts(
        rounds=rounds,
        clients=clients,
        participation_kind=kind,
        rate=rate,
        weights=weights,
        batch=batch,
        shares_buffers=buffers == "average",
        unreliable=faults.dropout > 0 or faults.deadline is not None,
        attacked=attack.is_active,
        protections=protections,
    )


def describe_plan(plan: Plan) -> RunFacts:
    """Collect the facts of a plan."""
    return collect_run_facts(
        rounds=plan.rounds,
        clients=len(plan.federation.clients),
        algorithm=plan.algorithm,
        participation=plan.participation,
        weights=plan.weights,
        batch=plan.training.batch,
        buffers=plan.buffers,
        faults=plan.faults,
        attack=plan.attack,
        protections=plan.protections,
    )
