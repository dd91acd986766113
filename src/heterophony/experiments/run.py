"""``run``: run an algorithm on a federation from Python, in a folder that an interrupted run can resume."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from ..algorithms import label_algorithm
from ..config.old_settings import parse_settings_text
from ..config.participation import DEFAULT_RATE
from ..config.protection import check_kind_chosen, settle_protections
from ..config.reading import resolve_config
from ..core.algorithm import Algorithm
from ..core.compute import Precision
from ..core.errors import ConfigError, FolderError
from ..core.fields import construct
from ..core.metrics import MetricFunction
from ..core.tasks import Criterion
from ..core.training import Training
from ..data.federation import Federation
from ..data.sources import choose_default_training
from ..engines.base import Cluster, prepare_engine
from ..engines.child_processes import end_if_script_is_imported
from ..population.attacks import Attack
from ..population.device_speeds import Devices
from ..population.faults import Faults
from ..population.participation import Participation, Uniform
from ..protection.base import Protection
from ..runs.events import Event
from ..runs.result import Result
from ..runs.store import RunFolder
from ..trackers import Tracker, select_trackers
from .algorithm_choice import choose_algorithm
from .execute import execute_plan
from .own_functions import check_kinds, check_own_functions
from .own_model import prepare_own_net
from .progress import combine_listeners, show_progress
from .run_text import Model, format_run_toml, list_accepted_texts, name_own_functions


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

    ``device`` is "auto", "cpu", "cuda", "cuda:1" or "mps": where clients' nets compute.

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
