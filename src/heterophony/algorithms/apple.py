"""APPLE: Luo and Wu, Adapt to adaptation: learning personalization for cross-silo FL, IJCAI 2022.

All core models start as the common initial model; p never leaves the client. There is no common
model, so no G. The gradient of a core model contains the factor p_kk, about 1/N. It is multiplied
by N, as PFLlib multiplies the learning rate, so that usual values of ``training.lr`` work; the
authors' code does not do so (``scale_lr = false``). The penalty is λ(t) μ/2 |p - p0|²; the authors'
code uses twice that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Literal

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Reply, Server, setting
from ..core.tensors import Tensors, answer, params, weights
from .parts import mixing


@dataclass(frozen=True)
class APPLE(Algorithm):
    """Predict with a weighted sum of all clients' core models; each client learns its own weights."""

    paper = "Luo and Wu, IJCAI 2022"
    common = False
    weight_lr: float = setting(0.001, "learning rate of the weights p of the core models", low=0)
    mu: float = setting(
        0.1, "strength of the pull of p towards p0, the shares of the examples", low=0
    )
    until: float = setting(
        0.1, "fraction of the rounds in which p is pulled towards p0", low=0, high=1
    )
    fading: Literal["cosine", "exponential"] = setting(
        "cosine", "schedule by which the pull decreases"
    )
    scale_lr: bool = setting(True, "multiply the core model's gradient by the number of clients")
    downloads: int | None = setting(
        None, "core models of other clients that a client receives per round; default: all", low=0
    )

    def send(self, server: Server, client: str) -> Tensors:
        others = [c for c in server.clients if c != client]
        sizes = torch.tensor([float(server.samples[c]) for c in others])
        named = {
            f"core/{i}/{k}": v
            for i in mixing.list_sent_cores(server, client, others, self.downloads)
            for k, v in server.memory[f"core/{others[i]}"].without(*server.statistics).items()
        }
        own = server.memory.get(f"core/{client}", server.model)  # at first the initial model
        return own | named | {"apple/samples": sizes}

    def local(self, client: Client) -> Tensors:
        net = client.net
        client.memory.setdefault("initial", weights(net))
        learned, others = mixing.CoreWeights(client), mixing.stack_cores(client)
        rate, pull = self.weight_lr * client.lr_factor, self.mu * self.compute_fading(client)
        factor = len(learned.p) if self.scale_lr else 1

        def loss(x: Tensor, y: Tensor) -> Tensor:
            own = mixing.scale_gradients(params(net), factor)
            return client.loss(answer(net, mixing.add_cores(own, others, learned.p), x), y)

        # the client's own core is the net; the others are as received
        client.fit(loss, after=lambda: learned.step(rate, pull))
        learned.keep(client)
        if self.downloads is None or self.downloads >= len(learned.p) - 1:
            return client.shared()
        mixing.keep_received_cores(client)
        return client.shared() | mixing.choose_wanted_cores(client, learned.p, self.downloads)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        cores = {f"core/{r.client}": r.tensors.without("apple/*") for r in replies}
        wanted = {f"wanted/{r.client}": r.tensors.only("apple/wanted") for r in replies}
        return server.update(**cores, **{k: v for k, v in wanted.items() if v})

    def compute_fading(self, client: Client) -> float:
        """Compute APPLE's λ(t), which falls from 1 to 0 within the fraction ``until`` of the rounds."""
        rounds = int(self.until * client.rounds)
        if client.t >= rounds:
            return 0.0
        done = client.t / rounds
        return (cos(pi * done) + 1) / 2 if self.fading == "cosine" else 0.001**done

    def predict(self, client: Client, x: Tensor) -> Tensor:
        p, others = mixing.CoreWeights(client).p, mixing.stack_cores(client)
        return answer(client.net, mixing.add_cores(params(client.net), others, p), x)
