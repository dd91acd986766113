"""``hp.run`` and ``run_one``: one run, from its settings to its result."""

from __future__ import annotations

import gc
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from inspect import signature
from math import ceil, log10
from pathlib import Path
from typing import Any, Literal

from ..algorithms import (
    construct_algorithm,
    find_algorithm_name,
    get_algorithm_class,
    get_class_name,
)
from ..config.config import check_participation_kind, settle_protections
from ..config.nets import OwnModel
from ..config.reading import resolve_config
from ..config.sections import DEFAULT_RATE, DataSection, EngineSection
from ..core.accelerator import ON_CPU, Compute, Precision
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, FolderError, suggest_or_list
from ..core.files import load_secret, write_json
from ..core.settings import construct, flatten_config, list_settings
from ..core.tasks import Criterion
from ..core.temporary import create_temporary_folder, remove_temporary_folder
from ..core.training import Training
from ..data.federation import Federation
from ..data.sources import choose_default_training
from ..engines.base import Cluster, Engine, EngineSpec, create_engine, prepare_engine
from ..engines.child_processes import exit_if_script_is_imported
from ..jobs.plan import Plan, describe_plan
from ..population.attacks import Attack, Faults
from ..population.availability import Speeds
from ..population.participation import FunctionParticipation, Participation, Selection, Uniform
from ..protection import get_kind
from ..protection.base import Protection
from ..runs.events import Event, get_end, get_start, is_event, select_rounds
from ..runs.folder import RunFolder
from ..runs.loop import run_rounds
from ..runs.result import Result
from ..runs.summary import Summary, record_below_local, summarise
from ..trackers import TrackedRun, Tracker, follow_run, select_trackers
from .federate import federate
from .hooks import Hook, Hooks, Patience, RunsProgress, show_progress
from .spec import Metrics, RunSpec, check_loss_and_metrics, names_every_model, resolve_models

AlgorithmLike = str | Algorithm | type[Algorithm]
Model = str | OwnModel
Models = Model | Mapping[Any, Model] | Sequence[Model] | Callable[[str], Model]
TrainingLike = Training | Mapping[Any, Training] | Callable[[str], Training]
# keywords of hp.run by their former names
RENAMED_KEYWORDS = {"devices": "speeds", "device": "accelerator"}


