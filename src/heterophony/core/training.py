"""The settings of local training: optimisers, learning-rate schedules, length and mini-batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import cos, pi
from typing import Any, Literal

import torch
from torch import Tensor

from .errors import ConfigError, describe_failure
from .settings import check_settings, list_settings, setting
from .tensors import Tensors


class Optimizer(ABC):
    """Updates named parameters from their gradients.

    A parameter without a gradient is not updated, not even by momentum or weight decay.
    """

    def __init__(
        self,
        named: Tensors,
        how: Training,
        rates: Mapping[str, float],
        kept: Tensors,
        factor: float = 1.0,
    ) -> None:
        """Create the optimiser of these parameters, continuing from the state ``kept`` of an earlier one.

        ``rates`` maps patterns of names to learning rates; other parameters use ``how.lr``. ``factor``
        scales all of them.
        """
        self.named, self.how = named, how
        groups = [(how.lr, named.without(*rates))]
        groups += [(lr, named.only(pattern)) for pattern, lr in rates.items()]
        if sum(len(group) for _, group in groups) > len(named):
            raise ValueError(f"a parameter has two learning rates: {', '.join(rates)}")
        self.groups = [
            (lr * factor, names) for lr, group in groups for names in group_by_dtype(group)
        ]
        self.load_state(kept)

    def zero_grad(self) -> None:
        """Remove the gradients of the parameters."""
        for p in self.named.values():
            p.grad = None

    @abstractmethod
    def load_state(self, kept: Tensors) -> None:
        """Load the state of an earlier optimiser; it may be empty or have only some of the parameters."""

    @abstractmethod
    def step(self) -> None:
        """Update the parameters from their gradients."""

    @abstractmethod
    def state(self) -> Mapping[str, Tensor]:
        """Return the state that ``load_state`` of another optimiser needs to continue."""

    def copy_buffers(self, kept: Tensors) -> dict[str, Tensor]:
        """Copy the buffers kept for these parameters, in the memory format of each parameter."""
        return {
            k: torch.empty_like(self.named[k]).copy_(v) for k, v in kept.items() if k in self.named
        }


def group_by_dtype(named: Tensors) -> list[list[str]]:
    """Group the names of parameters by dtype: one kernel call accepts only one dtype."""
    parts = dict[torch.dtype, list[str]]()
    for name, v in named.items():
        parts.setdefault(v.dtype, []).append(name)
    return list(parts.values())


class SGD(Optimizer):
    """SGD with or without momentum; ``momentum`` holds the buffers by parameter name."""

    def load_state(self, kept: Tensors) -> None:
        """Load the momentum buffers."""
        self.momentum, self.momentum_factor = self.copy_buffers(kept), self.how.momentum or 0.0
        self.nesterov = bool(self.how.nesterov and self.momentum_factor)

    def state(self) -> Mapping[str, Tensor]:
        """Return the momentum buffers by parameter name."""
        return self.momentum if self.momentum_factor else {}

    @torch.no_grad()
    def step(self) -> None:
        """Make one SGD step; the first step of a parameter creates its momentum."""
        for lr, names in self.groups:
            grads = {k: g for k in names if (g := self.named[k].grad) is not None}
            if not self.momentum_factor:
                self.update(lr, grads, [], False)
                continue
            new = {k: g for k, g in grads.items() if k not in self.momentum}
            known = {k: g for k, g in grads.items() if k not in new} if new else grads
            self.update(lr, known, [self.momentum[k] for k in known], False)
            if new:
                buffers = [torch.empty_like(g) for g in new.values()]
                self.update(lr, new, buffers, True)
                self.momentum.update(zip(new, buffers, strict=True))

    def update(
        self, lr: float, grads: Mapping[str, Tensor], buffers: list[Tensor], first: bool
    ) -> None:
        """Call torch's fused SGD kernel; in the ``first`` step it fills the buffers with the gradients."""
        if grads:
            torch._fused_sgd_(
                [self.named[k] for k in grads],
                list(grads.values()),
                buffers,
                weight_decay=self.how.weight_decay,
                momentum=self.momentum_factor,
                lr=lr,
                dampening=0.0,
                nesterov=self.nesterov,
                maximize=False,
                is_first_step=first,
            )


