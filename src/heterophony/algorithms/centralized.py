"""Centralised: one model on everybody's data, the bound that federation is measured against."""

from dataclasses import dataclass, replace
from math import cos, pi
from typing import Literal

from ..core.algorithm import Algorithm, Client, setting
from ..core.tensors import Tensors


@dataclass(frozen=True)
class Centralized(Algorithm):
    """No federation, no privacy: one who holds all training data trains one model."""

    paper = "no federation"
    pooled = True
    schedule: Literal["constant", "cosine"] = setting(
        "constant", "the learning rate over the rounds; with local.epochs = 1 a round is an epoch"
    )

    def local(self, client: Client) -> Tensors:
        lr = client.training.lr * self.share(client.t, client.rounds)
        how = replace(client.training, lr=lr)
        client.fit(how=how)
        client.metrics["lr"] = lr
        return client.shared()

    def share(self, t: int, rounds: int) -> float:
        """Of the learning rate, in round ``t``: from 1 at first to 0 after the last."""
        return 1.0 if self.schedule == "constant" else (1 + cos(pi * t / rounds)) / 2
