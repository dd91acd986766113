"""Check local training against the algorithm and the rounds of a run, before anything is written."""

from __future__ import annotations

from ..algorithms import get_display_name
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError
from ..core.training import Training


def check_training(algorithm: Algorithm, name: str, training: Training, rounds: int) -> None:
    """Refuse settings of local training that the algorithm's rule or the rounds do not allow."""
    shown, chosen = get_display_name(name), training.optimizer
    if chosen not in algorithm.optimizers:
        allowed = " or ".join(f"'{o}'" for o in algorithm.optimizers)
        raise ConfigError(
            f"algorithm.name: the rule of {shown} does not hold for local.optimizer = '{chosen}';"
            f" set local.optimizer = {allowed}"
        )
    if training.clip_norm is not None and not algorithm.allows_clipping:
        raise ConfigError(
            f"local.clip_norm: the rule of {shown} does not hold for clipped gradients; leave it out"
        )
    algorithm.check_training(training)
    if training.warmup and training.warmup >= rounds:
        raise ConfigError(
            f"local.warmup: must be below rounds, which is {rounds}, not {training.warmup}"
        )
    if training.decay_rounds and training.warmup + training.decay_rounds >= rounds:
        raise ConfigError(
            f"local.decay_rounds: no step in {rounds} rounds, of which {training.warmup} are warm-up;"
            f" lower it, it is {training.decay_rounds}"
        )
