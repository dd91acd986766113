"""FedYogi: Reddi et al., Adaptive federated optimization, ICLR 2021."""

from dataclasses import dataclass

from torch import Tensor

from .parts.server_updates import FedOpt


@dataclass(frozen=True)
class FedYogi(FedOpt):
    """Update the server's model with Yogi: like FedAdam, but with an additive update of the second moment."""

    def update_second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
