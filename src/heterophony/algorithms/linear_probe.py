"""Linear probing: FedAvg of the head on a frozen base."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm, Net


@dataclass(frozen=True)
class LinearProbe(Algorithm):
    """Freeze the given base; average the clients' heads."""

    paper = "linear probing; FedAvg: McMahan et al., AISTATS 2017"
    separates_head = True

    def build(self, net: Net) -> Net:
        net.base.requires_grad_(False)
        return net
