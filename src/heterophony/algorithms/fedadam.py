"""FedAdam: Reddi et al., Adaptive federated optimization, ICLR 2021."""

from dataclasses import dataclass

from torch import Tensor

from .parts.adaptive_server import FedOpt


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """The server takes Adam steps along the mean of the clients' moves."""

    def update_second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square
