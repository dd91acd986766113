"""Train the phases of a client's round one after the other, or in turn, epoch by epoch."""

from collections.abc import Callable, Sequence
from typing import Literal

from ...core.errors import ConfigError
from ...core.training import Training

PhaseOrder = Literal["sequential", "interleaved"]


def train_phases(
    phases: Sequence[Callable[..., None]], order: PhaseOrder, training: Training
) -> None:
    """Call ``fit`` of every phase: once each, or for one epoch each until all epochs are done."""
    if order == "sequential":
        for fit in phases:
            fit()
        return
    for epoch in range(training.epochs):
        for fit in phases:
            fit(epochs=1, turn=epoch)


def check_phase_order(order: PhaseOrder, training: Training) -> None:
    """Refuse to interleave by epoch where local training counts steps."""
    if order == "interleaved" and training.steps is not None:
        raise ConfigError(
            "algorithm.phases: 'interleaved' changes the phase after every epoch, and local.steps"
            " counts mini-batches; set local.epochs in its place"
        )