class Adam(Optimizer):
    """Adam, or AdamW if ``how.optimizer`` is ``adamw``; each parameter counts its own steps."""

    def load_state(self, kept: Tensors) -> None:
        """Load the moments and the step counts."""
        self.means = self.copy_buffers(kept.below("exp_avg/"))
        self.squares = self.copy_buffers(kept.below("exp_avg_sq/"))
        self.steps = {k: v.clone() for k, v in kept.below("step/").items() if k in self.named}
        is_adamw = self.how.optimizer == "adamw"
        self.update = torch._fused_adamw_ if is_adamw else torch._fused_adam_
        self.beta1, self.beta2 = self.how.betas or (0.0, 0.0)

    def state(self) -> Mapping[str, Tensor]:
        """Return the moments and the step counts."""
        moments = {"exp_avg/": self.means, "exp_avg_sq/": self.squares, "step/": self.steps}
        return {prefix + k: v for prefix, part in moments.items() for k, v in part.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Make one step of Adam or AdamW."""
        for lr, names in self.groups:
            grads = {k: g for k in names if (g := self.named[k].grad) is not None}
            if not grads:
                continue
            for k in grads:
                if k not in self.steps:
                    self.means[k] = torch.zeros_like(self.named[k])
                    self.squares[k] = torch.zeros_like(self.named[k])
                    self.steps[k] = self.named[k].new_zeros((), dtype=torch.float32)
            steps = [self.steps[k] for k in grads]
            torch._foreach_add_(steps, 1)
            self.update(
                [self.named[k] for k in grads],
                list(grads.values()),
                [self.means[k] for k in grads],
                [self.squares[k] for k in grads],
                [],
                steps,
                lr=lr,
                beta1=self.beta1,
                beta2=self.beta2,
                weight_decay=self.how.weight_decay,
                eps=self.how.eps or 0.0,
                amsgrad=False,
                maximize=False,
            )


class OwnOptimizer(Optimizer):
    """Wraps one of torch's or the user's own optimisers; its state must consist of tensors."""

    def load_state(self, kept: Tensors) -> None:
        """Create the user's optimiser and load its state, by names such as ``square_avg/head.weight``."""
        named = self.named
        assert self.how.own_optimizer is not None
        groups = [{"params": [named[k] for k in names], "lr": lr} for lr, names in self.groups]
        self.made = self.how.own_optimizer(groups)
        if not isinstance(self.made, torch.optim.Optimizer):
            raise ConfigError(
                "training.optimizer: the function must return a torch.optim.Optimizer, not"
                f" {type(self.made).__name__}"
            )
        for key, value in kept.items():
            kind, _, name = key.partition("/")
            if name in named:
                self.made.state[named[name]][kind] = value.clone()

    def state(self) -> Mapping[str, Tensor]:
        """Return the tensors of the user's optimiser."""
        held = ((name, self.made.state.get(p, {})) for name, p in self.named.items())
        return {
            f"{kind}/{name}": value.detach()
            for name, of in held
            for kind, value in of.items()
            if isinstance(value, Tensor)
        }

    def step(self) -> None:
        """Make one step of the user's optimiser."""
        try:
            self.made.step()
        except TypeError as error:  # an optimiser that needs a closure, such as LBFGS
            raise ConfigError(
                f"training.optimizer: {type(self.made).__name__} cannot step without a closure ({error})"
            ) from None


def create_optimizer(
    named: Tensors, how: Training, rates: Mapping[str, float], kept: Tensors, factor: float = 1.0
) -> Optimizer:
    """Create the optimiser that ``how`` selects, from the arguments of ``Optimizer``."""
    if how.own_optimizer is not None:
        return OwnOptimizer(named, how, rates, kept, factor)
    kind = SGD if how.optimizer == "sgd" else Adam
    return kind(named, how, rates, kept, factor)


# settings that only some optimisers or schedules use, with their defaults
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
    """Settings of local training: how long a client trains, with which optimiser and learning rate.

    Settings that the chosen ``optimizer`` or ``schedule`` does not use are None.
    In Python, ``optimizer`` may be a function of the parameter groups, such as ``torch.optim.RMSprop``,
    and ``schedule`` a function of the round and the number of rounds that returns the factor of ``lr``.
    """

    epochs: int = setting(5, "passes over the client's data in a round", low=0)
    steps: int | None = setting(None, "mini-batches in a round, instead of epochs", low=0)
    batch: int = setting(20, "examples in a mini-batch", low=1)
    lr: float = setting(None, "learning rate; default: 0.01, with adam and adamw 0.001", low=0)
    momentum: float | None = setting(None, "sgd: momentum; default: 0.9", low=0, high=1)
    nesterov: bool | None = setting(None, "sgd: Nesterov's momentum; default: false")
    weight_decay: float = setting(None, "weight decay; default: 0, with adamw 0.01", low=0)
    momentum_state: Literal["persist", "reset"] = setting(
        "persist", "keep a client's momentum or Adam's moments between rounds, or reset them"
    )
    drop_last: bool = setting(True, "drop an epoch's short last batch (unless it is the only one)")
    optimizer: Literal["sgd", "adam", "adamw"] = setting("sgd", "the optimiser of local training")
    betas: tuple[float, float] | None = setting(
        None, "adam, adamw: decay of the two moments; default: [0.9, 0.999]"
    )
    eps: float | None = setting(
        None, "adam, adamw: added to the root of the second moment; default: 1e-8", low=0
    )
    clip_norm: float | None = setting(
        None, "largest gradient norm of a step; larger gradients are scaled down", above=0
    )
    schedule: Literal["constant", "exponential", "step", "cosine"] = setting(
        "constant", "how the learning rate falls over the rounds"
    )
    warmup: int = setting(0, "rounds of warm-up before the full learning rate", low=0)
    decay_factor: float | None = setting(
        None, "exponential: factor per round (0.99); step: factor per step (0.1)", above=0, high=1
    )
    decay_rounds: int | None = setting(None, "step: rounds between steps; default: 30", low=1)
    final_fraction: float | None = setting(
        None, "cosine: the final learning rate as a fraction of lr; default: 0", low=0, high=1
    )

    own_optimizer: Callable[[Any], Any] | None = field(
        default=None, repr=False, metadata={"own": True}
    )
    own_schedule: Callable[[int, int], float] | None = field(
        default=None, repr=False, metadata={"own": True}
    )

    def __post_init__(self) -> None:
        move_own_functions(self)
        values = {f.name: getattr(self, f.name) for f in list_settings(Training)}
        # not a field: in copies made by ``replace``, all settings count as given
        object.__setattr__(self, "_given", {k: v for k, v in values.items() if v is not None})
        for key, choices in CHOICES.items():
            usual = next(iter(choices.values()))  # replaces a wrong choice, which is refused below
            for name, default in choices.get(str(values[key]), usual).items():
                if values[name] is None:
                    object.__setattr__(self, name, default)
        check_betas(self)
        check_settings(self)
        check_all_used(self)

    def compute_lr_factor(self, t: int, rounds: int) -> float:
        """Return the factor by which the schedule scales every learning rate in round ``t`` = 0, 1, ….

        With w rounds of warm-up it is 1/(w+1), …, w/(w+1); then the schedule starts. Training after
        the last round (for clients that join, or when tuning) uses the last round's rate.
        """
        t = min(t, max(0, rounds - 1))
        if self.own_schedule is not None:
            return call_own_schedule(self.own_schedule, t, rounds)
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
        """Return the training settings that the user gave, updated by ``changes``.

        If the changes choose another optimiser or schedule, settings that it does not use are left out.
        """
        given = dict(vars(self)["_given"])
        for key, choices in CHOICES.items():
            used = choices.get(str(changes.get(key, given[key])), {})
            for name in list_choice_settings(choices):
                if name not in used:
                    given.pop(name, None)
        return {**given, **changes}

    def to_settings(self) -> dict[str, Any]:
        """Return the training settings as they are stored in a file, without those that are None.

        Settings that the first version lacked are left out if they have their defaults, so that older run
        folders can resume.
        """
        plain = asdict(self) | {"betas": None if self.betas is None else list(self.betas)}
        newer = {"optimizer": "sgd", "schedule": "constant", "warmup": 0, "nesterov": False}
        functions = ("own_optimizer", "own_schedule")
        kept = {k: v for k, v in plain.items() if v is not None and k not in functions}
        return {k: v for k, v in kept.items() if newer.get(k) != v}

    @property
    def has_own_functions(self) -> bool:
        """Return True if the optimiser or schedule is a user's function, which no file can store."""
        return self.own_optimizer is not None or self.own_schedule is not None


def move_own_functions(training: Training) -> None:
    """If the optimiser or schedule is a function, move it to a separate field.

    Raise ConfigError for settings that only the built-in optimisers or schedules use.
    """
    for key, choices in CHOICES.items():
        chosen, usual = getattr(training, key), next(iter(choices))
        if isinstance(chosen, str):
            continue
        if not callable(chosen):
            raise ConfigError(
                f"{key}: must be one of {', '.join(choices)}, or a function, not a"
                f" {type(chosen).__name__}"
            )
        used = [n for n in list_choice_settings(choices) if n != "lr"]
        used += ["warmup"] if key == "schedule" else []
        for name in used:
            if getattr(training, name):
                raise ConfigError(f"{name}: the {key} is a function; set this in the function")
        object.__setattr__(training, f"own_{key}", chosen)
        object.__setattr__(training, key, usual)
        if key == "optimizer":
            object.__setattr__(training, "momentum", 0.0)


def call_own_schedule(schedule: Callable[[int, int], float], t: int, rounds: int) -> float:
    """Call a user's learning-rate schedule for a round; turn any error into a ConfigError."""
    try:
        return float(schedule(t, rounds))
    except Exception as error:  # a user's function can raise anything
        name = getattr(schedule, "__name__", type(schedule).__name__)
        raise ConfigError(
            f"training.schedule: {name} fails for round {t} of {rounds} ({describe_failure(error)}); it"
            " must be a function of (round, rounds) that returns the factor of lr"
        ) from error


def list_choice_settings(choices: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """List the settings of all optimisers, or of all schedules, each once."""
    return list(dict.fromkeys(name for used in choices.values() for name in used))


def check_betas(training: Training) -> None:
    """Raise ConfigError unless Adam's ``betas`` are valid; store a list from a file as a tuple."""
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
    """Raise ConfigError for a training setting that the chosen optimiser or schedule does not use."""
    for key, choices in CHOICES.items():
        chosen = getattr(training, key)
        for name in list_choice_settings(choices):
            if name not in choices[chosen] and getattr(training, name) is not None:
                users = " or ".join(f"'{k}'" for k, used in choices.items() if name in used)
                raise ConfigError(
                    f"{name}: only with {key} = {users}, not with '{chosen}'; leave it out"
                )
