"""The parts of events that are about protections: what they promise, and what they have spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from ..core.algorithm import Reply
from ..jobs.merge_trial import list_unprotected
from ..jobs.plan import Plan
from ..jobs.run_facts import describe_plan
from ..protection import describe_protection

# what the server records of every client beside its replies, whatever the protection is
RECORDED_OUTSIDE = (
    "numbers of examples and of their labels",
    "G and P of every client",
    "digests of what clients keep",
    "who replied, and when",
)


class ProtectionFields(TypedDict, total=False):
    """Keys of the event ``start``."""

    protection: list[dict[str, Any]]
    privacy: dict[str, Any]
    bad_clients: list[str]


class SpentFields(TypedDict, total=False):
    """Keys of the event ``round``."""

    filtered: list[str]
    epsilon: float | None
    delta: float


def describe_protections(plan: Plan) -> ProtectionFields:
    """Describe the protections and simulated attacks of a run; empty without any."""
    found: ProtectionFields = {}
    if plan.protections:
        found["protection"] = [describe_protection(p) for p in plan.protections]
    run = describe_plan(plan)
    for protection in plan.protections:
        if promise := protection.promise(run):
            found["privacy"] = {
                "unit": promise.unit,
                "delta": promise.delta,
                "accounting": promise.accounting,
                "outside": list_outside(plan),
            }
    if plan.attack.is_active:
        found["bad_clients"] = plan.attack.list_bad_clients(plan.federation.clients, plan.seed)
    return found


def list_outside(plan: Plan) -> list[str]:
    """List what is known of a client and not covered by ε."""
    tensors = [f"tensor {name}" for name in list_unprotected(plan)]
    aside = [] if plan.personal_stays_on_device else ["personal parameters, averaged to measure G"]
    return [*tensors, *(aside if plan.algorithm.common else []), *RECORDED_OUTSIDE]


def describe_protected_round(
    plan: Plan,
    t: int,
    filtered: Sequence[str],
    trained: Sequence[Reply],
    spent: float | None,
) -> SpentFields:
    """Describe what the protections did in round ``t``, and ε after it; empty without any.

    ``trained`` are all replies of the round, ``spent`` is ε before it.
    """
    found: SpentFields = {"filtered": list(filtered)} if filtered else {}
    run = describe_plan(plan)
    for protection in plan.protections:
        if promise := protection.promise(run):
            found["epsilon"] = protection.spend(run, t + 1, spent, trained)
            found["delta"] = promise.delta
    return found
