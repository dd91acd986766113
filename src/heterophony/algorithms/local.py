"""Local: no federation at all, the baseline that every personal method must beat."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm


@dataclass(frozen=True)
class Local(Algorithm):
    """Everybody trains alone in every round; nothing travels."""

    paper = "no federation"
    personal = ("*",)
    everybody = True
    common = False
