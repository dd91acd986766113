"""pFedMe: Dinh et al., Personalized federated learning with Moreau envelopes, NeurIPS 2020."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Reply, Server, equally, mean, setting
from ..core.tensors import Tensors, answer, mix, state, weights


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """Train a personal model near the local model, which follows it (Moreau envelope)."""

    paper = "Dinh et al., NeurIPS 2020"
    optimizers = ("sgd",)  # the inner steps are plain SGD with own_lr
    lam: float = setting(15.0, "strength of the proximal term between the two models", low=0)
    inner_steps: int = setting(5, "updates of the personal model on each mini-batch", low=1)
    own_lr: float = setting(0.05, "learning rate of the personal model", low=0)
    local_lr: float = setting(
        0.01, "learning rate of the local model; its product with lam is at most 1", low=0
    )
    beta: float = setting(1.0, "step of the server towards the clients' mean", low=0, high=1)

    def local(self, client: Client) -> Tensors:
        near = weights(client.net)  # the local model; from now on, the net is the personal one
        rate = min(1.0, self.local_lr * client.lr_factor * self.lam)

        def follow() -> None:
            nonlocal near  # lerp is exact at both ends
            near = near.map(lambda w, own: torch.lerp(w, own, rate), weights(client.net))

        client.fit(
            pull=(lambda own: self.lam * (own - near)) if self.lam else None,
            how=replace(client.training, lr=self.own_lr, momentum=0.0),
            repeat=self.inner_steps,
            after=follow,
        )
        client.memory["own"] = state(client.net)
        return client.shared() | near

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        averaged, w = mean(replies, weight=equally), server.learned
        return server.update(averaged | mix([w, averaged.only(*w)], [1 - self.beta, self.beta]))

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """Predict with the personal model as last trained, or with the received one before the first round."""
        own = client.memory.get("own", Tensors())
        return answer(client.net, own, x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)
