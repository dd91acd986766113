"""FedProx: Li et al., Federated optimization in heterogeneous networks, MLSys 2020."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm, Client, setting
from ..core.tensors import Tensors, weights


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Add a proximal term that keeps local training close to the received model."""

    paper = "Li et al., MLSys 2020"
    mu: float = setting(0.001, "strength of the proximal term", low=0)

    def local(self, client: Client) -> Tensors:
        received = weights(client.net)

        client.fit(pull=lambda w: self.mu * (w - received))
        return client.shared()
