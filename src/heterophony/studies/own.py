"""The user's own models by client, losses and metrics: all are checked before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from math import inf
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from ..config.nets import EXAMPLES, ClientNets, OwnModel, prepare_own_net
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, suggest_or_list
from ..core.net import Net, copy_module
from ..core.randomness import seeded
from ..core.tasks import Criterion, MetricFunction
from ..core.tensors import Tensors
from ..core.training import Training, create_optimizer
from ..data.federation import Federation
from ..jobs.plan import Plan
from ..models import find_model_name, get_default_head_depth, get_model_builder


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
