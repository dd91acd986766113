"""The user's own models, losses and metrics: nets are split, and all are checked before training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from inspect import signature
from math import inf
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from ..config.nets import ClientNets
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, suggest_or_list
from ..core.net import Net, copy_module
from ..core.randomness import seeded
from ..core.records import Record, unpack_inputs
from ..core.split import Cut, call_module, cut_module, find_verified_cut, verify_origin
from ..core.tasks import Criterion, MetricFunction, get_task
from ..core.tensors import Tensors
from ..core.training import Training, create_optimizer
from ..data.federation import Federation
from ..engines.wire import find_unpicklable
from ..jobs.plan import Plan
from ..models import find_model_name, get_default_head_depth, get_model_builder

OwnModel = nn.Module | Callable[[], nn.Module]
EXAMPLES = 4  # enough for BatchNorm, and fast


def prepare_own_net(
    model: OwnModel, algorithm: Algorithm, federation: Federation, seed: int
) -> Callable[[], Net]:
    """Return a function that builds the net identically in every process.

    Verify on a few examples that the net computes what the user's module computes, and that its
    output fits the classes.
    """
    x = take_examples(federation)
    if isinstance(model, nn.Module):
        check_copyable(model)
    with seeded(seed, "init"):  # as the plan builds it
        module = build_module(model)
    check_copyable(module)
    record = federation.record
    if isinstance(module, Net):
        cut, net = None, module
        unpack_inputs(net.base, record)
        verify_origin(net, x)
    else:
        unpack_inputs(module, record)
        cut = find_verified_cut(module, x, algorithm.needs_head)
        net = cut_module(deepcopy(module), cut)
    if uses_logits(algorithm):
        check_output(net, x, federation, type(module).__name__)
    return partial(build_own_net, model, cut, record)


def resolve_models(model: Any, federation: Federation) -> Any:
    """Return the one model of all clients, or a dict with a model for each client.

    Raise ConfigError if a client lacks a model, or a named client does not exist.
    """
    clients = list(federation.train)
    if isinstance(model, Mapping):
        named = {str(client): one for client, one in model.items()}
    elif isinstance(model, list | tuple):
        named = {c: model[i % len(model)] for i, c in enumerate(clients)} if model else {}
    elif takes_client(model):
        named = {client: model(client) for client in clients}
    else:
        return model
    for client in named:
        if client not in clients:
            raise ConfigError(
                f"model: there is no client '{client}'{suggest_or_list(client, clients)}"
            )
    for client in clients:
        if named.get(client) is None:
            raise ConfigError(f"model: client '{client}' has no model; give one for every client")
    kinds = {id(one) if not isinstance(one, str) else one for one in named.values()}
    return next(iter(named.values())) if len(kinds) == 1 else {c: named[c] for c in clients}


def takes_client(model: Any) -> bool:
    """Return True if this is a function of a client's name, and not one that builds a module."""
    if isinstance(model, nn.Module | type) or not callable(model):
        return False
    try:
        parameters = signature(model).parameters.values()
    except ValueError:  # some functions written in C have no signature
        return False
    needed = [p for p in parameters if p.default is p.empty]
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in needed)


def names_all(model: Any) -> TypeGuard[Mapping[str, str]]:
    """Return True if these are nets by client, all of them given by name."""
    return isinstance(model, Mapping) and all(isinstance(m, str) for m in model.values())


def prepare_own_nets(
    models: Mapping[str, str | OwnModel],
    algorithm: Algorithm,
    federation: Federation,
    seed: int,
    head_depth: int | None,
) -> ClientNets:
    """Return how the nets of all clients are built, each under a name."""
    builders, net_of = dict[str, Callable[[], Net]](), dict[str, str]()
    names = dict[int | str, str]()
    for client, model in models.items():
        key = model if isinstance(model, str) else id(model)
        if key not in names:
            plain = find_model_name(model) if isinstance(model, str) else name_model(model)
            names[key] = plain if plain not in builders else f"{plain}-{len(builders)}"
            if isinstance(model, str):
                build = get_model_builder(model)
                depth = head_depth or algorithm.head_depth or get_default_head_depth(build)
                builders[names[key]] = partial(build, federation.shape, federation.classes, depth)
            else:
                builders[names[key]] = prepare_own_net(model, algorithm, federation, seed)
        net_of[client] = names[key]
    return ClientNets(builders, net_of)


