"""LG-FedAvg: Liang et al., Think locally, act globally, 2020."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm


@dataclass(frozen=True)
class LGFedAvg(Algorithm):
    """Share the head and keep the base personal: the opposite of FedPer."""

    paper = "Liang et al., 2020"
    personal = ("base.*",)
    common = False
    needs_nets = "same_head"
