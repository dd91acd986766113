"""FedNova: Wang et al., Tackling the objective inconsistency problem, NeurIPS 2020."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..core.algorithm import Algorithm, Client, Reply, Server, mean, setting
from ..core.errors import ConfigError
from ..core.tensors import Tensors, mix, weights
from ..core.training import Training


@dataclass(frozen=True)
class FedNova(Algorithm):
    """Average client updates per unit of local work, so that more steps do not count more."""

    paper = "Wang et al., NeurIPS 2020"
    optimizers = ("sgd",)  # local work is counted for SGD with momentum
    mu: float = setting(0.0, "strength of the proximal term towards the received model", low=0)
    server_momentum: float = setting(0.0, "momentum of the server", low=0, high=1)

    def check_training(self, training: Training) -> None:
        if training.nesterov:
            raise ConfigError(
                "training.nesterov: FedNova counts steps of plain momentum, not of Nesterov's; remove"
                " training.nesterov"
            )

    def local(self, client: Client) -> Tensors:
        received = weights(client.net)
        # the count of local work assumes it
        fresh = replace(client.training, momentum_state="reset")

        near = (lambda w: self.mu * (w - received)) if self.mu else None
        client.fit(pull=near, how=fresh)
        work = count_effective_steps(client.steps, fresh.momentum or 0.0, client.lr * self.mu)
        return client.shared() | {"fednova/work": torch.tensor(work, dtype=torch.float64)}

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        x, whole = server.learned, sum(r.weight for r in replies)
        work = [r.tensors["fednova/work"].item() for r in replies]
        share = [r.weight / whole for r in replies]
        effective = sum(p * a for p, a in zip(share, work, strict=True))
        rates = [effective * p / a if a else 0.0 for p, a in zip(share, work, strict=True)]
        step = mix([r.tensors.only(*x) - x for r in replies], rates)
        if self.server_momentum:
            step = self.server_momentum * server.memory.get("step", step.zeros()) + step
        averaged = mean(replies, *server.model)  # used for running statistics only
        memory = {"step": step} if self.server_momentum else {}
        return server.update(averaged | (x + step), **memory)


def count_effective_steps(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Count the plain SGD steps that move as far along a constant gradient as ``steps`` with momentum."""
    far = speed = 0.0
    for _ in range(steps):
        speed = momentum * speed + 1 - pull * far
        far += speed
    return far
