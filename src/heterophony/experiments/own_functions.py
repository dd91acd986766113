"""A loss and metrics of the user's own: called once on a few examples before any training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.errors import ConfigError
from ..core.metrics import MetricFunction
from ..core.module_copies import copy_module
from ..core.randomness import seeded
from ..core.tasks import Criterion
from ..jobs.plan import Plan

EXAMPLES = 4


def check_kinds(loss: object, metrics: object) -> None:
    """Refuse what is neither a function nor a list of functions and names."""
    if loss is not None and not callable(loss):
        raise ConfigError(
            f"loss: must be a function of output and targets, such as torch.nn.functional.l1_loss,"
            f" not {loss!r}"
        )
    if isinstance(metrics, str) or (metrics is not None and not isinstance(metrics, Sequence)):
        raise ConfigError(f"metrics: must be a list of names or functions, not {metrics!r}")


def check_own_functions(
    plan: Plan, loss: Criterion | None, metrics: Sequence[str | MetricFunction] | None
) -> None:
    """Call the user's functions on the initial net's output, and check what they return."""
    own = [metric for metric in metrics or () if callable(metric)]
    if loss is None and not own:
        return
    samples = plan.federation.samples(plan.federation.clients[0], "train")
    x, y = samples.batch(torch.arange(min(EXAMPLES, len(samples))))
    with seeded(plan.seed, "own functions"):
        output = copy_module(plan.template).eval()(x)
    if loss is not None:
        value = call_own_function("loss", loss, output, y)
        if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
            raise ConfigError(
                f"loss: {name_function(loss)} must return one number with a gradient, the mean over"
                f" the mini-batch, not {describe_value(value)}"
            )
    for metric in own:
        value = call_own_function("metrics", metric, output.detach(), y)
        try:
            float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(
                f"metrics: {name_function(metric)} must return one number, not {describe_value(value)}"
            ) from None


def call_own_function(what: str, function: Callable[..., Any], output: Tensor, y: Tensor) -> Any:
    try:
        return function(output, y)
    except Exception as error:  # a user's function can raise anything
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(
            f"{what}: {name_function(function)} fails for an output of shape {tuple(output.shape)} and"
            f" targets of {tuple(y.shape)} ({type(error).__name__}: {reason})"
        ) from error


def name_function(function: object) -> str:
    """Name a function, or the class of an object; never by an address."""
    return str(getattr(function, "__name__", type(function).__name__))


def describe_value(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
