"""pFedMe: Dinh et al., Personalized federated learning with Moreau envelopes, NeurIPS 2020."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Reply, Server, equally, mean, setting
from ..core.tensors import Tensors, answer, mix, state, weights


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """An own model near the local one; the local one follows it."""

    paper = "Dinh et al., NeurIPS 2020"
    lam: float = setting(15.0, "strength of the pull between own and local model", low=0)
    inner_steps: int = setting(5, "updates of the own model on each mini-batch", low=1)
    own_lr: float = setting(0.05, "learning rate of the own model", low=0)
    local_lr: float = setting(0.01, "of the local model; times lam, it counts at most 1", low=0)
    beta: float = setting(1.0, "how far the server moves to the clients' mean", low=0, high=1)

    def local(self, client: Client) -> Tensors:
        near = weights(client.net)  # the local model; the net itself is the own one from here on
        rate = min(1.0, self.local_lr * self.lam)

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
        """The own model as trained last; before that, the received one."""
        own = client.memory.get("own", Tensors())
        return answer(client.net, own, x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)
