"""Per-FedAvg: Fallah et al., A meta-learning approach, NeurIPS 2020."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Reply, Server, equally, mean, setting
from ..core.tensors import Tensors, answer, params


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """Learn an initial model that adapts well to a client's data in one step."""

    paper = "Fallah et al., NeurIPS 2020"
    optimizers = ("sgd",)  # both steps are plain SGD, each with its own learning rate
    order: Literal["first", "hessian_free"] = setting(
        "first", "second-order term: left out, or computed by finite differences"
    )
    alpha: float = setting(0.01, "learning rate of the adaptation", low=0)
    beta: float = setting(0.001, "learning rate of the generic model", low=0)
    delta: float = setting(1e-3, "step of the finite differences that replace the Hessian", above=0)
    adaptation: Literal["step", "epoch"] = setting(
        "step", "how much a client adapts before P is measured"
    )

    def local(self, client: Client) -> Tensors:
        net, first, third = client.net, client.draws("first"), client.draws("third")
        turn = count()

        def compute_slope(w: Tensors, batch: tuple[Tensor, Tensor]) -> Tensors:
            with client.apart(f"slope/{next(turn)}"):  # separate random draws for dropout
                return compute_gradient(client, w, *batch)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            w = params(net)
            first_slope = compute_slope(w, next(first))
            # in place on a clone, to keep the memory format: α = 0 is then exact to the bit
            ahead = w.map(lambda p, g: p.clone().sub_(g, alpha=self.alpha), first_slope)
            return client.loss(answer(net, ahead, x), y)

        def second_order(w: Tensors) -> Tensors:
            g, batch = params(net).map(get_gradient), next(third)
            there, back = (compute_slope(w + s * self.delta * g, batch) for s in (1, -1))
            return -self.alpha / (2 * self.delta) * (there - back)

        how = replace(client.training, lr=self.beta, momentum=0.0)
        client.fit(loss, pull=second_order if self.order == "hessian_free" else None, how=how)
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        return server.update(mean(replies, weight=equally))

    def adapt(self, client: Client) -> None:
        how = client.training.as_plain_sgd(self.alpha)
        steps = 1 if self.adaptation == "step" else None
        client.fit(epochs=1, steps=steps, how=how, phase="tune")


def compute_gradient(client: Client, w: Tensors, x: Tensor, y: Tensor) -> Tensors:
    """Compute the gradient at ``w`` with the net's running statistics, which stay unchanged."""
    at = w.map(lambda v: v.detach().clone().requires_grad_())
    buffers = {k: v.clone() for k, v in client.net.named_buffers()}
    client.loss(answer(client.net, at | buffers, x), y).backward()
    return at.map(get_gradient)


def get_gradient(parameter: Tensor) -> Tensor:
    """Return a copy of a parameter's gradient, in the parameter's memory format; zeros if it has none."""
    slope = torch.zeros_like(parameter)
    return slope if parameter.grad is None else slope.copy_(parameter.grad)
