"""FedDPA: Yang et al., Dual-Personalizing Adapter for Federated Foundation Models, NeurIPS 2024."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.algorithm import Client, Net, setting
from ..core.tensors import Tensors
from .parts.low_rank import DualAdapter, LoRAAlgorithm, add_personal_adapters, mixing_adapters


@dataclass(frozen=True)
class FedDPA(LoRAAlgorithm):
    """Train a common and a personal adapter; mix them by how similar an example is to the client's data."""

    paper = "Yang et al., NeurIPS 2024"
    personal = ("*.own.lora_A", "*.own.lora_B")
    uses_features = True
    most: float = setting(0.5, "largest share of the personal adapter; 0: none", low=0, high=1)
    train_mix: float = setting(
        0.5, "weight of the personal adapter during its training", above=0, high=1
    )
    anchors: int = setting(
        5, "number of training examples that each example is compared with", low=1
    )

    def build(self, net: Net) -> Net:
        return add_personal_adapters(super().build(net))

    def local(self, client: Client) -> Tensors:
        own = [m.own for m in client.net.modules() if isinstance(m, DualAdapter)]
        personal = {id(p) for part in own for p in part.parameters()}
        client.fit(train=[p for p in client.net.parameters() if is_common_parameter(p, personal)])
        if self.most:
            with mixing_adapters(client.net, torch.tensor([self.train_mix])):
                client.fit(train=own, phase="own")
        return client.shared()

    def predict(self, client: Client, x: Tensor) -> Tensor:
        if not self.most:
            return client.net(x)
        with mixing_adapters(client.net, torch.ones(1)):
            nearness = embed_examples(client.net, x) @ self.embed_anchors(client).T
        with mixing_adapters(client.net, self.most * nearness.mean(1)):
            return client.net(x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)

    def embed_anchors(self, client: Client) -> Tensor:
        """Compute the features of random training examples of the client, the same for all test batches."""
        data = client.data.train
        with client.apart("anchors"):
            chosen = torch.randperm(len(data))[: self.anchors]
        return embed_examples(client.net, data.batch(chosen)[0])


def is_common_parameter(parameter: Tensor, personal: set[int]) -> bool:
    """Return True if a parameter is trained and belongs to no personal adapter."""
    return parameter.requires_grad and id(parameter) not in personal


def embed_examples(net: Net, x: Tensor) -> Tensor:
    """Compute the features of each example, normalised to length 1."""
    return nn.functional.normalize(net.base(x).flatten(1), dim=1)
