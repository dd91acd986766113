"""FedGen: Zhu et al., Data-free knowledge distillation for heterogeneous FL, ICML 2021.

The generator makes features, so the head must be one linear layer. Its loss is the paper's: the
loss of the mean of all received heads, on labels drawn in proportion to the sum of all received
counts. The authors' code sums the losses of the heads instead, each weighted by its client's share
of the label; its generator has BatchNorm, and its clients have a further loss term. G and P are
measured with the averaged model. Clients tell the server their label counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, equally, mean, setting
from ..core.tensors import Tensors, params
from .parts.distillation import (
    GeneratorTraining,
    draw_labels,
    generate_features,
    make_generator,
    train_generator,
)
from .parts.layers import find_linear_head


@dataclass(frozen=True)
class FedGen(Algorithm):
    """Train a generator of features on the clients' heads; clients also learn from its features."""

    paper = "Zhu et al., ICML 2021"
    needs_classes = separates_head = True
    head_depth = 1
    alpha: float = setting(1.0, "weight of the loss on generated features", low=0)
    generated: int = setting(
        32, "generated features per mini-batch, on clients and on the server", low=1
    )
    noise: int = setting(32, "width of the noise that the generator receives", low=1)
    hidden: int = setting(256, "hidden units of the generator", low=1)
    generator_lr: float = setting(3e-4, "learning rate of the generator (Adam)", above=0)
    generator_steps: int = setting(50, "steps of the generator per round", low=0)
    diversity: float = setting(
        1.0, "weight of the loss term that makes generated features differ", low=0
    )

    def build(self, net: Net) -> Net:
        head = find_linear_head(net, "fedgen")
        classes, width = head.out_features, head.in_features
        net.add_module("generator", make_generator(classes, width, self.noise, self.hidden))
        return net

    def send(self, server: Server, client: str) -> Tensors:
        return server.model | server.memory.get("labels", Tensors())

    def local(self, client: Client) -> Tensors:
        net, labels = client.net, client.received.get("fedgen/labels")
        made = params(net.generator)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            out = client.compute_net_loss(x, y)
            if labels is None or not self.alpha:
                return out
            drawn = draw_labels(labels, self.generated)
            z = generate_features(made, drawn, labels.new_empty(len(drawn), self.noise).normal_())
            return out + self.alpha * client.loss(net.head(z), drawn)

        client.fit(loss, train=[net.base, net.head])
        counts = client.data.counts.float()
        return client.shared().without("generator.*") | {"fedgen/counts": counts}

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        counts = torch.stack([r.tensors["fedgen/counts"] for r in replies]).sum(0)
        labels = counts / counts.sum()
        heads = mean(replies, "head.*", weight=equally)  # 1/K Σ g(z; θ_k), as heads are linear
        how = GeneratorTraining(
            self.generator_steps, self.generated, self.noise, self.generator_lr, self.diversity
        )
        generator, kept = server.model.below("generator."), server.memory.get("adam", Tensors())
        made, kept = train_generator(generator, heads, labels, how, kept)
        model = mean(replies, *server.model.without("generator.*")) | made.under("generator.")
        return server.update(model, labels=Tensors({"fedgen/labels": labels}), adam=kept)
