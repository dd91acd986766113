"""FedYogi: Reddi et al., Adaptive federated optimization, ICLR 2021."""

from dataclasses import dataclass

from torch import Tensor

from .parts.server_updates import FedOpt


@dataclass(frozen=True)
class FedYogi(FedOpt):
    """Let the server take Yogi steps: as FedAdam, but the second moment changes additively."""

    def update_second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
