"""FedYogi: Reddi et al., Adaptive federated optimization, ICLR 2021."""

from dataclasses import dataclass

from torch import Tensor

from .parts.adaptive_server import Adaptive


@dataclass(frozen=True)
class FedYogi(Adaptive):
    """As FedAdam, but the scale of a parameter changes only additively."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
