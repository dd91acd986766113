"""Hold out training examples for validation, so that no choice is made on test data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ConfigError, DataError
from ..core.randomness import make_generator
from .federation import Federation


def hold_out_validation(federation: Federation, fraction: float, seed: int) -> Federation:
    """Hold out a fraction of each client's training examples.

    New clients hold out too, so that a client trains on the same examples whenever it joins.
    """
    if not fraction:
        return federation
    if federation.validation:
        raise ConfigError(
            "data.validation_fraction: the partition itself lists validation examples; leave it out"
        )
    train, validation = {}, {}
    for client, rows in federation.train.items():
        draw = make_generator(seed, "validation", client)
        held_out = torch.isin(rows, draw_held_out(rows, fraction, draw))
        train[client], validation[client] = rows[~held_out], rows[held_out]
    if not any(map(len, validation.values())):
        raise DataError(
            "data.validation_fraction: no client has a second training example to hold out;"
            " lower data.clients, or leave it out"
        )
    return replace(federation, train=train, validation=validation)


def draw_held_out(rows: Tensor, fraction: float, draw: np.random.Generator) -> Tensor:
    """Draw the rows to hold out: at least one, unless there is only one; one is always kept.

    A repeated row counts once: it must not be both trained on and held out.
    """
    distinct = np.unique(rows.numpy())
    count = min(max(1, int(fraction * len(distinct) + 1e-9)), len(distinct) - 1)
    return torch.from_numpy(draw.choice(distinct, count, replace=False))
