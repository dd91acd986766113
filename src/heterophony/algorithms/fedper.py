"""FedPer: Arivazhagan et al., Federated learning with personalization layers, 2019."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm


@dataclass(frozen=True)
class FedPer(Algorithm):
    """Share the base; the head is personal."""

    paper = "Arivazhagan et al., 2019"
    personal = ("head.*",)
