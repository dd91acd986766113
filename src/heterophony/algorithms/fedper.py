"""FedPer: Arivazhagan et al., Federated learning with personalization layers, 2019."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm


@dataclass(frozen=True)
class FedPer(Algorithm):
    """Share the representation, keep the head."""

    paper = "Arivazhagan et al., 2019"
    personal = ("head.*",)
