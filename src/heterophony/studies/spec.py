"""RunSpec: the settings of one run, and the Python objects that settings cannot express."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from inspect import signature
from math import inf
from pathlib import Path
from shlex import quote
from types import NoneType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from ..algorithms import ALGORITHM_CLASSES, get_algorithm_class, label_algorithm
from ..config.config import Config, check_training
from ..config.keys import rename_key, rename_sections
from ..config.nets import EXAMPLES, ClientNets, OwnModel, prepare_own_net
from ..config.reading import read_config
from ..config.sections import AVAILABILITY_RULES
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, FolderError, suggest_or_list
from ..core.files import TEXT_LIMIT, read_regular_file, translate_disk_errors
from ..core.net import Net, copy_module
from ..core.own_modules import is_own_code
from ..core.randomness import seeded
from ..core.status_line import show_slow_work
from ..core.tasks import Criterion, MetricFunction
from ..core.tensors import Tensors
from ..core.training import Training, create_optimizer
from ..data.federation import Federation
from ..engines.base import AUTO_ADDRESS
from ..jobs.plan import Plan, describe_plan
from ..models import find_model_name, get_default_head_depth, get_model_builder
from ..population.participation import FunctionParticipation, Poisson, Skewed, Uniform
from ..protection import PROTECTION_CLASSES, get_kind
from ..runs.folder import RunFolder


def resolve_models(model: Any, federation: Federation) -> Any:
    """Return the single model of all clients, or a dict with each client's model.

    Raise ConfigError if a client has no model, or if a named client does not exist.
    """
    clients = list(federation.train)
    if isinstance(model, Mapping):
        named = {str(client): one for client, one in model.items()}
    elif isinstance(model, list | tuple):
        named = {c: model[i % len(model)] for i, c in enumerate(clients)} if model else {}
    elif is_function_of_client(model):
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
            raise ConfigError(f"model: client '{client}' has no model; pass one for every client")
    kinds = {id(one) if not isinstance(one, str) else one for one in named.values()}
    return next(iter(named.values())) if len(kinds) == 1 else {c: named[c] for c in clients}


def is_function_of_client(model: Any) -> bool:
    """Return True if ``model`` is a function of a client's name, not a function that builds a module."""
    if isinstance(model, nn.Module | type) or not callable(model):
        return False
    try:
        parameters = signature(model).parameters.values()
    except ValueError:  # some functions written in C have no signature
        return False
    needed = [p for p in parameters if p.default is p.empty]
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in needed)


def names_every_model(model: Any) -> TypeGuard[Mapping[str, str]]:
    """Return True if ``model`` is a dict in which every client's model is a name."""
    return isinstance(model, Mapping) and all(isinstance(m, str) for m in model.values())


def prepare_own_nets(
    models: Mapping[str, str | OwnModel],
    algorithm: Algorithm,
    federation: Federation,
    seed: int,
    head_depth: int | None,
) -> ClientNets:
    """Return a builder for each distinct net of the clients, and the name of each client's net."""
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
    """Return the name of a user's model: the module's class, or the function that builds it."""
    return type(model).__name__ if isinstance(model, nn.Module) else name_function(model)


def check_loss_and_metrics(loss: object, metrics: object) -> None:
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
        value = call_user_function("loss", loss, output, y)
        if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
            raise ConfigError(
                f"loss: {name_function(loss)} must return one number with a gradient, the mean over"
                f" the mini-batch, not {describe_value(value)}"
            )
    for metric in own:
        value = call_user_function("metrics", metric, output.detach(), y)
        try:
            float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(
                f"metrics: {name_function(metric)} must return one number, not {describe_value(value)}"
            ) from None


def call_user_function(what: str, function: Callable[..., Any], output: Tensor, y: Tensor) -> Any:
    """Call a user's loss or metric; raise ConfigError with the function's name if it fails."""
    try:
        return function(output, y)
    except Exception as error:  # the user's function may raise anything
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(
            f"{what}: {name_function(function)} fails for an output of shape {tuple(output.shape)} and"
            f" targets of {tuple(y.shape)} ({type(error).__name__}: {reason})"
        ) from error


def name_function(function: object) -> str:
    """Return the name of a user's function, or of an object's class, for messages and ``config.toml``."""
    return str(getattr(function, "__name__", type(function).__name__))


