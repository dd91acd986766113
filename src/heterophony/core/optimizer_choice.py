"""The optimiser of one training pass: SGD, Adam or AdamW, as the settings say."""

from __future__ import annotations

from collections.abc import Mapping

from .adam import Adam
from .optimizer import Optimizer
from .sgd import SGD
from .tensors import Tensors
from .training import Training


def create_optimizer(
    named: Tensors, how: Training, rates: Mapping[str, float], kept: Tensors, factor: float = 1.0
) -> Optimizer:
    """Create the optimiser of these parameters.

    ``rates`` are learning rates by pattern of names; other parameters have ``how.lr``. ``factor``
    scales all of them. ``kept`` is the state of an earlier optimiser to continue from.
    """
    kind = SGD if how.optimizer == "sgd" else Adam
    return kind(named, how, rates, kept, factor)
