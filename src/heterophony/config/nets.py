"""Nets that differ by client: assigned by name or by shares, and checked against the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..algorithms import ALGORITHM_CLASSES, get_algorithm_class, get_display_name
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, choose
from ..core.net import Net
from ..core.randomness import make_generator
from ..data.federation import Federation
from ..jobs.plan import Plan
from ..models import NET_GROUPS, find_model_name, get_default_head_depth, get_model_builder
from .sections import ModelSection, NetGroup


@dataclass(frozen=True)
class ClientNets:
    """The nets of a run whose clients have different ones: how each is built, and which client has which."""

    builders: Mapping[str, Callable[[], Net]]
    net_of: Mapping[str, str]


def list_groups(model: ModelSection) -> list[NetGroup]:
    """List the groups of nets that [model] names; the list is empty if all clients have the same net."""
    if model.groups is None:
        return [NetGroup(**group) for group in model.group or ()]
    names = choose(NET_GROUPS, model.groups, "model.groups")
    return [NetGroup(name, share=1 / len(names)) for name in names]


def deal_nets(groups: Sequence[NetGroup], clients: Sequence[str], seed: int) -> dict[str, str]:
    """Return the name of each client's net; clients that no group names are distributed by shares."""
    dealt = dict[str, str]()
    for group in groups:
        for client in group.clients or ():
            if client not in clients:
                raise ConfigError(f"model.group: there is no client '{client}'; remove the name")
            if client in dealt:
                raise ConfigError(f"model.group: client '{client}' is in two groups; name it once")
            dealt[client] = find_model_name(group.name)
    left = [c for c in clients if c not in dealt]
    shares = [(find_model_name(g.name), g.share) for g in groups if g.share is not None]
    total = sum(share for _, share in shares)
    if left and not shares:
        raise ConfigError(
            f"model.group: client '{left[0]}' is in no group; name it, or give shares"
        )
    if shares and abs(total - 1) > 1e-6:
        raise ConfigError(f"model.group: shares must add up to 1, not {total:g}")
    left = [left[i] for i in make_generator(seed, "nets").permutation(len(left))]
    end, begun = 0.0, 0
    for name, share in shares:
        end += share
        last = round(end * len(left))
        dealt |= dict.fromkeys(left[begun:last], name)
        begun = last
    return {c: dealt[c] for c in clients}


def name_clients(model: ModelSection, clients: Sequence[str], seed: int) -> ModelSection:
    """Return [model] with the clients of every group named, or unchanged if there are no groups."""
    if not list_groups(model):
        return model
    found = dict[str, list[str]]()
    for client, name in deal_nets(list_groups(model), clients, seed).items():
        found.setdefault(name, []).append(client)
    order = dict.fromkeys(find_model_name(group.name) for group in list_groups(model))
    named = [{"name": name, "clients": found[name]} for name in order if name in found]
    if len(named) == 1:
        return replace(model, name=named[0]["name"], group=None, groups=None)  # type: ignore[arg-type]
    return replace(model, group=named, groups=None)


def choose_nets(
    model: ModelSection, federation: Federation, seed: int, head_depth: int | None
) -> ClientNets | None:
    """Choose how nets are built and which client has which; None if all clients have the same net.

    ``head_depth`` is that of the algorithm's paper. The groups name their clients, of which a board
    knows only its own.
    """
    groups = list_groups(model)
    if any(group.share is not None for group in groups):
        groups = list_groups(name_clients(model, list(federation.train), seed))
    if not groups:
        return None
    net_of = {c: find_model_name(group.name) for group in groups for c in group.clients or ()}
    for client in federation.train:
        if client not in net_of:
            raise ConfigError(f"model.group: client '{client}' is in no group; name it in one")
    shapes = (federation.shape, federation.classes)
    builders = dict[str, Callable[[], Net]]()
    for group in groups:
        build = get_model_builder(group.name)
        depth = model.head_depth or head_depth or get_default_head_depth(build)
        builders[find_model_name(group.name)] = partial(build, *shapes, depth)
    ordered = {c: net_of[c] for c in federation.train}  # before clients that are on other boards
    return ClientNets(builders, ordered | net_of)


def check_allowed(algorithm: Algorithm, name: str) -> None:
    """Raise ConfigError if the algorithm needs the same net on every client."""
    if algorithm.needs_nets == "same":
        raise ConfigError(
            f"model: {get_display_name(name)} needs the same net on every client; choose one net, or"
            f" one of {', '.join(list_mixed_algorithms())}"
        )


def check_nets(plan: Plan) -> None:
    """Raise ConfigError if the clients' nets have less in common than the algorithm needs."""
    if not plan.net_of:
        return
    shown, needed = get_display_name(plan.algorithm_name), plan.algorithm.needs_nets
    if needed == "slices" and plan.protections:
        raise ConfigError(
            f"protection: not possible with {shown} and nets of different widths; remove the protection"
        )
    largest = plan.list_shapes(plan.template)
    for name, net in plan.templates.items():
        shapes = plan.list_shapes(net)
        fits = shapes.keys() == largest.keys() and all(
            len(shape) == len(largest[k])
            and all(n <= most for n, most in zip(shape, largest[k], strict=True))
            for k, shape in shapes.items()
        )
        if not fits or (needed != "slices" and shapes != largest):
            raise ConfigError(
                f"model: {shown} needs nets of the same layers, as in convnet and convnet@0.5;"
                f" {name} differs"
            )


def list_mixed_algorithms() -> list[str]:
    """List the algorithms that support different nets on different clients."""
    return [n for n in ALGORITHM_CLASSES if get_algorithm_class(n).needs_nets != "same"]
