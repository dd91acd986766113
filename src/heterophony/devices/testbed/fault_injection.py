"""What goes wrong in a testbed on request: after each round one thing, drawn by the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.errors import ConfigError, suggest_or_list
from ...core.randomness import make_generator

FAULT_KINDS = ("devices", "server", "broker", "network")


@dataclass(frozen=True)
class InjectedFault:
    """What is struck; of devices and of their links, which one."""

    kind: str
    device: int


def draw_fault(kinds: Sequence[str], seed: int, t: int, devices: int) -> InjectedFault | None:
    """What happens after round ``t``; nothing if nothing was asked for."""
    if not kinds:
        return None
    draw = make_generator(seed, "testbed", t)
    return InjectedFault(kinds[int(draw.integers(len(kinds)))], int(draw.integers(devices)))


def parse_fault_kinds(words: Sequence[str]) -> tuple[str, ...]:
    """``devices,broker`` or ``all``, once or several times, as kinds in their order."""
    named = {name.strip() for word in words for name in word.split(",")}
    for name in sorted(named - {*FAULT_KINDS, "all"}):
        raise ConfigError(
            f"--faults: there is no '{name}'{suggest_or_list(name, [*FAULT_KINDS, 'all'])}"
        )
    return FAULT_KINDS if "all" in named else tuple(k for k in FAULT_KINDS if k in named)
