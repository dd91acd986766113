"""A model of the user's own in a run: split, and checked against the data before any training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.algorithm import Algorithm
from ..core.errors import ConfigError
from ..core.net import Net, copy_module
from ..core.randomness import seeded
from ..core.split import Cut, call_module, cut_module, find_verified_cut, verify_origin
from ..core.tasks import Criterion, MetricFunction, get_task
from ..data.federation import Federation
from ..engines.wire import find_unpicklable
from ..jobs.plan import Plan

OwnModel = nn.Module | Callable[[], nn.Module]
EXAMPLES = 4  # enough for BatchNorm, and fast


def prepare_own_net(
    model: OwnModel, algorithm: Algorithm, federation: Federation, seed: int
) -> Callable[[], Net]:
    """Return a function that builds the net, in every process in the same way.

    Verify on a few examples that the net computes what the user's module computes, and that its
    output fits the classes.
    """
    x = take_examples(federation)
    if isinstance(model, nn.Module):
        check_copyable(model)
    with seeded(seed, "init"):  # as the plan will build it
        module = build_module(model)
    check_copyable(module)
    if isinstance(module, Net):
        cut, net = None, module
        verify_origin(net, x)
    else:
        cut = find_verified_cut(module, x, algorithm.needs_head)
        net = cut_module(deepcopy(module), cut)
    if uses_logits(algorithm):
        check_output(net, x, federation, type(module).__name__)
    return partial(build_own_net, model, cut)


def build_own_net(model: OwnModel, cut: Cut | None) -> Net:
    """Build the net of a user's module (a copy of it) or function, cut into base and head."""
    module = build_module(model)
    if not isinstance(module, Net):
        assert cut is not None  # found before the run
        return cut_module(module, cut)
    module.origin = None  # was compared before the run; copies need not carry it
    return module


def build_module(model: OwnModel) -> nn.Module:
    """Copy a user's module, or call a user's function for a new one."""
    if isinstance(model, nn.Module):
        return deepcopy(model)
    if not callable(model):
        raise ConfigError(
            f"model: must be a name, an nn.Module or a function that makes one, not {model!r}"
        )
    module = model()
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"model: the function returned {type(module).__name__}, not an nn.Module; return it"
        )
    return module


def check_copyable(module: nn.Module) -> None:
    """Refuse a module that holds what cannot be copied, such as a lock or an open file."""
    try:
        deepcopy(module)
    except Exception:  # a user's own object can raise anything
        where, reason = find_unpicklable(module, "model", deepcopy)
        raise ConfigError(
            f"model: every client needs a copy of {type(module).__name__}, but {where} cannot be"
            f" copied ({reason}); create it inside the method that uses it"
        ) from None


def take_examples(federation: Federation) -> Tensor:
    """Take a few training examples as the net will see them."""
    samples = federation.samples(federation.clients[0], "train")
    return samples.batch(torch.arange(min(EXAMPLES, len(samples))))[0]


def uses_logits(algorithm: Algorithm) -> bool:
    """Tell whether the net's output is used as logits; an own algorithm may decide otherwise."""
    methods = (getattr(type(algorithm), name) for name in ("build", "predict"))
    return all(m.__module__.startswith(f"{__name__.split('.')[0]}.") for m in methods)


def check_output(net: Net, x: Tensor, federation: Federation, name: str) -> None:
    """Check that the net returns what the task asks for, such as one logit for each class."""
    output, count = call_module(deepcopy(net).eval(), x), federation.classes
    found = tuple(output.shape[1:])
    task = get_task(federation.task)
    if task.name == "classification" and len(found) == 1:
        check_class_outputs(found[0], count, name)
        return
    wanted = (*federation.y.shape[1:], count) if task.name == "sequence" else (count,)
    accepted = [wanted, ()] if task.name == "regression" and count == 1 else [wanted]
    if found not in accepted:
        shape = "×".join(map(str, found)) or "a single number"
        raise ConfigError(
            f"model: {name} returns {shape} for each example; it must return"
            f" {task.output.format(n=count)}{', one for each class' * (task.name == 'classification')}"
        )


def check_class_outputs(outputs: int, classes: int, name: str) -> None:
    """Check the number of logits; refuse too few, and warn of too many."""
    if outputs < classes:
        raise ConfigError(
            f"model: {name} has {outputs} outputs, but the data have {classes} classes;"
            f" give its last layer {classes} outputs"
        )
    if outputs > classes:
        warnings.warn(
            f"model: {name} has {outputs} outputs, but the data have {classes} classes;"
            f" give its last layer {classes} outputs, or hp.federate classes={outputs}",
            stacklevel=5,
        )


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
