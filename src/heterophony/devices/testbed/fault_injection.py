"""Faults that a testbed injects on request: one after each round, drawn from the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.errors import ConfigError, suggest_or_list
from ...core.randomness import make_generator

FAULT_KINDS = ("devices", "server", "broker", "network")


@dataclass(frozen=True)
class InjectedFault:
    """The kind of fault; ``device`` is the device or the link that is hit, if the kind has one."""

    kind: str
    device: int


def draw_fault(kinds: Sequence[str], seed: int, t: int, devices: int) -> InjectedFault | None:
    """Draw the fault after round ``t``; None if no kinds were requested."""
    if not kinds:
        return None
    draw = make_generator(seed, "testbed", t)
    return InjectedFault(kinds[int(draw.integers(len(kinds)))], int(draw.integers(devices)))


def parse_fault_kinds(words: Sequence[str]) -> tuple[str, ...]:
    """Parse the values of --faults, such as ``devices,broker`` or ``all``, in a fixed order."""
    named = {name.strip() for word in words for name in word.split(",")}
    for name in sorted(named - {*FAULT_KINDS, "all"}):
        raise ConfigError(
            f"--faults: there is no '{name}'{suggest_or_list(name, [*FAULT_KINDS, 'all'])}"
        )
    return FAULT_KINDS if "all" in named else tuple(k for k in FAULT_KINDS if k in named)
