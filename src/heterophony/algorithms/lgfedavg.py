"""LG-FedAvg: Liang et al., Think locally, act globally, 2020."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm


@dataclass(frozen=True)
class LGFedAvg(Algorithm):
    """Keep the representation, share the head: the mirror image of FedPer."""

    paper = "Liang et al., 2020"
    personal = ("base.*",)
    common = False
