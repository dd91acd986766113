"""APFL: Deng et al., Adaptive personalized federated learning, 2020."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, equally, mean, setting
from ..core.tensors import Tensors, answer, params, state, weights


@dataclass(frozen=True)
class APFL(Algorithm):
    """Predict with a mixture of a personal and the generic model; each client learns the mixing weight."""

    paper = "Deng et al., 2020"
    personal = ("own.*",)
    alpha: float = setting(0.5, "share of the personal model at the start", low=0, high=1)
    adaptive: bool = setting(True, "learn the share, with one step per round")

    def build(self, net: Net) -> Net:
        net.add_module("own", deepcopy(net))
        return net

    def local(self, client: Client) -> Tensors:
        net, share = client.net, self.get_own_share(client).requires_grad_(self.adaptive)
        turn, draw_again = 0, client.remember_draws()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            """Train the generic model on each mini-batch, then the personal model as part of the mixture."""
            nonlocal turn, draw_again
            turn += 1
            if turn % 2:
                draw_again = client.remember_draws()
                return client.loss(net(x), y)
            with draw_again():  # both models use the same random draws
                mixed = mix_models(share, params(net.own), weights(net))
                return client.loss(answer(net.own, mixed, x), y)

        def learn_share() -> None:
            # the gradient of the first mini-batch: ⟨∇f(mixture), own - common⟩
            if share.grad is not None:
                step = client.lr * share.grad
                share.requires_grad_(False).sub_(step).clamp_(0, 1)
                share.grad = None

        client.fit(loss, repeat=2, after=learn_share)
        share.requires_grad_(False)
        client.memory["apfl"] = Tensors({"share": share})
        client.metrics["alpha"] = share.item()
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        return server.update(mean(replies, weight=equally))

    def get_own_share(self, client: Client) -> Tensor:
        """Return the client's share of its personal model; ``alpha`` until it has learned one."""
        like = next(client.net.parameters())
        kept = client.memory.get("apfl", Tensors()).get("share")
        return like.new_tensor(self.alpha, dtype=torch.float32) if kept is None else kept.clone()

    def predict(self, client: Client, x: Tensor) -> Tensor:
        net = client.net  # state: running statistics are mixed as well
        mixed = mix_models(self.get_own_share(client), state(net.own), state(net))
        return answer(net.own, mixed, x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)


def mix_models(share: Tensor, own: Tensors, common: Tensors) -> Tensors:
    """Mix the models, ``share`` for the personal and the rest for the generic one; keep personal counters."""

    def mix_tensor(v: Tensor, w: Tensor) -> Tensor:
        # in place on a clone, to keep the memory format: a share of 1 is then exact to the bit
        return v.clone().mul_(share).add_((1 - share) * w) if v.is_floating_point() else v

    return own.map(mix_tensor, common)
