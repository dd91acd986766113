"""FedCP: Zhang et al., Separating feature information via conditional policy, KDD 2023.

The policy is the softmax of the paper, without the Gumbel noise that the authors' code adds, even
in tests. In the first round the context is that of the initial head, which all clients have in
common; in the authors' code each client draws one at random. G is measured with the generic head on
all features, which equals the split with two identical heads, except for one bias. The server could
compute the personal head from the mean that the paper lets a client send.
"""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.tensors import Tensors, weights
from .parts.distillation import compute_mmd, make_teacher
from .parts.layers import list_linear_layers, multiply_weights


@dataclass(frozen=True)
class FedCP(Algorithm):
    """Split each example's features between a generic and a personal head by a shared policy."""

    paper = "Zhang et al., KDD 2023"
    personal = ("own.*",)
    separates_head = True
    lam: float = setting(
        5.0,
        "weight of the MMD between features of the client's base and of the received one",
        low=0,
    )

    def build(self, net: Net) -> Net:
        width = list_linear_layers(net)[0].in_features
        net.add_module("own", deepcopy(net.head))
        layers = nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU()
        net.add_module("policy", nn.Sequential(*layers))
        return net

    def local(self, client: Client) -> Tensors:
        net, teacher, context = client.net, make_teacher(client.net), compute_context(client.net)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            out = client.loss(forward_split(net, z, context), y)
            if not self.lam:
                return out
            with torch.no_grad():
                received = teacher(x)
            return out + self.lam * compute_mmd(z, received)

        client.fit(loss, train=[net.base, net.own, net.policy])  # the generic head is frozen
        heads = 0.5 * (weights(net.head) + weights(net.own))
        return client.shared() | heads.under("head.")

    def predict(self, client: Client, x: Tensor) -> Tensor:
        return forward_split(client.net, client.net.base(x), compute_context(client.net))

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)


def compute_context(net: Net) -> Tensor:
    """Compute the client's direction in feature space, a unit vector, from its personal head."""
    own = [m for m in net.own.modules() if isinstance(m, nn.Linear)]
    return normalize(multiply_weights(own).sum(0), dim=0)


def compute_policy(net: Net, z: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the generic and the personal share of each feature; the two sum to 1."""
    both = net.policy(z * context).unflatten(-1, (2, -1)).softmax(-2)
    return both.select(-2, 0), both.select(-2, 1)


def forward_split(net: Net, z: Tensor, context: Tensor) -> Tensor:
    """Return the sum of both heads' outputs, each computed from the head's share of the features."""
    generic, personal = compute_policy(net, z, context)
    return net.head(z * generic) + net.own(z * personal)
