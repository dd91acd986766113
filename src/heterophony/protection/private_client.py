"""A client whose training loop is DP-SGD: clipped gradients of single examples, plus noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.nn.utils import clip_grad_norm_

from ..core.client import Client
from ..core.compute import autocast, read_loss
from ..core.epochs import count_per_epoch
from ..core.errors import ConfigError
from ..core.net import BATCH_NORMS
from ..core.optimizer import Optimizer
from ..core.samples import ClientData
from ..core.tensors import Tensors, match_memory_format
from ..core.training import Training
from ..core.training_pass import Loss, TrainingPass
from .base import PREFIX
from .noise import draw_normal_like, draw_uniform
from .single_gradients import WHERE, SingleGradients, check_uncoupled, single_gradients

STEPS_METRIC = f"{PREFIX}steps"


class PrivateClient(Client):
    """A client that trains by DP-SGD and refuses every other use of its training examples.

    Each step draws every example independently (Poisson sampling), as the accounting assumes.
    """

    def __init__(self, *, clip: float, noise: float, secret: bytes, **facts: Any) -> None:
        super().__init__(**facts)
        self.clip, self.noise, self.secret = clip, noise, secret
        self.private_data, self.passes = self.data, 0
        if any(isinstance(m, BATCH_NORMS) for m in self.net.modules()):
            raise ConfigError(
                f"{WHERE}: the model has BatchNorm, which mixes the examples of a batch; choose a model"
                " without it, or with GroupNorm or LayerNorm"
            )

    @property
    def steps(self) -> int:
        samples, self.data = self.data, self.private_data
        try:
            return super().steps
        finally:
            self.data = samples

    def _run_pass(self, given: TrainingPass) -> None:
        """Train by private gradients, with as many steps as ``Client`` would."""
        check_allowed(given, self.training)
        super()._run_pass(given)
        if given.named:
            before = self.metrics.get(STEPS_METRIC, 0)
            self.metrics[STEPS_METRIC] = before + self.count_steps(given)

    def _run_steps(
        self, given: TrainingPass, optimiser: Optimizer, loss_sum: float
    ) -> tuple[float, int]:
        named, how, total = given.named, given.how, self.count_steps(given)
        self.passes += 1  # two passes may have one name, and must not share their noise
        with single_gradients(self.net) as gradients:
            if total:
                check_uncoupled(named, given.loss, self.private_data.train)
            for step in range(total):
                optimiser.zero_grad()
                purpose = f"{self.id}|{self.t}|{self._draw_seed}|{self.passes}|{step}"
                loss = given.loss
                loss_sum += self.set_private_gradients(named, loss, gradients, how.batch, purpose)
                given.add_pull()
                if how.clip_norm is not None:
                    clip_grad_norm_(named.values(), how.clip_norm)
                optimiser.step()
                if given.after is not None:
                    given.after()
        return loss_sum, total

    def count_steps(self, given: TrainingPass) -> int:
        """Count the steps that ``Client`` would do."""
        how, epochs, steps = given.how, given.epochs, given.steps
        per_epoch = count_per_epoch(self.net, len(self.private_data.train), how)[1]
        if epochs is None and steps is None:
            steps = how.steps
        if steps is None:
            return (how.epochs if epochs is None else epochs) * per_epoch
        return steps if per_epoch else 0

    def set_private_gradients(
        self, named: Tensors, loss: Loss, gradients: SingleGradients, batch: int, purpose: str
    ) -> float:
        """Set every gradient to the noisy sum of clipped ones, by the expected size of a batch."""
        samples = self.private_data.train
        rate, value = min(1.0, batch / len(samples)), 0.0
        drawn = draw_uniform(self.secret, f"examples|{purpose}", len(samples)) < rate
        at = torch.from_numpy(drawn.nonzero()[0])
        sums = {k: torch.zeros_like(p) for k, p in named.items()}
        if len(at):
            draws = self._make_image_draws(samples, f"fit/{purpose}")
            x, y = samples.batch(at, draws)
            self.examples += len(at)
            with autocast():
                result = loss(x, y)
            result.backward()
            value = float(read_loss(result))
            sums |= gradients.add_clipped(named, self.clip)
        noise = draw_normal_like(Tensors(sums), self.secret, f"example noise|{purpose}")
        for k, p in named.items():
            shaken = sums[k] + (self.noise * self.clip * noise[k]).to(sums[k])
            # the optimiser's kernel reads gradient and parameter in one order
            p.grad = match_memory_format(shaken / (rate * len(samples)), p)
        return value


def check_allowed(given: TrainingPass, usual: Training) -> None:
    """Refuse passes whose steps the accounting does not describe."""
    if given.data is not None:
        raise ConfigError(
            f"{WHERE}: the algorithm trains on examples that it derived from others, so that one example"
            " counts several times; choose another algorithm or client_dp"
        )
    if given.repeat != 1 or given.how.batch != usual.batch:
        raise ConfigError(
            f"{WHERE}: the algorithm uses a mini-batch several times or of another size; choose another"
            " algorithm or client_dp"
        )


class GuardedData:
    """Stands for a client's data while its algorithm runs: only ``fit`` may use the examples."""

    def __init__(self, data: ClientData) -> None:
        self.classes = data.classes

    def __getattr__(self, name: str) -> NoReturn:
        raise ConfigError(
            f"{WHERE}: the algorithm uses client.data.{name} beside fit, and ε covers only what fit does;"
            " choose another algorithm or client_dp"
        )


@contextmanager
def guard_examples(client: Client) -> Iterator[None]:
    """Refuse the use of examples outside of ``fit``, if the client is a private one."""
    if not isinstance(client, PrivateClient):
        yield
        return
    guarded: Any = GuardedData(client.data)
    client.data = guarded
    try:
        yield
    finally:
        client.data = client.private_data
