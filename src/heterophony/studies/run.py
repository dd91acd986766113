"""The algorithm of ``hp.run``: a name, a class or an instance, and its settings as keywords."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import tomli_w

from ..algorithms import (
    construct_algorithm,
    find_algorithm_name,
    get_algorithm_class,
    get_class_name,
    label_algorithm,
)
from ..config.config import Config, choose_default_model
from ..config.old_settings import describe_algorithm, parse_settings_text
from ..config.protection import check_kind_chosen, settle_protections
from ..config.reading import resolve_config
from ..config.sections import DEFAULT_RATE
from ..core.accelerator import Precision
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, FolderError, suggest_or_list
from ..core.settings import construct, list_settings
from ..core.tasks import Criterion, MetricFunction
from ..core.training import Training
from ..data.federation import Federation
from ..data.sources import choose_default_training
from ..engines.base import Cluster, prepare_engine
from ..engines.child_processes import end_if_script_is_imported
from ..population.attacks import Attack
from ..population.availability import Devices
from ..population.faults import Faults
from ..population.participation import Participation, Uniform
from ..protection import describe_protections
from ..protection.base import Protection
from ..runs.events import Event
from ..runs.folder import RunFolder
from ..runs.result import Result
from ..trackers import Tracker, select_trackers
from .execute import execute_plan
from .federate import federate
from .own import OwnModel, check_kinds, check_own_functions, name_function, prepare_own_net
from .progress import combine_listeners, show_progress


def choose_algorithm(
    algorithm: str | Algorithm | type[Algorithm],
    settings: Mapping[str, Any],
    keywords: Collection[str],
) -> tuple[Algorithm, str]:
    """Return the algorithm with these settings, and its name.

    ``keywords`` are those of the caller; they are suggested where a setting is misspelt.
    """
    if isinstance(algorithm, Algorithm):
        name = type(algorithm).__name__
        for key, value in settings.items():
            raise ConfigError(f"{key}: give it to the instance, as in {name}({key}={value!r})")
        return algorithm, get_class_name(type(algorithm))
    if isinstance(algorithm, str):
        name, cls = find_algorithm_name(algorithm), get_algorithm_class(algorithm, trust=True)
    elif isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        name, cls = get_class_name(algorithm), algorithm
    else:
        raise ConfigError(
            f"algorithm: must be a name, or a class or an instance of hp.Algorithm,"
            f" not {algorithm!r}"
        )
    check_keywords(settings, cls, keywords)
    return construct_algorithm(cls, settings), name


def check_keywords(
    settings: Mapping[str, Any], cls: type[Algorithm], keywords: Collection[str]
) -> None:
    """Refuse a keyword that is no setting of the algorithm, and say what is meant or where it goes."""
    known = [f.name for f in list_settings(cls)]
    for key, value in settings.items():
        if key in known:
            continue
        if key in (f.name for f in list_settings(Training)):
            raise ConfigError(f"{key}: write training=hp.Training({key}={value!r})")
        if key in signature(federate).parameters:
            raise ConfigError(f"{key}: give it to hp.federate, as in {key}={value!r}")
        near = suggest_or_list(key, [*known, *keywords])
        raise ConfigError(f"{key}: no keyword of hp.run and no setting of {cls.__name__}{near}")


Model = str | OwnModel


def format_run_toml(
    config: Config, federation: Federation, model: Model | None, own: Mapping[str, str]
) -> str:
    """Format the configuration of a run begun from Python: for people to read, without its data."""
    net = model or choose_default_model(federation.shape, federation.x.dtype, federation.task)
    rule, transform = config.participation, federation.transform
    sections: dict[str, dict[str, Any]] = {
        "data": {
            "name": federation.name,
            "clients": len(federation.clients),
            "transform": transform and transform.name,
            "frozen_augment": transform and transform.moves and transform.moves.frozen,
            "validation": sum(federation.sizes("validation").values()) or None,
            "task": None if federation.task == "classification" else federation.task,
        },
        "model": {
            "name": net if isinstance(net, str) else type(net).__name__,
            "head_depth": config.model.head_depth,
            "buffers": config.model.buffers,
            "init": config.model.init,
        },
        "algorithm": describe_algorithm(config.algorithm_name, config.algorithm),
        "local": config.local.to_settings(),
        "aggregation": asdict(config.aggregation),
        "evaluation": {
            "every": config.evaluation.every,
            "new_client_rounds": config.evaluation.new_client_rounds,
        },
        # the default repr holds an address, which differs between processes
        "library": {
            "participation": repr(rule) if is_dataclass(rule) else type(rule).__name__,
            **own,
        },
    }
    if config.engine.precision != "float32":
        sections["library"]["precision"] = config.engine.precision
    if config.faults != Faults():
        sections["library"]["faults"] = repr(config.faults)
    if config.devices != Devices():
        sections["library"]["devices"] = repr(config.devices)
    if config.attack.is_active:
        sections["library"]["attack"] = repr(config.attack)
    plain = {
        k: {n: to_toml_value(v) for n, v in d.items() if v is not None} for k, d in sections.items()
    }
    plain["local"] = sections["local"]  # plain already; its lists stay lists
    return tomli_w.dumps(
        {**asdict(config.top), **plain, **describe_protections(config.protections)}
    )


def list_accepted_texts(
    config: Config, federation: Federation, model: Model | None, own: Mapping[str, str]
) -> list[str]:
    """List the texts that describe the same run.

    Older runs name the class, as in ``fedrepfull``, and do not say the depth of the head.
    """
    names = (config.algorithm_name, type(config.algorithm).__name__.lower())
    models = (config.model, replace(config.model, head_depth=None))
    older = [replace(config, algorithm_name=n, model=m) for n in names for m in models]
    return [format_run_toml(c, federation, model, own) for c in older]


def name_own_functions(
    loss: Criterion | None, metrics: Sequence[str | MetricFunction] | None
) -> dict[str, str]:
    """Name the loss and the metrics that the user chose."""
    chosen = {} if loss is None else {"loss": name_function(loss)}
    if metrics is not None:
        chosen["metrics"] = ", ".join(
            m if isinstance(m, str) else name_function(m) for m in metrics
        )
    return chosen


def to_toml_value(value: Any) -> bool | int | float | str:
    """Return a setting as TOML can hold it; one of a user's own type as text."""
    return value if isinstance(value, bool | int | float | str) else repr(value)


