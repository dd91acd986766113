"""Centralised training: one model on the data of all clients, an upper bound for federated methods."""

from dataclasses import dataclass, replace
from math import cos, pi
from typing import Literal

from ..core.algorithm import Algorithm, Client, setting
from ..core.tensors import Tensors


@dataclass(frozen=True)
class Centralized(Algorithm):
    """Train one model on the data of all clients in one place: no federation, no privacy."""

    paper = "no federation"
    pooled = True
    schedule: Literal["constant", "cosine"] = setting(
        "constant",
        "schedule of the learning rate over the rounds, multiplied by training.schedule; with training.epochs = 1 a round is an epoch",
    )

    def local(self, client: Client) -> Tensors:
        lr = client.training.lr * self.compute_lr_factor(client.t, client.rounds)
        how = replace(client.training, lr=lr)
        client.fit(how=how)
        client.metrics["lr"] = lr * client.lr_factor
        return client.shared()

    def compute_lr_factor(self, t: int, rounds: int) -> float:
        """Return the factor of the learning rate in round ``t``: cosine decreases from 1 to 0."""
        return 1.0 if self.schedule == "constant" else (1 + cos(pi * t / rounds)) / 2
