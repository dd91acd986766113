"""GPFL: Zhang et al., Simultaneously learning global and personalized feature information, ICCV 2023."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.tensors import Tensors
from .parts.layers import ConditionalValve


@dataclass(frozen=True)
class GPFL(Algorithm):
    """Learn common class embeddings and, conditioned on them, generic and personal features."""

    paper = "Zhang et al., ICCV 2023"
    needs_classes = True
    # mu replaces weight decay in the gradient; AdamW applies its decay outside the gradient
    optimizers = ("sgd", "adam")
    personal = ("head.*", "prior")
    lam: float = setting(
        0.001, "weight of the distance between features and class embeddings", low=0
    )
    mu: float = setting(0.1, "weight decay of valve and embeddings", low=0)
    conditions: Literal["received", "stale"] = setting(
        "received",
        "embeddings from which conditions are computed; stale: those of the client's last training",
    )

    def build(self, net: Net) -> Net:
        linears = [m for m in net.head.modules() if isinstance(m, nn.Linear)]
        width, classes = linears[0].in_features, linears[-1].out_features
        net.add_module("embed", nn.Embedding(classes, width))
        net.add_module("valve", ConditionalValve(width))
        net.register_buffer("prior", torch.full((classes,), 1 / classes))  # averaged for G
        return net

    def local(self, client: Client) -> Tensors:
        net, conditions = client.net, self.get_condition_embeddings(client)
        table = get_class_embeddings(client)
        e, prior = table.detach().clone(), net.get_buffer("prior")
        prior.copy_(compute_class_frequencies(client))
        everybody, own = conditions.mean(0), prior @ conditions

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            g = net.valve(z, everybody)
            angles = normalize(g) @ normalize(table).T
            near: Tensor = (g - e[y]).norm()  # Frobenius norm of the whole batch
            mine = client.loss(net.head(net.valve(z, own)), y)
            return mine + cross_entropy(angles, y) + self.lam * near

        decay = self.mu - client.training.weight_decay  # mu replaces the common weight decay
        client.fit(loss, pull=lambda w: decay * w.only("embed.*", "valve.*"))
        if self.conditions == "stale":
            client.memory["embed"] = Tensors({"trained": table.detach().clone()})
        return client.shared()

    def get_condition_embeddings(self, client: Client) -> Tensor:
        """Return the class embeddings from which the conditions of the round are computed."""
        table = get_class_embeddings(client).detach().clone()
        if self.conditions == "received":
            return table
        return client.memory.get("embed", Tensors()).get("trained", torch.zeros_like(table))

    def predict(self, client: Client, x: Tensor) -> Tensor:
        own = compute_class_frequencies(client) @ self.get_condition_embeddings(client)
        return forward_conditioned(client, x, own)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        average = client.net.get_buffer("prior") @ get_class_embeddings(client)
        return forward_conditioned(client, x, average)


def forward_conditioned(client: Client, x: Tensor, condition: Tensor) -> Tensor:
    """Return the logits of features that the conditional valve scales and shifts."""
    return client.net.head(client.net.valve(client.net.base(x), condition))


def get_class_embeddings(client: Client) -> Tensor:
    """Return the common embeddings of the classes, one per row."""
    return client.net.get_parameter("embed.weight")


def compute_class_frequencies(client: Client) -> Tensor:
    """Return the class frequencies of the client's training examples."""
    return client.data.counts / len(client.data.train)
