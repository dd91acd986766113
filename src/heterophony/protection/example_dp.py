"""Example-level differential privacy, DP-SGD: Abadi et al., CCS 2016."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from ..core.algorithm import Reply
from ..core.client import Client
from ..core.settings import setting
from ..core.tensors import Tensors
from .accounting import compute_epsilon
from .base import Departed, Departure, PrivacyPromise, Protection, RunFacts
from .private_client import STEPS_METRIC, PrivateClient


@dataclass(frozen=True, repr=False)
class ExampleDP(Protection):
    """Clip the gradient of each example, and add noise to every step of local training (Opacus)."""

    guards_replies: ClassVar[bool] = True
    once_per_round: ClassVar[bool] = True
    clip: float = setting(1.0, "largest norm of the gradient of one example", above=0)
    noise: float = setting(1.0, "standard deviation of the noise by clip", low=0)
    delta: float = setting(1e-5, "δ; well below one by a client's examples", above=0, below=1)

    @property
    def needs_secret(self) -> bool:
        return True  # also for the draws of examples

    def choose_client(self, secret: bytes) -> Callable[..., Client]:
        return partial(PrivateClient, clip=self.clip, noise=self.noise, secret=secret)

    def leave(self, up: Tensors, kept: Tensors, departure: Departure) -> Departed:
        """Count the client's steps over all rounds; the server's accounting needs their number."""
        before = int(kept["steps"]) if "steps" in kept else 0
        steps = before + int(departure.metrics.get(STEPS_METRIC, 0))
        return Departed(up, Tensors({"steps": torch.tensor(steps)}), {STEPS_METRIC: steps})

    def promise(self, run: RunFacts) -> PrivacyPromise:
        how = "what each client sends, with or without one of its examples; ε is the largest of all"
        return PrivacyPromise("example", self.delta, f"{how} clients")

    def spend(
        self, run: RunFacts, rounds: int, before: float | None, replies: Sequence[Reply]
    ) -> float | None:
        found = [
            compute_epsilon(
                self.noise,
                min(1.0, run.batch / r.samples),
                int(r.metrics[STEPS_METRIC]),
                self.delta,
            )
            for r in replies
            if r.samples
        ]
        largest = 0.0 if before is None and rounds <= 1 else before
        for epsilon in found:
            largest = None if largest is None or epsilon is None else max(largest, epsilon)
        return largest
