"""Local training without federation: the baseline that a personalised method must beat."""

from dataclasses import dataclass
from typing import Literal

from ..core.algorithm import Algorithm, setting


@dataclass(frozen=True)
class Local(Algorithm):
    """Train each client on its own data; nothing is sent."""

    paper = "no federation"
    personal = ("*",)
    common = False
    needs_nets = "any"
    clients: Literal["selected", "all"] = setting(
        "selected", "clients that train in a round: as many as with other algorithms, or all"
    )

    @property
    def everybody(self) -> bool:  # type: ignore[override]  # here it is a setting
        return self.clients == "all"
