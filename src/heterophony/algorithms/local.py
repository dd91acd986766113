"""Local: no federation, the baseline that a personalised method must beat."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm


@dataclass(frozen=True)
class Local(Algorithm):
    """Train every client alone in every round; nothing is sent."""

    paper = "no federation"
    personal = ("*",)
    everybody = True
    common = False
