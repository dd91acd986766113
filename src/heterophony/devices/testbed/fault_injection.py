"""What goes wrong in a testbed on request: after each round one thing, drawn by the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.errors import ConfigError, suggestion
from ...core.randomness import generator

KINDS = ("devices", "server", "broker", "network")


@dataclass(frozen=True)
class Strike:
    """What is struck; of devices and of their links, which one."""

    kind: str
    device: int


def strike(kinds: Sequence[str], seed: int, t: int, devices: int) -> Strike | None:
    """What happens after round ``t``; nothing if nothing was asked for."""
    if not kinds:
        return None
    draw = generator(seed, "testbed", t)
    return Strike(kinds[int(draw.integers(len(kinds)))], int(draw.integers(devices)))


def asked(words: Sequence[str]) -> tuple[str, ...]:
    """``devices,broker`` or ``all``, once or several times, as kinds in their order."""
    named = {name.strip() for word in words for name in word.split(",")}
    for name in sorted(named - {*KINDS, "all"}):
        raise ConfigError(f"--faults: there is no '{name}'{suggestion(name, [*KINDS, 'all'])}")
    return KINDS if "all" in named else tuple(k for k in KINDS if k in named)