def describe_value(value: object) -> str:
    """Describe the return value of a user's function for an error message."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def check_own_training(how: Training, plan: Plan) -> None:
    """Call a user's optimiser and schedule once; raise ConfigError if they fail or are not allowed."""
    if how.own_optimizer is not None:
        if plan.algorithm.optimizers != Algorithm.optimizers:
            allowed = " or ".join(f"'{o}'" for o in plan.algorithm.optimizers)
            raise ConfigError(
                f"training.optimizer: {plan.algorithm_name} is only defined for {allowed}, not for a function"
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


Metrics = Sequence[str | MetricFunction]


@dataclass(frozen=True)
class RunSpec:
    """The specification of one run: its settings, and optional Python objects of the user.

    The algorithm and the participation rule in ``config`` may be objects of the user, too. A run
    without such objects can be repeated from its ``config.toml`` alone.
    """

    config: Config
    federation: Federation | None = None  # default: from the section [data]
    model: OwnModel | Mapping[str, str | OwnModel] | None = None  # default: from [model]
    loss: Criterion | None = None  # default: the loss of the task
    metrics: Metrics | None = None  # default: from [evaluation]
    training_of: Mapping[str, Training] = field(default_factory=dict)  # default: from [training]
    name: str = ""  # shown while the run is in progress; default: algorithm and seed

    @property
    def label(self) -> str:
        """The short name of the run that is shown to users."""
        algorithm = label_algorithm(self.config.algorithm, self.config.algorithm_name)
        return self.name or f"{algorithm} (seed {self.config.top.seed})"

    def load_data(self) -> RunSpec:
        """Return the same run with its data read and its default model chosen."""
        federation = read_federation(self.config) if self.federation is None else self.federation
        config = self.config
        if self.model is None:
            config = config.fill_model_defaults(federation)
        return replace(self, config=config, federation=federation)

    def build_plan(self) -> Plan:
        """Build the plan of the run; raise ConfigError if its parts are incompatible."""
        config, federation = self.config, self.federation
        federation = read_federation(config) if federation is None else federation
        net: Callable[[], Net] | ClientNets | None = None
        if isinstance(self.model, Mapping):
            how = (config.algorithm, federation, config.top.seed, config.model.head_depth)
            net = prepare_own_nets(self.model, *how)
        elif self.model is not None:
            net = prepare_own_net(self.model, config.algorithm, federation, config.top.seed)
        plan = config.build_plan(federation, net, self.loss, self.metrics)
        if self.training_of:
            plan = replace(plan, training_of=self.training_of)
            check_training_by_client(plan)
        check_own_functions(plan, self.loss, self.metrics)
        return plan

    def list_objects(self) -> dict[str, str]:
        """Return the names of the user's objects that settings cannot express, by what they replace."""
        config, found = self.config, dict[str, str]()
        if self.federation is not None and self.federation.recipe is None:
            found["data"] = self.federation.name
        if self.model is not None:
            models = self.model.values() if isinstance(self.model, Mapping) else [self.model]
            names = (m if isinstance(m, str) else name_function(m) for m in models)
            found["model"] = ", ".join(dict.fromkeys(names))
        if not is_named_algorithm(config):
            found["algorithm"] = type(config.algorithm).__name__
        rule, available = config.participation, config.faults.availability
        if self.training_of:
            found["training"] = describe_training_by_client(self.training_of)
        if isinstance(rule, FunctionParticipation):
            found["participation"] = name_function(rule.select)
        elif type(rule) not in (Uniform, Skewed, Poisson):
            found["participation"] = type(rule).__name__
        elif not isinstance(available, (float, int, NoneType, *AVAILABILITY_RULES.values())):
            found["participation"] = type(available).__name__
        kinds = (get_kind(p) for p in config.protections)
        foreign = [kind for kind in kinds if kind not in PROTECTION_CLASSES]
        if foreign:
            found["protection"] = ", ".join(foreign)
        if self.loss is not None:
            found["loss"] = name_function(self.loss)
        if any(not isinstance(m, str) for m in self.metrics or ()):
            found["metrics"] = ", ".join(
                m if isinstance(m, str) else name_function(m) for m in self.metrics or ()
            )
        return found

    def format_config(self) -> str:
        """Return the text of the run's ``config.toml``."""
        return self.config.to_toml(self.list_objects())

    # Folders --------------------------------------------------------------------------------
    def open_folder(self, folder: RunFolder, option: str = "--out") -> None:
        """Lock the folder for this run: create it, or reopen it if it holds the same run.

        ``option`` is the option with which the user passed the folder; error messages name it.
        """
        text = self.format_config()
        if not folder.config_file.exists():
            folder.create(text)
        elif parse_settings(folder.reopen()) != parse_settings(text):
            folder.close()
            raise FolderError(
                f"{folder.path} holds a run with other settings; choose another {option}"
            )


def check_training_by_client(plan: Plan) -> None:
    """Raise ConfigError if the plan does not allow training settings by client, or a client's settings."""
    if plan.algorithm.pooled:
        raise ConfigError(
            f"training: {plan.algorithm_name} trains on pooled data; pass one hp.Training"
        )
    for how in set(plan.training_of.values()):
        check_training(plan.algorithm, plan.algorithm_name, how, plan.rounds)
        check_own_training(how, plan)
    promises = [p.promise(describe_plan(plan)) for p in plan.protections]
    if any(p is not None and p.unit == "example" for p in promises):
        raise ConfigError(
            "training: example-level privacy accounting needs the same training on all clients;"
            " pass one hp.Training"
        )


def describe_training_by_client(training_of: Mapping[str, Training]) -> str:
    """Describe clients' training settings as text: each distinct ``Training``, with its clients."""
    clients = dict[Training, list[str]]()
    for client, how in training_of.items():
        clients.setdefault(how, []).append(client)
    parts = []
    for how, names in clients.items():
        own = [name_function(f) for f in (how.own_optimizer, how.own_schedule) if f is not None]
        functions = f" with {' and '.join(own)}" if own else ""
        parts.append(f"{how!r}{functions} of {', '.join(names)}")
    return "; ".join(parts)


def is_named_algorithm(config: Config) -> bool:
    """Return True if ``config.toml`` can recreate the algorithm: a class to import, with settings that fit TOML."""
    if not all(map(is_plain, asdict(config.algorithm).values())):
        return False
    name, cls = config.algorithm_name, type(config.algorithm)
    if is_own_code(name):
        module, _, class_name = name.partition(":")
        return getattr(sys.modules.get(module), class_name, None) is cls
    return name in ALGORITHM_CLASSES and get_algorithm_class(name) is cls


def is_plain(value: object) -> bool:
    """Return True if TOML can hold a value."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return isinstance(value, bool | int | float | str | None)


def read_federation(config: Config) -> Federation:
    """Read and partition the data of a configuration; show a status line if that takes long."""
    with show_slow_work(f"reading {config.data.name}"):
        return config.build_federation()


class FederationCache:
    """Reads each federation once for all runs that use the same data."""

    def __init__(self) -> None:
        self.federations: dict[tuple[str, int], Federation] = {}

    def load_data(self, spec: RunSpec) -> RunSpec:
        """Return the same run with its data read and its default model chosen."""
        if spec.federation is None:
            key = (repr(spec.config.data), spec.config.data_seed)
            if key not in self.federations:
                self.federations[key] = read_federation(spec.config)
            spec = replace(spec, federation=self.federations[key])
        return spec.load_data()


def parse_settings(text: str) -> Mapping[str, Any]:
    """Parse the settings in ``config.toml`` that determine the result; empty if the text is damaged.

    In the section [engine], only the precision determines the result.
    """
    try:
        settings = rename_sections(tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        return {}
    engine = settings.pop("engine", {})
    return {**settings, "precision": engine.get("precision", "float32")}


def read_spec(folder: RunFolder, overrides: Sequence[str] = (), trust: bool = False) -> RunSpec:
    """Read the RunSpec of a run folder, to resume it; ``overrides`` may change the section [engine].

    The folder may be someone else's. So an algorithm of another package is imported only with
    ``trust``, and a Ray cluster, which would receive the user's token, is used only if ``overrides``
    names it.
    """
    file = folder.config_file
    if not file.is_file():
        raise FolderError(f"{folder.path} is not a run folder: it has no config.toml")
    with translate_disk_errors(file):
        read_regular_file(file, TEXT_LIMIT)  # raises for a pipe or device, which may never end
    objects = find_own_objects(folder.read_config_text())
    if objects:
        raise FolderError(
            f"{folder.path} was started from Python with your own {' and '.join(objects)}; continue it"
            f" there with hp.run(..., out='{folder.path}', resume=True)"
        )
    config = read_config(file, overrides, trust=trust)
    check_cluster_address(config, file, overrides)
    return RunSpec(config)


def check_cluster_address(config: Config, file: Path, overrides: Sequence[str]) -> None:
    """Raise FolderError if a file names the Ray cluster, and the user's overrides do not."""
    address = config.engine.address
    named = any(rename_key(p.partition("=")[0].strip()) == "engine.address" for p in overrides)
    if address not in (None, AUTO_ADDRESS) and not named:
        raise FolderError(
            f"{file} names a Ray cluster, which would receive your token; if it is yours, add"
            f" -c {quote(f'engine.address={address}')}, or run here with -c engine.name=pool"
        )


def find_own_objects(text: str) -> dict[str, str]:
    """Return the section [objects] of ``config.toml``: the objects from Python that the run needs."""
    try:
        objects = tomllib.loads(text).get("objects", {})
    except tomllib.TOMLDecodeError:  # reported when the settings are read
        return {}
    return objects if isinstance(objects, dict) else {}


def load_data_of_specs(specs: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """Return the runs with their data read and default models chosen; raise ConfigError if one cannot start."""
    cache = FederationCache()
    complete = {label: cache.load_data(spec) for label, spec in specs.items()}
    for spec in complete.values():
        spec.build_plan()  # raises if the model does not match the data
    return complete


def prepare_run_folders(parent: Path, complete: Mapping[str, RunSpec]) -> dict[RunFolder, RunSpec]:
    """Create a run folder for each label below ``parent`` before any run starts; return runs by folder.

    Raise FolderError if a folder holds a run with other settings.
    """
    if (parent / "config.toml").exists():
        raise FolderError(f"{parent} is a single run; choose another --out")
    runs = dict[RunFolder, RunSpec]()
    for label, spec in complete.items():
        folder = RunFolder(parent / label)
        if not folder.config_file.exists():
            folder.create(spec.format_config())
            folder.close()
        elif parse_settings(folder.read_config_text()) != parse_settings(spec.format_config()):
            raise FolderError(
                f"{folder.path} holds a run with other settings; choose another --out"
            )
        runs[folder] = spec
    return runs
