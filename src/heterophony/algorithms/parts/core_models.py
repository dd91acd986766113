"""The core models of APPLE on a client: those of the others as constants, its own as the net.

A client learns the weights of their sum, and, where downloads are limited, says which it wants next.
"""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor

from ...core.algorithm import Client, Server
from ...core.tensors import Tensors, weights

LEAST_BASE = 1.5  # of the power by which models are chosen: the authors' threshold


def compute_shares(client: Client) -> Tensor:
    """Compute p0, every client's share of all examples; the client's own is the first."""
    sizes = client.received["apple/samples"]
    counts = torch.cat([sizes.new_tensor([float(len(client.data.train))]), sizes])
    return counts / counts.sum()


def stack_cores(client: Client) -> Tensors:
    """Stack the others' core models, a row each: as received, as kept, or the initial one."""
    initial = client.memory.get("initial", weights(client.net))
    rows = [
        initial | client.memory.get(f"core/{i}", {}) | client.received.below(f"core/{i}/")
        for i in range(count_others(client))
    ]
    return Tensors({k: torch.stack([row[k].flatten() for row in rows]) for k in initial if rows})


def count_others(client: Client) -> int:
    """Count the clients of the run apart from this one."""
    return len(client.received["apple/samples"])


def add_cores(own: Tensors, others: Tensors, p: Tensor) -> Tensors:
    """Return the weighted sum of all core models, with gradients for the own one and for p."""
    if not others:
        return own.map(lambda w: p[0] * w)
    return own.map(lambda w, rows: p[0] * w + (p[1:] @ rows).view(w.shape), others)


def scale_gradients(tensors: Tensors, factor: float) -> Tensors:
    """Return tensors of the same values, whose gradients are multiplied by the factor."""
    if factor == 1:
        return tensors
    return tensors.map(lambda w: w.detach() + factor * (w - w.detach()))


class CoreWeights:
    """The weights p of a client, its own first: they begin as p0, and are learned by SGD.

    Their momentum is that of local training, as in the authors' code, where one optimiser steps
    both; it is kept between rounds, or reset, like the net's.
    """

    def __init__(self, client: Client) -> None:
        kept, self.p0 = client.memory.get("weights", Tensors()), compute_shares(client)
        self.p = kept.get("p", self.p0).clone().requires_grad_()
        self.momentum = kept.get("momentum", torch.zeros_like(self.p0)).clone()
        self.factor = client.training.momentum or 0.0

    def step(self, rate: float, pull: float) -> None:
        """Step along the gradient of the loss, and towards p0."""
        if self.p.grad is None:
            return
        slope = self.p.grad + pull * (self.p.detach() - self.p0)
        self.momentum.mul_(self.factor).add_(slope)
        self.p.data.add_(self.momentum, alpha=-rate)
        self.p.grad = None

    def keep(self, client: Client) -> None:
        """Store p, and the momentum if it is kept, in the client's memory."""
        found = {"p": self.p.detach().clone()}
        if self.factor and client.training.momentum_state == "persist":
            found["momentum"] = self.momentum
        client.memory["weights"] = Tensors(found)


# Limited downloads --------------------------------------------------------------------------
def list_sent(server: Server, client: str, others: Sequence[str], limit: int | None) -> list[int]:
    """List the positions of the others whose core models are sent: all that have taken part.

    With a limit they are those that the client wanted, or the first, if it has not said any yet.
    """
    known = [i for i, c in enumerate(others) if f"core/{c}" in server.memory]
    if limit is None or limit >= len(others):
        return known
    wanted = server.memory.get(f"wanted/{client}", Tensors()).get("apple/wanted")
    return known[:limit] if wanted is None else [i for i in wanted.tolist() if i in known]


def keep_received(client: Client) -> None:
    """Keep the core models that were received, for rounds in which others are."""
    for i in range(count_others(client)):
        if core := client.received.below(f"core/{i}/"):
            client.memory[f"core/{i}"] = core


def choose_wanted(client: Client, p: Tensor, count: int) -> Tensors:
    """Choose whose core models to receive next: first at random those never received.

    Of the others, each is drawn with a probability that grows with the size of its weight as a
    power, whose base grows with the number of downloads so far.
    """
    base = max(LEAST_BASE, (client.t + 1) * count / len(p))
    new = torch.tensor([f"core/{i}" not in client.memory for i in range(len(p) - 1)])
    sizes = p[1:].detach().abs().cpu().double().masked_fill(new, 0)
    with client.apart("wanted"):
        draws = -(-torch.rand_like(sizes).log()).log()  # of Gumbel's distribution
    scores = (
        draws + log(base) * sizes
    ).tolist()  # the largest are drawn in proportion to base ** |p|
    order = sorted(range(len(scores)), key=lambda i: (not new[i], -scores[i]))
    return Tensors({"apple/wanted": torch.tensor(sorted(order[:count]), dtype=torch.int64)})
