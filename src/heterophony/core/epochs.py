"""The epochs of local training: in which order examples come, and how many of them there are."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .net import BATCH_NORMS
from .training import Training


def iterate_epochs(
    net: nn.Module, n: int, how: Training, epochs: int | None, steps: int | None
) -> Iterator[Tensor]:
    """Iterate over the positions of each epoch's examples, in a new random order every time.

    Cut into mini-batches, they have the length that ``epochs`` or ``steps`` says.
    """
    used, per_epoch = count_per_epoch(net, n, how)
    if epochs is None and steps is None:
        steps = how.steps
    left = (how.epochs if epochs is None else epochs) * per_epoch if steps is None else steps
    while left > 0 and per_epoch:
        yield torch.randperm(n)[:used][: min(left, per_epoch) * how.batch]
        left -= per_epoch


def count_per_epoch(net: nn.Module, n: int, how: Training) -> tuple[int, int]:
    """Count the examples and the batches of an epoch. BatchNorm cannot train on one example."""
    used = n - n % how.batch if how.drop_last and n >= how.batch else n
    smallest = 2 if any(isinstance(m, BATCH_NORMS) for m in net.modules()) else 1
    full = used // how.batch if how.batch >= smallest else 0
    return used, full + (used % how.batch >= smallest)


def count_examples(net: nn.Module, n: int, how: Training) -> int:
    """Count the examples that one pass of ``fit`` with these settings goes through."""
    used, per_epoch = count_per_epoch(net, n, how)
    if not per_epoch:
        return 0
    steps = how.epochs * per_epoch if how.steps is None else how.steps
    whole, rest = divmod(steps, per_epoch)
    return whole * min(used, per_epoch * how.batch) + min(rest * how.batch, used)
