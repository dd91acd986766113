"""FedRoD: Chen and Chao, On bridging generic and personalized federated learning, ICLR 2022."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import linear

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.errors import ConfigError
from ..core.tensors import Tensors


@dataclass(frozen=True)
class FedRoD(Algorithm):
    """Train a generic head with a balanced loss and a personal head that corrects it."""

    paper = "Chen and Chao, ICLR 2022"
    needs_classes = True
    personal = ("own.*",)
    uses_features = True
    head: Literal["linear", "hyper"] = setting(
        "linear",
        "personal head: learned (linear), or made by a shared net from label frequencies (hyper)",
    )
    hidden: int = setting(32, "hidden units of the shared net that makes personal heads", low=1)

    def build(self, net: Net) -> Net:
        if self.head == "linear":
            net.add_module("own", deepcopy(net.head))
            return net
        layers = [m for m in net.head.modules() if isinstance(m, nn.Linear)]
        if not layers:
            raise ConfigError(
                "head = hyper: the head of this model has no linear layer; make nn.Linear its last layer, or use head = linear"
            )
        width, classes = layers[0].in_features, layers[-1].out_features
        makes = nn.Linear(self.hidden, (width + 1) * classes)
        net.add_module("hyper", nn.Sequential(nn.Linear(classes, self.hidden), nn.ReLU(), makes))
        return net

    def local(self, client: Client) -> Tensors:
        net, prior = client.net, client.data.counts.log()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            generic = net.head(z)
            own = generic.detach() + self.compute_correction(client, z.detach())
            return client.loss(generic + prior, y) + client.loss(own, y)

        client.fit(loss)
        return client.shared()

    def compute_correction(self, client: Client, z: Tensor) -> Tensor:
        """Compute the logits that the personal head adds to those of the generic head."""
        if self.head == "linear":
            return client.net.own(z)
        counts = client.data.counts
        made = client.net.hyper(counts / counts.sum())
        weight, bias = made.split([made.numel() - len(counts), len(counts)])
        return linear(z, weight.view(len(counts), -1), bias)

    def predict(self, client: Client, x: Tensor) -> Tensor:
        z = client.net.base(x)
        return client.net.head(z) + self.compute_correction(client, z)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net.head(client.net.base(x))
