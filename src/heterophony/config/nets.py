"""Users' own nets, and nets that differ by client: built, and checked before training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, signature

from torch import Tensor, nn

from ..algorithms import ALGORITHM_CLASSES, get_algorithm_class, get_display_name
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, choose, suggest_or_list
from ..core.net import Net
from ..core.own_modules import import_named_module, is_library_name, is_own_code, locate_code
from ..core.randomness import make_generator, seeded
from ..core.records import Record, unpack_inputs
from ..core.split import Cut, call_module, cut_module, find_verified_cut, verify_origin
from ..core.tasks import TASKS
from ..data.federation import Federation
from ..engines.wire import find_unpicklable
from ..jobs.plan import Plan
from ..models import NET_GROUPS, find_model_name, get_default_head_depth, get_model_builder
from ..models.libraries import build_library_net, check_library_name
from .sections import ModelSection, NetGroup

KEY = "model.name"  # the key that names code outside this package
OwnModel = nn.Module | Callable[[], nn.Module]
EXAMPLES = 4  # enough for BatchNorm, and fast


@dataclass(frozen=True)
class ClientNets:
    """The nets of a run in which nets differ: their builders by name, and the name of each client's net."""

    builders: Mapping[str, Callable[[], Net]]
    net_of: Mapping[str, str]


def list_net_groups(model: ModelSection) -> list[NetGroup]:
    """List the groups of nets that [model] names; the list is empty if all clients have the same net."""
    if model.groups is None:
        return [NetGroup(**group) for group in model.group or ()]
    names = choose(NET_GROUPS, model.groups, "model.groups")
    return [NetGroup(name, share=1 / len(names)) for name in names]


def assign_nets(groups: Sequence[NetGroup], clients: Sequence[str], seed: int) -> dict[str, str]:
    """Return the name of each client's net; clients that no group lists are distributed by shares."""
    dealt = dict[str, str]()
    for group in groups:
        for client in group.clients or ():
            if client not in clients:
                raise ConfigError(f"model.group: there is no client '{client}'; remove it")
            if client in dealt:
                raise ConfigError(
                    f"model.group: client '{client}' is in two groups; list it in one of them"
                )
            dealt[client] = find_model_name(group.name)
    left = [c for c in clients if c not in dealt]
    shares = [(find_model_name(g.name), g.share) for g in groups if g.share is not None]
    total = sum(share for _, share in shares)
    if left and not shares:
        raise ConfigError(
            f"model.group: client '{left[0]}' is in no group; list it in one, or set shares"
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


def list_group_clients(model: ModelSection, clients: Sequence[str], seed: int) -> ModelSection:
    """Return the section [model] with the clients of every group listed; unchanged if there are no groups."""
    if not list_net_groups(model):
        return model
    found = dict[str, list[str]]()
    for client, name in assign_nets(list_net_groups(model), clients, seed).items():
        found.setdefault(name, []).append(client)
    order = dict.fromkeys(find_model_name(group.name) for group in list_net_groups(model))
    named = [{"name": name, "clients": found[name]} for name in order if name in found]
    if len(named) == 1:
        return replace(model, name=named[0]["name"], group=None, groups=None)  # type: ignore[arg-type]
    return replace(model, group=named, groups=None)


def choose_nets(
    model: ModelSection, federation: Federation, seed: int, head_depth: int | None
) -> ClientNets | None:
    """Choose the clients' nets as [model] says; return None if all clients have the same net.

    ``head_depth`` is the depth in the algorithm's paper. Groups list all their clients, although a
    board has only its own clients.
    """
    groups = list_net_groups(model)
    if any(group.share is not None for group in groups):
        groups = list_net_groups(list_group_clients(model, list(federation.train), seed))
    if not groups:
        return None
    net_of = {c: find_model_name(group.name) for group in groups for c in group.clients or ()}
    for client in federation.train:
        if client not in net_of:
            raise ConfigError(f"model.group: client '{client}' is in no group; list it in one")
    shapes = (federation.shape, federation.classes)
    builders = dict[str, Callable[[], Net]]()
    for group in groups:
        build = get_model_builder(group.name)
        depth = model.head_depth or head_depth or get_default_head_depth(build)
        builders[find_model_name(group.name)] = partial(build, *shapes, depth)
    ordered = {c: net_of[c] for c in federation.train}  # before clients of other boards
    return ClientNets(builders, ordered | net_of)


def check_allowed(algorithm: Algorithm, name: str) -> None:
    """Raise ConfigError if the algorithm does not allow different nets on different clients."""
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
                f"model: {shown} needs nets with the same layers, as in convnet and convnet@0.5;"
                f" {name} differs"
            )


