"""The list ``[[protection]]`` and the section ``[attack]``: read, and checked against the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError, find_name, match_name
from ..jobs.plan import collect_run_facts
from ..population.participation import Poisson, RandomParticipation
from ..protection import PROTECTION_CLASSES, get_kind
from ..protection.base import Protection, RunFacts

if TYPE_CHECKING:
    from .config import Config


def set_protection(raw: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Apply ``-c protection.KIND.KEY=VALUE``: change the entry of that kind, or append one."""
    kind, key = path
    entries = raw.setdefault("protection", [])
    if isinstance(entries, str):  # -c protection=median
        entries = raw["protection"] = [{"kind": k.strip()} for k in entries.split(",")]
    if not isinstance(entries, list):
        raise ConfigError("protection: must be a list of tables, as in [[protection]]")
    name = find_name(PROTECTION_CLASSES, kind, "protection.kind")
    tables = [e for e in entries if isinstance(e, dict)]
    found = [e for e in tables if match_name(PROTECTION_CLASSES, str(e.get("kind"))) == name]
    if not found:
        found = [{"kind": name}]
        entries += found
    found[0][key] = value


def check_protections(config: Config) -> None:
    """Refuse protections that do not fit each other or the run, before anything is written."""
    active = [p for p in config.protections if not p.is_identity]
    kinds = [get_kind(p) for p in active]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ConfigError(f"protection.{kind}: is there twice; leave one out")
    if active and config.algorithm.pooled:
        raise ConfigError(
            f"protection.{kinds[0]}: {config.algorithm_name} trains on pooled data, so nothing travels;"
            " leave it out"
        )
    check_order(active)
    for protection in active:
        check_turns(config, protection)
        check_size(config, protection)
        protection.check_run(describe_run(config, tuple(active)))


def check_order(active: Sequence[Protection]) -> None:
    """Refuse two kinds of privacy, two forms of what is sent, and work on a form already sent."""
    private = [get_kind(p) for p in active if p.guards_replies]
    if len(private) > 1:
        raise ConfigError(f"protection: {' and '.join(private)} have an ε each; choose one")
    encoding = [i for i, p in enumerate(active) if p.encodes]
    if len(encoding) > 1:
        both = " and ".join(get_kind(active[i]) for i in encoding)
        raise ConfigError(f"protection: {both} both decide the form of what is sent; choose one")
    for protection in active[encoding[0] + 1 :] if encoding else ():
        if protection.works_on_client:
            raise ConfigError(
                f"protection.{get_kind(protection)}: must come before {get_kind(active[encoding[0]])},"
                " which encodes what is sent"
            )


def check_turns(config: Config, protection: Protection) -> None:
    """Refuse a selection that may draw a client twice, where it may reply only once."""
    if protection.once_per_round and getattr(config.participation, "replacement", False):
        raise ConfigError(
            f"protection.{get_kind(protection)}: a client must not be drawn twice in a round; set"
            " participation.replacement = false"
        )


def check_size(config: Config, protection: Protection) -> None:
    """Refuse a rule that needs more replies than a round has."""
    rule = config.participation
    if config.algorithm.everybody:
        replies = config.data.clients
    elif isinstance(rule, RandomParticipation):
        replies = rule.compute_sample_size(config.data.clients)
    else:
        return  # a rule of the user's own
    if why := protection.check_replies(replies):
        about = "about " if isinstance(rule, Poisson) else ""
        raise ConfigError(
            f"protection.{get_kind(protection)}: {why}, and a round has {about}{replies};"
            " lower f, or raise participation"
        )


def describe_run(config: Config, active: tuple[Protection, ...]) -> RunFacts:
    """Collect what protections may depend on."""
    return collect_run_facts(
        rounds=config.top.rounds,
        clients=config.data.clients,
        algorithm=config.algorithm,
        participation=config.participation,
        weights=config.aggregation.weights,
        batch=config.local.batch,
        buffers=config.model.buffers,
        faults=config.faults,
        attack=config.attack,
        protections=active,
    )


def settle_protections(config: Config) -> Config:
    """Choose the noise of a target ε, and end the run before a budget is exceeded.

    The result says both in numbers: whoever reads it, such as a device, needs no accounting.
    """
    settled, rounds = list[Protection](), config.top.rounds
    for protection in config.protections:
        if protection.is_identity:
            settled.append(protection)
            continue
        active = tuple(p for p in config.protections if not p.is_identity)
        own, most = protection.settle(describe_run(config, active))
        settled.append(own)
        rounds = min(rounds, most)
    if tuple(settled) == config.protections and rounds == config.top.rounds:
        return config
    top = replace(config.top, rounds=rounds)
    return replace(config, top=top, protections=tuple(settled))


def check_kind_chosen(protections: Sequence[Protection], participation: Any) -> None:
    """Refuse a target ε where nobody said how clients are selected: the noise depends on it."""
    targets = [p for p in protections if getattr(p, "epsilon", None) is not None]
    if targets and not (isinstance(participation, dict) and "kind" in participation):
        raise ConfigError(
            f"protection.{get_kind(targets[0])}.epsilon: the noise depends on how clients are selected;"
            " set participation.kind = 'poisson', or 'uniform', which needs more noise"
        )
