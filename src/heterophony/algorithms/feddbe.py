"""FedDBE: Zhang et al., Eliminating domain bias in representation space, NeurIPS 2023 (FedAvg+DBE).

In the paper's initialisation, clients train without DBE and their mean features are averaged. Here
this is the first round, and its model is kept. The means are over all examples: the authors' moving
average starts at zero and stays too small. The authors' code halves the distance: its weight κ
corresponds to ``kappa`` = κ/2 here. G is measured without the shift.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, mean, setting
from ..core.tensors import Tensors
from .parts.layers import list_linear_layers


@dataclass(frozen=True)
class FedDBE(Algorithm):
    """Add a personal shift to the features, and keep their mean close to the mean of all clients."""

    paper = "Zhang et al., NeurIPS 2023"
    personal = ("shift",)
    uses_features = True
    kappa: float = setting(
        50.0, "weight of the distance between the client's and the common mean features", low=0
    )
    momentum: float = setting(
        1.0, "weight of the current batch in the moving average of mean features", above=0, high=1
    )
    shifts: bool = setting(True, "learn a personal shift of the features")

    def build(self, net: Net) -> Net:
        width = list_linear_layers(net)[0].in_features
        net.register_parameter("shift", nn.Parameter(torch.zeros(width)))
        return net

    def send(self, server: Server, client: str) -> Tensors:
        return server.model | server.memory.get("consensus", Tensors())

    def local(self, client: Client) -> Tensors:
        net, consensus = client.net, client.received.get("dbe/mean")
        average: Tensor | None = None

        def loss(x: Tensor, y: Tensor) -> Tensor:
            nonlocal average
            z = net.base(x)
            if consensus is None:
                return client.loss(net.head(z), y)
            out = client.loss(net.head(self.add_shift(net, z)), y)
            if not self.kappa:
                return out
            now = compute_mean(z)
            average = now if average is None else average.detach().lerp(now, self.momentum)
            return out + self.kappa * mse_loss(average, consensus)

        learned = [net.get_parameter("shift")] if self.shifts and consensus is not None else []
        client.fit(loss, train=[net.base, net.head, *learned])
        found = compute_mean(client.features()) if consensus is None else consensus
        return client.shared() | {"dbe/mean": found}

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        consensus = server.memory.get("consensus") or mean(replies, "dbe/mean")
        return server.update(mean(replies, *server.model), consensus=consensus)

    def add_shift(self, net: Net, z: Tensor) -> Tensor:
        """Return the features plus the client's personal shift."""
        return z + net.get_parameter("shift") if self.shifts else z

    def predict(self, client: Client, x: Tensor) -> Tensor:
        return client.net.head(self.add_shift(client.net, client.net.base(x)))

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)


def compute_mean(z: Tensor) -> Tensor:
    """Compute the mean features over examples, and over tokens if there are any."""
    return z.flatten(0, -2).mean(0)
