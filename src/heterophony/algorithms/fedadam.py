"""FedAdam: Reddi et al., Adaptive federated optimization, ICLR 2021."""

from dataclasses import dataclass

from torch import Tensor

from .parts.server_updates import FedOpt


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """Let the server take Adam steps along the mean of the client updates."""

    def update_second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square