def run(
    algorithm: AlgorithmLike,
    federation: Federation,
    *,
    model: Models | None = None,
    rounds: int = 100,
    participation: float | int | Participation | Selection = DEFAULT_RATE,
    training: TrainingLike | None = None,
    loss: Criterion | None = None,
    metrics: Metrics | None = None,
    seed: int = 0,
    head_depth: int | None = None,
    evaluate_every: int = 1,
    keep_best: bool = False,
    patience: int | None = None,
    choose_by: Literal["P", "G"] = "P",
    weights: Literal["samples", "uniform"] = "samples",
    buffers: Literal["local", "average"] = "local",
    new_client_rounds: int = 1,
    init: str | Path | None = None,
    faults: Faults | None = None,
    speeds: Speeds | None = None,
    protection: Sequence[Protection] = (),
    attack: Attack | None = None,
    engine: str = "serial",
    workers: int | None = None,
    cluster: Cluster | None = None,
    accelerator: str = "auto",
    precision: Precision = "float32",
    deterministic: bool = True,
    fast: Literal["auto", "off"] = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    on_event: Hook = lambda event: None,
    track: Sequence[str | Tracker] = (),
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Run one algorithm on a federation, and return its result.

    Defaults are the same as on the command line, except for the engine. With named data, model and
    algorithm, the run folder is the one that the command line writes: ``heterophony resume``
    continues it.

    Args:
        algorithm: A name, as in ``heterophony list algorithms``; ``"package.module:Class"``; a class
            or an instance of ``hp.Algorithm``.
        federation: The clients and their data, from ``hp.federate``.
        model: A name, as in ``heterophony list models`` or ``"package.module:function"``; a module, whose weights are the initial
            ones; or a function that builds a module. If clients have different nets: a dict of
            models by client; a list that is assigned to the clients in turn; or a function of the
            client. Default: chosen by the shape of the data.
        rounds: Number of communication rounds.
        participation: The share (float) or number (int) of clients selected per round; a rule such
            as ``hp.Poisson(rate=0.1)``; or a function of (t, clients, seed) that returns the
            clients of round t.
        training: The settings of local training, as in ``hp.Training(lr=0.1)``; a dict by
            client (clients not in it use the default); or a function of the client. Default: those of
            the data set.
        loss: A function of output and targets that replaces the task's loss.
        metrics: What to measure besides the score: names such as ``"f1"``, or functions of all
            outputs and targets of a client.
        seed: The seed of all random draws except the partition, which ``hp.federate`` draws.
        head_depth: Number of layers in the head. Default: as in the algorithm's paper.
        evaluate_every: Rounds between evaluations.
        keep_best: Keep the models of the best round on validation examples instead of the last.
        patience: Stop the run after this many evaluations in a row without a better score on
            validation examples.
        choose_by: The validation score that ``keep_best`` and ``patience`` use.
        weights: The weight of a client in a mean: its number of examples, or the same for all.
        buffers: Whether BatchNorm's running statistics are personal or averaged.
        new_client_rounds: Rounds of training for a client that joins afterwards.
        init: A checkpoint of the same model to start from; the head is new if its shape differs.
        faults: Simulated faults, as in ``hp.Faults(dropout=0.1)``.
        speeds: Simulated speeds of the clients, for the simulated clock.
        protection: What happens to everything that is sent, in this order, as in
            ``[hp.ClientDP(clip=1.0, epsilon=8.0)]``.
        attack: Simulated malicious clients.
        engine: ``"serial"``, which any script can use; ``"pool"``, one process per core; or
            ``"ray"``.
        workers: Number of jobs at a time. Default: one per core, or as many as fit on the cluster.
        cluster: For the engine "ray": the cluster, and what a job reserves on it.
        accelerator: Where clients' nets compute: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"`` or
            ``"auto"``.
        precision: Number type of the forward pass and the loss; ``"bfloat16"`` changes results.
        deterministic: On GPUs, compute the same bits every time; False is faster.
        fast: ``"off"`` leaves every step to autograd, client by client; the bits are the same.
        out: The run folder. Default: a temporary one, deleted with the result.
        resume: Continue the run in ``out`` if there is one.
        on_event: Called with every event of the run; it may return ``hp.Stop("reason")`` to stop the
            run. A resumed run starts with the recorded events.
        track: Names of trackers (``"tensorboard"``, ``"mlflow"``, ``"wandb"``), or objects with
            ``begin``, ``log`` and ``end``.
        progress: Show a bar on a terminal or in a notebook, and a line every 30 seconds in a log.
        **settings: Settings of the algorithm, as in ``hp.run("fedprox", clients, mu=0.1)``. If a
            setting has the name of a keyword of ``run``, pass it to an instance: ``hp.FedReG(weights=…)``.
    """
    if engine == "pool":
        exit_if_script_is_imported()
    how = {k: v for k, v in locals().items() if k in SPEC_KEYWORDS}
    spec = make_spec(algorithm, federation, how, settings)
    prepare_engine(spec.config.engine)
    plan = spec.build_plan()
    select_trackers(track)  # raises if a tracker is not installed
    temporary = None if out is not None else create_temporary_folder()
    folder = RunFolder(temporary or Path(str(out)))
    try:
        if resume and folder.config_file.exists():
            spec.open_folder(folder, "out=")
        else:
            folder.create(spec.format_config(), from_python=True)
        with show_progress(progress) as shown:
            run_one(spec, folder, plan, [on_event], shown, track)
    except BaseException:
        if temporary is not None:
            remove_temporary_folder(temporary)
        raise
    finally:
        folder.close()
    return Result(folder, lambda: plan, temporary)


# keywords of hp.run that do not describe the run itself
OTHER_KEYWORDS = (
    *("algorithm", "federation", "settings"),
    *("out", "resume", "on_event", "track", "progress"),
)
SPEC_KEYWORDS = [k for k in signature(run).parameters if k not in OTHER_KEYWORDS]


# From keywords to a RunSpec ---------------------------------------------------------------------


def make_spec(
    algorithm: AlgorithmLike,
    federation: Federation,
    how: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> RunSpec:
    """Build the RunSpec for a call of ``hp.run``; ``how`` holds the call's keywords."""
    check_federation(federation)
    how = {k: signature(run).parameters[k].default for k in SPEC_KEYWORDS} | dict(how)
    check_loss_and_metrics(how["loss"], how["metrics"])
    chosen, name = choose_algorithm(algorithm, settings, SPEC_KEYWORDS)
    model, metrics = resolve_models(how["model"], federation), how["metrics"]
    how["model"] = model
    named_metrics = metrics is not None and all(isinstance(m, str) for m in metrics)
    sections = make_sections(how, list(metrics) if named_metrics else None)
    config = resolve_config(sections, trust=True)  # the program itself names the model
    usual = choose_default_training(federation.name, federation.shape)
    training, training_of = resolve_training(how["training"], usual, federation)
    given_rule = not isinstance(how["participation"], int | float)
    config = replace(
        config,
        algorithm=chosen,
        algorithm_name=name,
        data=make_data_section(federation),
        training=training,
        participation=make_participation(how["participation"], len(federation.clients)),
        faults=how["faults"] or Faults(),
        speeds=how["speeds"] or Speeds(),
        protections=tuple(how["protection"]),
        attack=how["attack"] or Attack(),
    )
    kind = {"kind": how["participation"]} if given_rule else None
    check_participation_kind(config.protections, kind)
    own_model = None if isinstance(model, str) or names_every_model(model) else model
    own_metrics = None if named_metrics else metrics
    own = (own_model, how["loss"], own_metrics, training_of)
    return RunSpec(settle_protections(config), federation, *own).load_data()


def make_sections(how: Mapping[str, Any], metrics: list[str] | None) -> dict[str, Any]:
    """Return the configuration's sections that the keywords of ``hp.run`` set, as plain dicts."""
    model, init = how["model"], how["init"]
    groups = (
        [{"name": name, "clients": [c]} for c, name in model.items()]
        if names_every_model(model)
        else None
    )
    return {
        "seed": how["seed"],
        "rounds": how["rounds"],
        "model": {
            "name": model if isinstance(model, str) else None,
            "group": groups,
            "head_depth": how["head_depth"],
            "buffers": how["buffers"],
            "init": None if init is None else str(init),
        },
        "aggregation": {"weights": how["weights"]},
        "evaluation": {
            "every": how["evaluate_every"],
            "new_client_rounds": how["new_client_rounds"],
            "keep_best": how["keep_best"],
            "choose_by": how["choose_by"],
            "metrics": metrics,
        },
        "stop": {"patience": how["patience"]},
        "engine": {
            "name": how["engine"],
            "workers": how["workers"],
            **asdict(how["cluster"] or Cluster()),
            "accelerator": how["accelerator"],
            "precision": how["precision"],
            "deterministic": how["deterministic"],
            "fast": how["fast"],
        },
    }


def make_data_section(federation: Federation) -> DataSection:
    """Return a federation's section [data]; if settings cannot fully describe the data, only the main settings."""
    if federation.recipe is not None:
        return DataSection(**federation.recipe)
    known: dict[str, Any] = {"name": federation.name, "clients": len(federation.clients)}
    if federation.transform is not None:
        moves = federation.transform.moves
        known["transform"] = federation.transform.name
        known["frozen_augment"] = moves is not None and moves.frozen
    return DataSection(**known, task=federation.task)


def choose_algorithm(
    algorithm: AlgorithmLike, settings: Mapping[str, Any], keywords: Collection[str]
) -> tuple[Algorithm, str]:
    """Return an instance of the algorithm with these settings, and the algorithm's name.

    ``keywords`` are the accepted keywords of the call, to suggest one for a misspelt setting.
    """
    if isinstance(algorithm, Algorithm):
        name = type(algorithm).__name__
        for key, value in settings.items():
            check_renamed_keyword(key, value)
            raise ConfigError(f"{key}: pass it to the instance, as in {name}({key}={value!r})")
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
    """Raise ConfigError for a keyword that is not a setting of the algorithm; the message says where it belongs."""
    known = [f.name for f in list_settings(cls)]
    for key, value in settings.items():
        if key in known:
            continue
        check_renamed_keyword(key, value)
        if key in (f.name for f in list_settings(Training)):
            raise ConfigError(f"{key}: write training=hp.Training({key}={value!r})")
        if key in signature(federate).parameters:
            raise ConfigError(f"{key}: pass it to hp.federate, as in {key}={value!r}")
        near = suggest_or_list(key, [*known, *keywords])
        raise ConfigError(
            f"{key}: neither a keyword of hp.run nor a setting of {cls.__name__}{near}"
        )


def check_renamed_keyword(key: str, value: object) -> None:
    """Raise ConfigError for a keyword of ``hp.run`` that has been renamed."""
    if key in RENAMED_KEYWORDS:
        raise ConfigError(
            f"{key}: was renamed to {RENAMED_KEYWORDS[key]}; write {RENAMED_KEYWORDS[key]}={value!r}"
        )


def check_federation(federation: object) -> None:
    """Raise ConfigError if this is not a federation; the message shows how to call ``hp.federate``."""
    if not isinstance(federation, Federation):
        data = repr(federation) if isinstance(federation, str | Path) else "…"
        what = data if data != "…" else type(federation).__name__
        raise ConfigError(
            f"federation: must be clients with data, not {what}; pass hp.federate({data})"
        )


def resolve_training(
    training: TrainingLike | None, usual: Training, federation: Federation
) -> tuple[Training, dict[str, Training]]:
    """Return the default training settings and, by name, the settings of each client that differs from them."""
    if isinstance(training, Training) and training.has_own_functions:
        plain = replace(training, own_optimizer=None, own_schedule=None)
        return plain, dict.fromkeys(federation.include_new_clients().clients, training)
    if training is None or isinstance(training, Training):
        return training or usual, {}
    if isinstance(training, Mapping):
        named = {str(client): how for client, how in training.items()}
        if named and named.keys() <= {f.name for f in list_settings(Training)} - set(
            federation.train
        ):
            settings = ", ".join(f"{key}={value!r}" for key, value in named.items())
            raise ConfigError(f"training: a dict is by client; write hp.Training({settings})")
    elif callable(training) and not isinstance(training, type):
        named = {client: training(client) for client in federation.train}
    else:
        raise ConfigError(
            "training: must be hp.Training(…), a dict of them by client or a function of the client,"
            f" not {training!r}"
        )
    for client, how in named.items():
        if client not in federation.train:
            near = suggest_or_list(client, federation.train)
            raise ConfigError(f"training: there is no client '{client}'{near}")
        if not isinstance(how, Training):
            raise ConfigError(f"training of client '{client}': must be hp.Training(…), not {how!r}")
    return usual, named


def make_participation(participation: Any, clients: int) -> Participation:
    """Return the participation rule for a share or number of clients, a function, or a rule itself."""
    if isinstance(participation, bool):
        raise ConfigError("participation: must be a share, a number or a rule, not a boolean")
    if hasattr(participation, "chosen") and not isinstance(participation, type):
        rule: Participation = participation
        return rule
    if callable(participation) and not isinstance(participation, type):
        return FunctionParticipation(participation)
    if not isinstance(participation, int | float):
        raise ConfigError(
            "participation: must be a share, a number, a rule such as hp.Uniform(count=5) or a function"
            f" of (t, clients, seed), not {participation!r}"
        )
    if isinstance(participation, int) and participation == 1 < clients:
        warnings.warn(
            "participation=1 means one client in every round; pass 1.0 for all clients, or"
            " hp.Uniform(count=1) if you mean one",
            stacklevel=4,
        )
    key = "count" if isinstance(participation, int) else "rate"
    rule = construct(Uniform, {key: participation}, "participation")
    rule.compute_sample_size(clients)  # raises if there are fewer clients
    return rule


# One run ----------------------------------------------------------------------------------------


def run_one(
    spec: RunSpec,
    folder: RunFolder,
    plan: Plan | None = None,
    hooks: Sequence[Hook] = (),
    progress: RunsProgress | None = None,
    track: Sequence[str | Tracker] = (),
    warn: Callable[[str], None] = warnings.warn,
) -> Summary:
    """Execute one run from its last commit to the end, and show its progress.

    The folder must be locked. ``plan`` is the result of ``spec.build_plan()``, if the caller has it.
    """
    plan, engine = plan or spec.build_plan(), spec.config.engine
    status = None
    if progress is not None:
        sizes = list(plan.federation.sizes("test").values())
        label = f"{spec.label} on {engine.choose_compute().device}"
        status = progress.begin_run(label, plan.rounds, sizes)
    listeners: list[Hook] = [*([] if status is None else [status]), *hooks]
    on_phase = (lambda phase: None) if status is None else status.name_phase
    return execute_plan(plan, folder, engine, listeners, track, warn, on_phase)


def execute_plan(
    plan: Plan,
    folder: RunFolder,
    engine: Engine | EngineSection,
    hooks: Sequence[Hook] = (),
    track: Sequence[str | Tracker] = (),
    warn: Callable[[str], None] = warnings.warn,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Summary:
    """Run the remaining rounds of a plan and write ``result.json``; the folder must be locked.

    ``engine`` is an engine, or the section [engine]. Until the first event, ``on_phase`` receives
    short texts that describe the current step, such as "checking the data". Raise AbandonedError if
    a hook abandons the run.
    """
    on_phase("checking the data")
    compute = engine.choose_compute() if isinstance(engine, EngineSection) else ON_CPU
    events = list(folder.iterate_events())
    check_events(plan, folder, events, compute, warn)
    if plan.needs_secret:
        plan = replace(plan, secret=load_secret(folder.path, not events, warn))
    if not folder.partition_file.exists():
        plan.federation.save_partition(folder.partition_file, plan.net_of)
        if plan.federation.columns:
            write_json(folder.path / "columns.json", list(map(asdict, plan.federation.columns)))
    patience = [] if plan.patience is None else [Patience(plan.choose_by, plan.patience)]
    with follow_run(select_trackers(track), describe_tracked_run(folder), warn) as follow:
        notify = Hooks([follow, *hooks, *patience])
        if events and not is_finished(events):  # drop what was recorded after the last commit
            folder.restore_newest_commit(plan.federation.sizes())
        for event in folder.iterate_events():
            (follow if is_finished(events) else notify)(event)
        if not is_finished(events):
            check_same_initial_model(plan, events)
            if isinstance(engine, EngineSection):
                on_phase("starting" if engine.name == "serial" else "starting the workers")
                spec = EngineSpec(engine.name, engine.workers, engine, compute)
                engine = create_engine(spec, plan, folder.client_store)
            with engine as entered, spare_garbage_collector():
                first = f"round {len(select_rounds(events)) + 1}" if events else "first evaluation"
                on_phase(first)
                for event in run_rounds(plan, entered, folder, compute, notify.get_reason):
                    notify(event)
            events = list(folder.iterate_events())
        summary = summarise(events)
        write_json(folder.result_file, summary.to_dict())
        record_below_local(folder.path)
        follow.end(summary)
    return summary


@contextmanager
def spare_garbage_collector() -> Iterator[None]:
    """Exempt the objects that exist now from garbage collection inside the ``with`` block, to save time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def describe_tracked_run(folder: RunFolder) -> TrackedRun:
    """Describe a run for trackers: its name, folder and settings."""
    config = tomllib.loads(folder.read_config_text())
    plain = {
        k: v if isinstance(v, bool | int | float) else str(v) for k, v in flatten_config(config)
    }
    return TrackedRun(folder.path.absolute().name, folder.path, plain)


def is_finished(events: Sequence[Event]) -> bool:
    """Return True if the events include the end of the run."""
    return get_end(events) is not None


# Checks before a run continues ------------------------------------------------------------------


def check_events(
    plan: Plan,
    folder: RunFolder,
    events: list[Event],
    compute: Compute,
    warn: Callable[[str], None],
) -> None:
    """Raise FolderError if the recorded events belong to a different run from the plan's; warn about risks."""
    if not all(map(is_event, events)):
        raise FolderError(f"{folder.events_file} is damaged: a line is not an event")
    folder.client_store.check_names(plan.federation.train)
    if events:
        check_same_data(plan, events)
    if not is_finished(events):
        remarks = (describe_other_accelerator(events, compute), describe_large_delta(plan))
        for remark in filter(None, remarks):
            warn(remark)


def check_same_data(plan: Plan, events: list[Event]) -> None:
    """Raise FolderError if the data, or an availability or speed file, has changed since the run started."""
    start = get_start(events)
    if start.get("data_sha256") != plan.federation.sha256:
        raise FolderError(
            "the data differ from those the run was started with (data_sha256 differs);"
            " restore them, or start a new run"
        )
    for file, sha256 in plan.file_digests.items():
        if start.get("files", {}).get(file) != sha256:
            raise FolderError(
                f"{file} has changed since the run was started (its sha256 differs);"
                " restore it, or start a new run"
            )


def check_same_initial_model(plan: Plan, events: list[Event]) -> None:
    """Raise FolderError if the initial net differs from the one that the run was started with."""
    began = get_start(events).get("start_sha256") if events else None
    if began is not None and began != plan.start_sha256:
        raise FolderError(
            "the net is not the one the run was started with (start_sha256 differs);"
            " restore the model or its checkpoint, or start a new run"
        )


def describe_other_accelerator(events: Sequence[Event], compute: Compute) -> str:
    """Return a warning if a run continues on another kind of accelerator, otherwise an empty string."""
    start = get_start(events) if events else None
    if start is None:
        return ""
    before, now = start.get("device", "cpu").split(":")[0], compute.device.type
    if before == now:
        return ""
    return (
        f"the run was started on {before} and continues on {now}: numbers may differ in their last bits from"
        f" a run on {before} alone"
    )


def describe_large_delta(plan: Plan) -> str:
    """Return a warning if δ is too large for the number of clients or examples, otherwise an empty string."""
    run, sizes = describe_plan(plan), plan.federation.sizes().values()
    for protection in plan.protections:
        promise = protection.promise(run)
        if promise is None:
            continue
        count = max(sizes) if promise.unit == "example" else len(sizes)
        if promise.delta >= 1 / (10 * count):
            whose = " of a client" if promise.unit == "example" else ""
            lower = 10 ** (ceil(log10(1 / (10 * count))) - 1)
            return (
                f"protection.{get_kind(protection)}.delta: {promise.delta:g} is not well below one over"
                f" the number of {promise.unit}s{whose} ({count:,}); set it to {lower:g} or less"
            )
    return ""
