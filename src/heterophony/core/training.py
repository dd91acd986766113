"""How a client trains: the settings of local training, the same for every algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import cos, pi
from typing import Any, Literal

from .errors import ConfigError
from .settings import check_settings, list_settings, setting

# the settings that only some optimisers or schedules use, with their defaults
OPTIMIZER_SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.01, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0},
    "adam": {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01},
}
SCHEDULE_SETTINGS: dict[str, dict[str, Any]] = {
    "constant": {},
    "exponential": {"decay_factor": 0.99},
    "step": {"decay_factor": 0.1, "decay_rounds": 30},
    "cosine": {"final_fraction": 0.0},
}
CHOICES = {"optimizer": OPTIMIZER_SETTINGS, "schedule": SCHEDULE_SETTINGS}


@dataclass(frozen=True)
class Training:
    """How long a client trains in a round, with which optimiser and at which learning rate.

    Settings that depend on ``optimizer`` or ``schedule`` are None where these do not use them.
    """

    epochs: int = setting(5, "passes over the client's data in a round", low=0)
    steps: int | None = setting(None, "mini-batches in a round, instead of epochs", low=0)
    batch: int = setting(20, "examples in a mini-batch", low=1)
    lr: float = setting(None, "learning rate; default: 0.01, with adam and adamw 0.001", low=0)
    momentum: float | None = setting(None, "sgd: momentum; default: 0.9", low=0, high=1)
    nesterov: bool | None = setting(None, "sgd: Nesterov's momentum; default: false")
    weight_decay: float = setting(None, "weight decay; default: 0, with adamw 0.01", low=0)
    momentum_state: Literal["persist", "reset"] = setting(
        "persist", "keep a client's momentum, or Adam's moments, between rounds, or reset them"
    )
    drop_last: bool = setting(True, "drop an epoch's short last batch (unless it is the only one)")
    optimizer: Literal["sgd", "adam", "adamw"] = setting("sgd", "the optimiser of local training")
    betas: tuple[float, float] | None = setting(
        None, "adam, adamw: decay of the two moments; default: [0.9, 0.999]"
    )
    eps: float | None = setting(None, "adam, adamw: added to the root; default: 1e-8", low=0)
    clip_norm: float | None = setting(None, "largest norm of a step's gradient", above=0)
    schedule: Literal["constant", "exponential", "step", "cosine"] = setting(
        "constant", "how the learning rate falls over the rounds"
    )
    warmup: int = setting(0, "rounds before the full learning rate is reached", low=0)
    decay_factor: float | None = setting(
        None, "exponential: factor of a round (0.99); step: of a step (0.1)", above=0, high=1
    )
    decay_rounds: int | None = setting(None, "step: rounds between steps; default: 30", low=1)
    final_fraction: float | None = setting(
        None, "cosine: the fraction of lr that it falls to; default: 0", low=0, high=1
    )

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in list_settings(Training)}
        # not a field: copies made by ``replace`` have all settings given
        object.__setattr__(self, "_given", {k: v for k, v in values.items() if v is not None})
        for key, choices in CHOICES.items():
            usual = next(
                iter(choices.values())
            )  # in place of a wrong choice, which is refused below
            for name, default in choices.get(str(values[key]), usual).items():
                if values[name] is None:
                    object.__setattr__(self, name, default)
        check_betas(self)
        check_settings(self)
        check_all_used(self)

    def compute_lr_factor(self, t: int, rounds: int) -> float:
        """Return the factor of every learning rate in round ``t`` = 0, 1, …, given the number of rounds.

        With w rounds of warm-up it is 1/(w+1), …, w/(w+1), and then the schedule begins. Training
        after the last round has the rate of the last round: clients that join, and tuning.
        """
        t = min(t, max(0, rounds - 1))
        if t < self.warmup:
            return (t + 1) / (self.warmup + 1)
        done, whole = t - self.warmup, max(1, rounds - self.warmup)
        if self.schedule == "cosine":
            low = self.final_fraction or 0.0
            return low + (1 - low) * ((1 + cos(pi * done / whole)) / 2)
        factor = 1.0 if self.decay_factor is None else self.decay_factor
        return float(factor ** (done // (self.decay_rounds or 1)))

    def as_plain_sgd(self, lr: float) -> Training:
        """Return plain SGD at a constant rate: no momentum, weight decay, clipping or schedule."""
        length = {k: getattr(self, k) for k in ("epochs", "steps", "batch", "drop_last")}
        return Training(lr=lr, momentum=0.0, weight_decay=0.0, **length)

    def list_changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """List the given settings with some changed.

        If another optimiser or schedule is chosen, what it does not use is left out.
        """
        given = dict(vars(self)["_given"])
        for key, choices in CHOICES.items():
            used = choices.get(str(changes.get(key, given[key])), {})
            for name in list_dependent(choices):
                if name not in used:
                    given.pop(name, None)
        return {**given, **changes}

    def to_settings(self) -> dict[str, Any]:
        """Return the settings for a file, without what is None.

        Settings that are newer than the first runs are left out at their default, so that folders
        of runs begun before them can resume.
        """
        plain = asdict(self) | {"betas": None if self.betas is None else list(self.betas)}
        newer = {"optimizer": "sgd", "schedule": "constant", "warmup": 0, "nesterov": False}
        return {k: v for k, v in plain.items() if v is not None and newer.get(k) != v}


def list_dependent(choices: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """List the settings that only some of the choices use."""
    return list(dict.fromkeys(name for used in choices.values() for name in used))


def check_betas(training: Training) -> None:
    """Check the two numbers, which a file holds as a list."""
    betas: Any = training.betas
    if betas is None:
        return
    is_pair = isinstance(betas, list | tuple) and len(betas) == 2
    if not is_pair or not all(type(b) in (int, float) and 0 <= b < 1 for b in betas):
        raise ConfigError(
            f"betas: must be two numbers, at least 0 and below 1, as in [0.9, 0.999], not {betas!r}"
        )
    object.__setattr__(training, "betas", tuple(betas))


def check_all_used(training: Training) -> None:
    """Refuse a setting that the chosen optimiser or schedule does not use."""
    for key, choices in CHOICES.items():
        chosen = getattr(training, key)
        for name in list_dependent(choices):
            if name not in choices[chosen] and getattr(training, name) is not None:
                users = " or ".join(f"'{k}'" for k, used in choices.items() if name in used)
                raise ConfigError(
                    f"{name}: only with {key} = {users}, not with '{chosen}'; leave it out"
                )
