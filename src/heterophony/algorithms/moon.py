"""MOON: Li et al., Model-contrastive federated learning, CVPR 2021."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.errors import ConfigError
from ..core.tensors import Tensors, answer, frozen, state


@dataclass(frozen=True)
class MOON(Algorithm):
    """Pull features towards those of the received model, and away from those of the client's previous model."""

    paper = "Li et al., CVPR 2021"
    uses_features = True
    mu: float = setting(1.0, "weight of the contrastive loss", low=0)
    temperature: float = setting(0.5, "temperature of the contrastive loss", above=0)
    projection: bool = setting(False, "add two layers, 256 wide, between base and head")

    def build(self, net: Net) -> Net:
        if self.projection:
            linears = ((k, m) for k, m in net.head.named_modules() if isinstance(m, nn.Linear))
            name, first = next(linears)
            if not first.weight.requires_grad:
                raise ConfigError(
                    "algorithm.projection: the projection replaces the head's first layer, which is"
                    " frozen; unfreeze that layer, or set algorithm.projection = false"
                )
            width, bias = first.in_features, first.bias is not None
            net.base = nn.Sequential(
                net.base, nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 256)
            )
            net.set_submodule(f"head.{name}".rstrip("."), nn.Linear(256, first.out_features, bias))
        return net

    def local(self, client: Client) -> Tensors:
        net, received = client.net, frozen(client.net.base).eval()
        before = client.memory.get("base", state(net.base))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            out = client.loss(net.head(z), y)
            if not self.mu:
                return out
            with torch.no_grad():
                near, far = received(x), answer(received, before, x)
            return out + self.mu * self.compute_contrast(z, near, far)

        client.fit(loss)
        client.memory["base"] = state(net.base)
        return client.shared()

    def compute_contrast(self, z: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Compute MOON's contrastive loss, in which the received model's features are the positive ones."""
        likeness = [cosine_similarity(z.flatten(1), o.flatten(1)) for o in (near, far)]
        scores = torch.stack(likeness, 1) / self.temperature
        return cross_entropy(scores, z.new_zeros(len(z), dtype=torch.int64))
