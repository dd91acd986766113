"""Examples held out of everybody's training, so that a choice need not be made on test data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ConfigError, DataError
from ..core.randomness import make_generator
from .federation import Federation


def hold_out_validation(federation: Federation, fraction: float, seed: int) -> Federation:
    """The same data, with so much of each client's training examples held out for validation.

    Newcomers hold out like everybody: a client trains on the same examples whenever it comes.
    """
    if not fraction:
        return federation
    if federation.validation:
        raise ConfigError(
            "data.validation_fraction: the partition says itself what validates; leave it out"
        )
    train, validation = {}, {}
    for client, rows in federation.train.items():
        out = torch.isin(
            rows, draw_held_out(rows, fraction, make_generator(seed, "validation", client))
        )
        train[client], validation[client] = rows[~out], rows[out]
    if not any(map(len, validation.values())):
        raise DataError(
            "data.validation_fraction: nobody has a second training example to hold out;"
            " lower data.clients, or leave it out"
        )
    return replace(federation, train=train, validation=validation)


def draw_held_out(rows: Tensor, fraction: float, draw: np.random.Generator) -> Tensor:
    """Which of these are held out, at random: one at least, and one stays; of a single one, none.

    An example that is there twice counts once: it must not be trained on and held out.
    """
    distinct = np.unique(rows.numpy())
    count = min(max(1, int(fraction * len(distinct) + 1e-9)), len(distinct) - 1)
    return torch.from_numpy(draw.choice(distinct, count, replace=False))