def list_mixed_algorithms() -> list[str]:
    """List the algorithms that support different nets on different clients."""
    return [n for n in ALGORITHM_CLASSES if get_algorithm_class(n).needs_nets != "same"]


# Users' own nets -------------------------------------------------------------------------


def check_model_name(name: str, trust: bool) -> str:
    """Return the full name of a model; import ``package.module:function`` if ``trust`` allows it."""
    if is_library_name(name):
        check_library_name(name)
        return name
    if not is_own_code(name):
        return find_model_name(name)
    import_own_model(name, trust)
    return name


def import_own_model(name: str, trust: bool = False) -> OwnModel:
    """Import the user's model that ``package.module:function`` names: a function or an ``nn.Module``."""
    module_name, inner = locate_code(name, KEY, "function", trust)
    names = vars(import_named_module(module_name, KEY))
    model = names.get(inner)
    if model is None:
        known = [k for k, v in names.items() if getattr(v, "__module__", "") == module_name]
        raise ConfigError(f"{KEY}: {module_name} has no '{inner}'{suggest_or_list(inner, known)}")
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        raise ConfigError(f"{KEY}: {name} is neither a function that builds a net, nor a module")
    needed = [k for k, p in signature(model).parameters.items() if is_required(p)]
    if needed:
        raise ConfigError(
            f"{KEY}: {name} has required arguments ({', '.join(needed)}); use a function that builds the"
            " net without arguments"
        )
    own: OwnModel = model
    return own


def make_library_net(model: ModelSection, federation: Federation, seed: int) -> nn.Module:
    """Build the net of timm or transformers that [model] names; the seed initialises its new layers."""
    shape = None if federation.record is not None else federation.shape
    with seeded(seed, "init"):
        return build_library_net(str(model.name), shape, federation.classes, model.pretrained)


def is_required(parameter: Parameter) -> bool:
    """Return True if a user's function cannot be called without this parameter."""
    fixed = parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return fixed and parameter.default is Parameter.empty


def prepare_own_net(
    model: OwnModel, algorithm: Algorithm, federation: Federation, seed: int
) -> Callable[[], Net]:
    """Return a function that builds a user's net identically in every process.

    Verify on a few examples that the net computes what the user's module computes, and that its
    output matches the task.
    """
    x = federation.take_examples(EXAMPLES)
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


def build_own_net(model: OwnModel, cut: Cut | None, record: Record | None = None) -> Net:
    """Build a user's net, cut into base and head, from a copy of a module or with a function."""
    module = build_module(model)
    unpack_inputs(module.base if isinstance(module, Net) else module, record)
    if not isinstance(module, Net):
        assert cut is not None  # found before the run
        return cut_module(module, cut)
    module.origin = None  # verified before the run; copies do not need the original
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
    """Raise ConfigError for a user's module that cannot be copied, such as one with a lock or an open file."""
    try:
        deepcopy(module)
    except Exception:  # the user's object may raise any error
        where, reason = find_unpicklable(module, "model", deepcopy)
        raise ConfigError(
            f"model: every client needs a copy of {type(module).__name__}, but {where} cannot be"
            f" copied ({reason}); create it inside the method that uses it"
        ) from None


def uses_logits(algorithm: Algorithm) -> bool:
    """Return True if the algorithm uses a net's output as logits; a user's algorithm may not."""
    methods = (getattr(type(algorithm), name) for name in ("build", "predict"))
    return all(m.__module__.startswith(f"{__name__.split('.')[0]}.") for m in methods)


def check_output(net: Net, x: Tensor, federation: Federation, name: str) -> None:
    """Raise ConfigError unless the net returns what the task requires, such as one logit per class."""
    output, count = call_module(deepcopy(net).eval(), x), federation.classes
    found = tuple(output.shape[1:])
    task = TASKS[federation.task]
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
    """Check a net's number of logits: raise ConfigError if it is too small, and warn if it is too large."""
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