def run(
    algorithm: str | Algorithm | type[Algorithm],
    federation: Federation,
    *,
    model: Model | None = None,
    rounds: int = 100,
    participation: float | int | Participation = DEFAULT_RATE,
    training: Training | None = None,
    loss: Criterion | None = None,
    metrics: Sequence[str | MetricFunction] | None = None,
    seed: int = 0,
    head_depth: int | None = None,
    evaluate_every: int = 1,
    weights: Literal["samples", "uniform"] = "samples",
    buffers: Literal["local", "average"] = "local",
    new_client_rounds: int = 1,
    init: str | Path | None = None,
    faults: Faults | None = None,
    devices: Devices | None = None,
    protection: Sequence[Protection] = (),
    attack: Attack | None = None,
    engine: str = "serial",
    workers: int | None = None,
    cluster: Cluster | None = None,
    device: str = "auto",
    precision: Precision = "float32",
    deterministic: bool = True,
    fast: Literal["auto", "off"] = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
    track: Sequence[str | Tracker] = (),
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Run one algorithm on a federation, and return its result.

    ``algorithm`` is a name, as in ``heterophony list algorithms``, ``"package.module:Class"``, a class
    or an instance. ``settings`` are the algorithm's, as in ``hp.run("fedprox", clients, mu=0.1)``; one
    that is named like a keyword of ``run`` is given to an instance, ``hp.FedReG(weights=…)``.

    ``participation`` is the share (float) or number (int) of clients per round, or a rule. ``model`` is
    a name, a module (its weights are the initial ones) or a function that builds one. Defaults are
    those of the command line; only the engine is "serial" here, which any script can use.

    ``device`` is "auto", "cpu", "cuda", "cuda:1" or "mps": where clients' nets compute. With ``fast``
    "off", every step of training is left to autograd, client by client; the bits are the same.

    ``loss`` is a function of output and targets, in place of the task's. ``metrics`` are measured
    beside the score: names (``"f1"``), or functions of all outputs and targets of a client.

    ``weights`` decides what a client counts in a mean; ``buffers``, whether BatchNorm's running
    statistics are personal or averaged. ``init`` is a checkpoint of the same model to begin with; the
    head is new where its shape differs. Clients who join after training train ``new_client_rounds``
    alone. ``faults`` are simulated; ``devices`` are the speeds that the simulated clock counts.

    ``protection`` lists what happens to everything that travels, in this order, as in
    ``[hp.ClientDP(clip=1.0, epsilon=8.0)]``. ``attack`` makes some clients bad.

    Without ``out`` the run lives in a temporary folder, as long as its result does. With ``resume``,
    an interrupted run in ``out`` continues. ``cluster`` is for the engine "ray": where it runs, if not
    on this machine, and what one job reserves. ``track`` lists names of trackers, or objects with
    ``begin``, ``log`` and ``end``. ``progress`` shows a bar on a terminal and in a notebook, and a
    line every 30 seconds in a log.
    """
    if engine == "pool":
        end_if_script_is_imported()
    check_federation(federation)
    check_kinds(loss, metrics)
    chosen, name = choose_algorithm(algorithm, settings, signature(run).parameters)
    config = resolve_config(
        {
            "seed": seed,
            "rounds": rounds,
            "model": {
                "name": model if isinstance(model, str) else None,
                "head_depth": head_depth,
                "buffers": buffers,
                "init": None if init is None else str(init),
            },
            "aggregation": {"weights": weights},
            "evaluation": {"every": evaluate_every, "new_client_rounds": new_client_rounds},
            "engine": {
                "name": engine,
                "workers": workers,
                **asdict(cluster or Cluster()),
                "device": device,
                "precision": precision,
                "deterministic": deterministic,
                "fast": fast,
            },
        }
    )
    prepare_engine(config.engine)
    config = replace(
        config,
        algorithm=chosen,
        algorithm_name=name,
        data=replace(config.data, name=federation.name, clients=len(federation.clients)),
        local=training or choose_default_training(federation.name, federation.shape),
        participation=make_participation(participation, len(federation.clients)),
        faults=faults or Faults(),
        devices=devices or Devices(),
        protections=tuple(protection),
        attack=attack or Attack(),
    )
    given_rule = not isinstance(participation, int | float)
    check_kind_chosen(config.protections, {"kind": participation} if given_rule else None)
    config = settle_protections(config)
    compute = config.engine.choose_compute()
    net = None
    if model is not None and not isinstance(model, str):
        net = prepare_own_net(model, config.algorithm, federation, seed)
    plan = config.build_plan(federation, net, loss, metrics)
    check_own_functions(plan, loss, metrics)
    trackers, own = select_trackers(track), name_own_functions(loss, metrics)
    temporary = None if out is not None else tempfile.mkdtemp(prefix="heterophony-")
    folder = RunFolder(Path(temporary or str(out)))
    try:
        if not (resume and folder.config_file.exists()):
            folder.create(format_run_toml(config, federation, model, own), from_python=True)
        elif parse_settings_text(folder.reopen()) not in map(
            parse_settings_text, list_accepted_texts(config, federation, model, own)
        ):
            raise FolderError(f"{out} holds a run with other settings; choose another out=")
        with show_progress(progress) as shown:
            status = shown.begin_run(
                f"{label_algorithm(plan.algorithm, plan.algorithm_name)} (seed {seed})"
                f" on {compute.device}",
                plan.rounds,
                list(federation.sizes("test").values()),
            )
            execute_plan(
                plan,
                folder,
                engine,
                workers,
                combine_listeners(status, on_event),
                trackers,
                cluster=config.engine,
                on_phase=status.name_phase,
                compute=compute,
            )
    except BaseException:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        folder.close()
    return Result(folder, lambda: plan, temporary)


def check_federation(federation: object) -> None:
    """Refuse what is no federation, and say what to write."""
    if not isinstance(federation, Federation):
        data = repr(federation) if isinstance(federation, str | Path) else "…"
        what = data if data != "…" else type(federation).__name__
        raise ConfigError(
            f"federation: must be clients with data, not {what}; give hp.federate({data})"
        )


def make_participation(participation: float | int | Participation, clients: int) -> Participation:
    """Turn a share or a number into a rule; a rule is returned as it is."""
    if isinstance(participation, bool):
        raise ConfigError("participation: must be a share, a number or a rule, not a truth value")
    if not isinstance(participation, int | float):
        return participation
    if isinstance(participation, int) and participation == 1 < clients:
        warnings.warn(
            "participation=1 means one client in every round; give 1.0 for all clients, or"
            " hp.Uniform(count=1) if you mean one",
            stacklevel=3,
        )
    key = "count" if isinstance(participation, int) else "rate"
    rule = construct(Uniform, {key: participation}, "participation")
    rule.compute_sample_size(clients)  # raises if there are not so many
    return rule
