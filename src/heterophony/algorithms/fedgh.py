"""FedGH: Yi et al., FedGH: heterogeneous federated learning with generalized global header, MM 2023.

Clients send the mean features of each class, never a head. Here the head is one linear layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, setting
from ..core.tensors import Tensors
from .parts.layers import find_linear_head
from .parts.prototypes import (
    PrototypeTraining,
    collect_prototypes,
    compute_prototypes,
    train_on_prototypes,
)


@dataclass(frozen=True)
class FedGH(Algorithm):
    """Share a head that the server trains on the clients' mean features per class."""

    paper = "Yi et al., MM 2023"
    needs_classes = uses_features = separates_head = True
    personal = ("base.*",)
    head_depth = 1
    common = False
    needs_nets = "same_head"
    server_epochs: int = setting(1, "epochs of the server over the mean features of a round", low=0)
    server_lr: float = setting(0.01, "learning rate of the server", above=0)
    server_batch: int = setting(10, "mean features per mini-batch of the server", low=1)

    def build(self, net: Net) -> Net:
        find_linear_head(net, "fedgh")
        return net

    def local(self, client: Client) -> Tensors:
        client.fit()
        return compute_prototypes(client)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        if not any(r.tensors for r in replies):
            return server
        head = server.model.only("head.*")

        def loss(w: Tensors, z: Tensor, y: Tensor) -> Tensor:
            weight, bias = (next((v for v in w.values() if v.dim() == d), None) for d in (2, 1))
            assert weight is not None
            return cross_entropy(linear(z, weight, bias), y)

        how = PrototypeTraining(self.server_epochs, self.server_batch, self.server_lr)
        return server.update(train_on_prototypes(head, loss, collect_prototypes(replies), how))
