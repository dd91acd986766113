"""APPLE: Luo and Wu, Adapt to adaptation: learning personalization for cross-silo FL, IJCAI 2022.

All core models begin as the common initial model. The server keeps a core model per client and sends
each client those of all others that have taken part; p never leaves the client. There is no common
model, so no G. The penalty is λ(t) μ/2 |p - p0|²; the authors' code has twice that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Literal

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Reply, Server, setting
from ..core.tensors import Tensors, answer, params, weights
from .parts.core_models import add_cores, compute_shares, stack_cores


@dataclass(frozen=True)
class APPLE(Algorithm):
    """Predict with a sum of all clients' core models; each client learns the weights of its sum."""

    paper = "Luo and Wu, IJCAI 2022"
    common = False
    weight_lr: float = setting(0.001, "learning rate of the weights p of the core models", low=0)
    mu: float = setting(0.1, "strength of the pull of p to the shares of examples, p0", low=0)
    until: float = setting(0.1, "fraction of the rounds in which p is pulled", low=0, high=1)
    fading: Literal["cosine", "exponential"] = setting("cosine", "how the pull falls")

    def send(self, server: Server, client: str) -> Tensors:
        others = [c for c in server.clients if c != client]
        sizes = torch.tensor([float(server.samples[c]) for c in others])
        cores = [server.memory.get(f"core/{c}", Tensors()) for c in others]
        named = {
            f"core/{i}/{k}": v
            for i, core in enumerate(cores)
            for k, v in core.without(*server.statistics).items()
        }
        own = server.memory.get(f"core/{client}", server.model)  # at first the initial model
        return own | named | {"apple/samples": sizes}

    def local(self, client: Client) -> Tensors:
        net = client.net
        client.memory.setdefault("initial", weights(net))
        p0, others = compute_shares(client), stack_cores(client)
        p = self.get_weights(client).requires_grad_()
        rate, pull = self.weight_lr * client.lr_factor, self.mu * self.compute_fading(client)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.loss(answer(net, add_cores(params(net), others, p), x), y)

        def step() -> None:
            if p.grad is not None:
                p.data -= rate * (p.grad + pull * (p.detach() - p0))
            p.grad = None

        client.fit(loss, after=step)  # the own core is the net; the others are as they were sent
        client.memory["weights"] = Tensors({"p": p.detach().clone()})
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        return server.update(**{f"core/{r.client}": r.tensors for r in replies})

    def get_weights(self, client: Client) -> Tensor:
        """Return a copy of p, the own weight first; it begins as p0."""
        return client.memory.get("weights", {"p": compute_shares(client)})["p"].clone()

    def compute_fading(self, client: Client) -> float:
        """Compute λ(t), from 1 in the first round to 0 after ``until`` of the rounds."""
        done = client.t / (self.until * client.rounds) if self.until * client.rounds else 1.0
        if done >= 1:
            return 0.0
        return (cos(pi * done) + 1) / 2 if self.fading == "cosine" else 0.001**done

    def predict(self, client: Client, x: Tensor) -> Tensor:
        p, others = self.get_weights(client), stack_cores(client)
        return answer(client.net, add_cores(params(client.net), others, p), x)