def name_model(model: OwnModel) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else name_function(model)


def build_own_net(model: OwnModel, cut: Cut | None, record: Record | None = None) -> Net:
    """Build the net from (a copy of) a user's module, or from a function, cut into base and head."""
    module = build_module(model)
    unpack_inputs(module.base if isinstance(module, Net) else module, record)
    if not isinstance(module, Net):
        assert cut is not None  # found before the run
        return cut_module(module, cut)
    module.origin = None  # was compared before the run; copies need not carry it
    return module


def build_module(model: OwnModel) -> nn.Module:
    """Copy a user's module, or call a user's function that makes one."""
    if isinstance(model, nn.Module):
        return deepcopy(model)
    if not callable(model):
        raise ConfigError(
            f"model: must be a name, an nn.Module or a function that makes one, not {model!r}"
        )
    module = model()
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"model: the function returned {type(module).__name__}; make it return an nn.Module"
        )
    return module


def check_copyable(module: nn.Module) -> None:
    """Raise ConfigError for a module that cannot be copied, such as one that holds a lock or an open file."""
    try:
        deepcopy(module)
    except Exception:  # the user's object may raise anything
        where, reason = find_unpicklable(module, "model", deepcopy)
        raise ConfigError(
            f"model: every client needs a copy of {type(module).__name__}, but {where} cannot be"
            f" copied ({reason}); create it inside the method that uses it"
        ) from None


def take_examples(federation: Federation) -> Tensor:
    """Take a few training examples in the form in which the net receives them."""
    samples = federation.samples(federation.clients[0], "train")
    return samples.batch(torch.arange(min(EXAMPLES, len(samples))))[0]


def uses_logits(algorithm: Algorithm) -> bool:
    """Return True if the net's output is used as logits; a user's algorithm may define its own output."""
    methods = (getattr(type(algorithm), name) for name in ("build", "predict"))
    return all(m.__module__.startswith(f"{__name__.split('.')[0]}.") for m in methods)


def check_output(net: Net, x: Tensor, federation: Federation, name: str) -> None:
    """Raise an error unless the net returns what the task requires, such as one logit per class."""
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
    """Check the number of logits; refuse too few, and warn about too many."""
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
    """Raise ConfigError unless the loss is a function and metrics are a list of functions and names."""
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
    """Call the user's functions on the initial net's output, and check their return values."""
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
    except Exception as error:  # the user's function may raise anything
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(
            f"{what}: {name_function(function)} fails for an output of shape {tuple(output.shape)} and"
            f" targets of {tuple(y.shape)} ({type(error).__name__}: {reason})"
        ) from error


def name_function(function: object) -> str:
    """Return the name of a function, or of an object's class; never an address."""
    return str(getattr(function, "__name__", type(function).__name__))


def describe_value(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def check_own_training(how: Training, plan: Plan) -> None:
    """Try a user's optimiser on a parameter, and its schedule in all rounds."""
    if how.own_optimizer is not None:
        if plan.algorithm.optimizers != Algorithm.optimizers:
            allowed = " or ".join(f"'{o}'" for o in plan.algorithm.optimizers)
            raise ConfigError(
                f"training.optimizer: {plan.algorithm_name} holds for {allowed}, not for a function"
            )
        parameter = nn.Parameter(torch.zeros(2))
        parameter.grad = torch.ones(2)
        try:
            create_optimizer(Tensors({"w": parameter}), how, {}, Tensors()).step()
        except ConfigError:
            raise
        except Exception as error:  # a user's function can raise anything
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            name = name_function(how.own_optimizer)
            raise ConfigError(
                f"training.optimizer: {name} fails for a list of groups such as {{'params': […], 'lr': 0.1}}"
                f" ({type(error).__name__}: {reason})"
            ) from error
    for t in range(plan.rounds) if how.own_schedule is not None else ():
        factor = how.compute_lr_factor(t, plan.rounds)
        if not 0 <= factor < inf:
            raise ConfigError(
                f"training.schedule: the factor of round {t} must be at least 0, not {factor:g}"
            )
