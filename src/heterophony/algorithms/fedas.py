"""FedAS: Yang et al., Bridging inconsistency in personalized federated learning, CVPR 2024.

The authors' code aligns the server's model itself, client by client, and aligns clients
that take part for the first time with their untrained net. Here every client aligns its own copy,
and only once it has a trained base of its own. P is measured after the alignment, as every client
aligns the base that it receives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..core.algorithm import Algorithm, Client, Reply, Server, as_agreed, equally, mean, setting
from ..core.tensors import Tensors, answer, params, state
from .fedpac import sum_by_class


@dataclass(frozen=True)
class FedAS(Algorithm):
    """Keep heads personal; align the received base with the client's last one; average by Fisher information."""

    paper = "Yang et al., CVPR 2024"
    needs_classes = True
    personal = ("head.*",)
    align_epochs: int = setting(1, "epochs of the alignment of a received base", low=0)
    align_lr: float = setting(0.01, "learning rate of the alignment (plain SGD)", low=0)
    weight: Literal["fisher", "agreed"] = setting(
        "fisher", "weight of a reply: the trace of its Fisher information, or the configured weight"
    )

    def local(self, client: Client) -> Tensors:
        self.adapt(client)
        client.fit()
        if self.align_epochs:
            client.memory["base"] = state(client.net.base)
        trace = {"fedas/fisher": compute_fisher_trace(client)} if self.weight == "fisher" else {}
        return client.shared() | trace

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        weight = as_agreed
        if self.weight == "fisher":
            traces = sum(float(r.tensors["fedas/fisher"]) for r in replies)
            weight = get_fisher_trace if traces > 0 else equally
        names = list(server.model)
        return server.update(mean(replies, *names, weight=weight)) if names else server

    def adapt(self, client: Client) -> None:
        """Train the received base towards the class means of the client's own last base."""
        net, kept = client.net, client.memory.get("base")
        if not kept or not self.align_epochs:
            return
        means = compute_class_means(client, kept)

        def alignment_loss(x: Tensor, y: Tensor) -> Tensor:
            squares = (net.base(x).flatten(1) - means[y]).square().mean(1)
            held = one_hot(y, client.data.classes).to(squares)
            return (squares @ held / held.sum(0).clamp(min=1)).sum()  # one mean per class

        how = client.training.as_plain_sgd(self.align_lr)
        client.fit(alignment_loss, train=net.base, epochs=self.align_epochs, how=how, phase="align")


def get_fisher_trace(reply: Reply) -> float:
    """Return the trace of the client's Fisher information, which weights its reply."""
    return float(reply.tensors["fedas/fisher"])


@torch.no_grad()
def compute_class_means(client: Client, base: Tensors) -> Tensor:
    """Compute the mean features of every class, given other tensors of the base, in evaluation mode."""
    module, batches = client.net.base.eval(), client.data.train.batches(250)
    z = torch.cat([answer(module, base, x) for x, _ in batches]).float().flatten(1)
    return sum_by_class(client, z) / client.data.counts.clamp(min=1)[:, None]


def compute_fisher_trace(client: Client) -> Tensor:
    """Return the sum of squared gradients over all mini-batches, in evaluation mode."""
    client.net.eval()
    learned = list(params(client.net).values())
    total = learned[0].new_zeros(())
    for x, y in client.data.train.batches(client.training.batch):
        loss = client.compute_net_loss(x, y)
        slopes = torch.autograd.grad(loss, learned, allow_unused=True)
        total += torch.stack([g.float().square().sum() for g in slopes if g is not None]).sum()
    return total.detach()
