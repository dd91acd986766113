"""FedAdam: Reddi et al., Adaptive federated optimization, ICLR 2021."""

from dataclasses import dataclass

from torch import Tensor

from .parts.server_updates import FedOpt


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """Update the server's model with Adam; the mean of the client updates serves as the gradient."""

    def update_second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square
