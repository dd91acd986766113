"""GPFL: Zhang et al., Simultaneously learning global and personalized feature information, ICCV 2023."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.tensors import Tensors


class ConditionalValve(nn.Module):
    """Modulates features by a condition: the conditional valve of the paper."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in "gb"
        )

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        out: Tensor = z * (self.gamma(condition) + 1) + self.beta(condition)
        return out.relu()


@dataclass(frozen=True)
class GPFL(Algorithm):
    """Learn class embeddings in common and, steered by them, generic and personal features."""

    paper = "Zhang et al., ICCV 2023"
    personal = ("head.*", "prior")
    lam: float = setting(0.001, "weight of the distance to the embedding", low=0)
    mu: float = setting(0.1, "weight decay of valve and embeddings", low=0)
    conditions: Literal["received", "stale"] = setting(
        "received", "embeddings that steer the valve; stale: the client's own of its last round"
    )

    def build(self, net: Net) -> Net:
        linears = [m for m in net.head.modules() if isinstance(m, nn.Linear)]
        width, classes = linears[0].in_features, linears[-1].out_features
        net.add_module("embed", nn.Embedding(classes, width))
        net.add_module("valve", ConditionalValve(width))
        net.register_buffer("prior", torch.full((classes,), 1 / classes))  # averaged for G
        return net

    def local(self, client: Client) -> Tensors:
        net, table, steering = client.net, get_class_embeddings(client), self.steering(client)
        e, prior = (
            table.detach().clone(),
            net.get_buffer("prior").copy_(compute_class_frequencies(client)),
        )
        everybody, own = steering.mean(0), prior @ steering

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            g = net.valve(z, everybody)
            angles = normalize(g) @ normalize(table).T
            near: Tensor = (g - e[y]).norm()  # of the whole batch, neither squared nor averaged
            mine = cross_entropy(net.head(net.valve(z, own)), y)
            return mine + cross_entropy(angles, y) + self.lam * near

        decay = self.mu - client.training.weight_decay  # mu in place of the common decay
        client.fit(loss, pull=lambda w: decay * w.only("embed.*", "valve.*"))
        if self.conditions == "stale":
            client.memory["embed"] = Tensors({"trained": table.detach().clone()})
        return client.shared()

    def steering(self, client: Client) -> Tensor:
        """The embeddings that the round's conditions are made of."""
        table = get_class_embeddings(client).detach().clone()
        if self.conditions == "received":
            return table
        return client.memory.get("embed", Tensors()).get("trained", torch.zeros_like(table))

    def predict(self, client: Client, x: Tensor) -> Tensor:
        return forward_conditioned(
            client, x, compute_class_frequencies(client) @ self.steering(client)
        )

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return forward_conditioned(
            client, x, client.net.get_buffer("prior") @ get_class_embeddings(client)
        )


def forward_conditioned(client: Client, x: Tensor, condition: Tensor) -> Tensor:
    return client.net.head(client.net.valve(client.net.base(x), condition))


def get_class_embeddings(client: Client) -> Tensor:
    return client.net.get_parameter("embed.weight")


def compute_class_frequencies(client: Client) -> Tensor:
    return client.data.counts / len(client.data.train)
