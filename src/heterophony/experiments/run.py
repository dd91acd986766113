"""``run``: an algorithm on a federation, in a folder that survives anything, from Python."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tomli_w
from torch import nn

from ..algorithms import get_algorithm_class as named
from ..config.checkpoint import begin_with_checkpoint
from ..config.config import choose_default_model
from ..config.sections import (
    AggregationSection,
    EngineSection,
    EvaluationSection,
    ModelSection,
    TopSection,
)
from ..core.algorithm import Algorithm
from ..core.client import Training
from ..core.errors import ConfigError, FolderError
from ..core.fields import construct
from ..core.net import Net, split
from ..data.federation import Federation
from ..engines.base import Cluster, check_engine_installed
from ..jobs.plan import Plan
from ..models import get_default_head_depth, get_model_builder
from ..population.device_speeds import Devices
from ..population.faults import Faults, check_participation
from ..population.participation import Participation, Uniform
from ..run.result import Result
from ..run.store import RunFolder
from ..run.summary import Event
from ..trackers import Tracker, select_trackers
from .execute import execute_plan


def run(
    algorithm: str | Algorithm,
    federation: Federation,
    *,
    model: str | nn.Module | Callable[[], nn.Module] | None = None,
    rounds: int = 100,
    participation: float | int | Participation = 1.0,
    training: Training | None = None,
    seed: int = 0,
    head_depth: int | None = None,
    evaluate_every: int = 1,
    weights: Literal["samples", "uniform"] = "samples",
    buffers: Literal["local", "average"] = "local",
    new_client_rounds: int = 1,
    init: str | Path | None = None,
    faults: Faults | None = None,
    devices: Devices | None = None,
    engine: str = "serial",
    workers: int | None = None,
    cluster: Cluster | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
    track: Sequence[str | Tracker] = (),
) -> Result:
    """One run. ``participation`` is a share (float), a number (int) or a rule.

    ``model`` is a name, a module (its weights are the start) or a function that makes one.
    Without ``out`` the run lives in a temporary folder, as long as its result does. With
    ``resume``, an interrupted run in ``out`` goes on. ``weights`` says what a client counts in a
    mean, ``buffers`` whether BatchNorm's running statistics stay or travel. ``init`` is a checkpoint
    to begin with: of the same model, but for the head, which is new where its shape differs.
    Clients who join after training play ``new_client_rounds`` alone. ``faults`` says what goes
    wrong in a round, ``devices`` what the simulated clock counts. ``cluster`` says where the engine
    "ray" runs, if not on this machine, and what one job reserves there. ``track`` names trackers, or
    holds objects with ``begin``, ``log`` and ``end``.
    """
    how = named(algorithm)() if isinstance(algorithm, str) else algorithm
    there = cluster or Cluster()
    construct(EngineSection, {"name": engine, "workers": workers, **asdict(there)}, "engine")
    check_engine_installed(engine)
    said = {
        "head_depth": head_depth,
        "buffers": buffers,
        "init": None if init is None else str(init),
    }
    section = construct(ModelSection, said, "model")
    asked = {"every": evaluate_every, "new_client_rounds": new_client_rounds}
    measured = construct(EvaluationSection, asked, "evaluation")
    plan = Plan(
        how,
        begin_with_checkpoint(
            make_net_builder(model, federation, section.head_depth or how.head_depth), section.init
        ),
        federation,
        TopSection(rounds=rounds).rounds,
        make_participation(participation, len(federation.clients)),
        training or Training(),
        TopSection(seed=seed).seed,
        measured.every,
        construct(AggregationSection, {"weights": weights}, "aggregation").weights,
        section.buffers,
        measured.new_client_rounds,
        faults or Faults(),
        devices or Devices(),
    )
    check_participation(plan.faults, plan.devices, plan.participation, federation.clients)
    trackers = select_trackers(track)
    temporary = None if out is not None else tempfile.mkdtemp(prefix="heterophony-")
    folder = RunFolder(Path(temporary or str(out)))
    try:
        if not (resume and folder.config_file.exists()):
            folder.create(format_run_toml(plan, model, section.init))
        elif folder.reopen() != format_run_toml(plan, model, section.init):
            raise FolderError(f"{out} holds a run with other settings; choose another out=")
        summary = execute_plan(plan, folder, engine, workers, on_event, trackers, cluster=there)
    finally:
        folder.close()
    return Result(summary, plan, folder, temporary)


def make_net_builder(
    model: str | nn.Module | Callable[[], nn.Module] | None,
    federation: Federation,
    depth: int | None,
) -> Callable[[], Net]:
    """Something that makes the net, whatever the user gave."""
    if model is None or isinstance(model, str):
        build = get_model_builder(
            model or choose_default_model(federation.shape, federation.x.dtype)
        )
        depth = depth or get_default_head_depth(build)
        return partial(build, federation.shape, federation.classes, depth)
    return partial(as_net, model)


def as_net(model: nn.Module | Callable[[], nn.Module]) -> Net:
    made = deepcopy(model) if isinstance(model, nn.Module) else model()
    return made if isinstance(made, Net) else split(made)


def make_participation(participation: float | int | Participation, clients: int) -> Participation:
    if isinstance(participation, bool):
        raise ConfigError("participation: must be a share, a number or a rule, not a truth value")
    if isinstance(participation, int):
        rule = Uniform(count=participation)
    elif isinstance(participation, float):
        rule = Uniform(rate=participation)
    else:
        return participation
    rule.compute_sample_size(clients)
    return rule


def format_run_toml(plan: Plan, model: object, init: str | None = None) -> str:
    """The configuration of a run begun from Python: for people; its data are not in it."""
    federation, name = plan.federation, type(plan.algorithm).__name__.lower()
    net = model or choose_default_model(federation.shape, federation.x.dtype)
    rule = plan.participation
    how = federation.transform
    sections: dict[str, dict[str, Any]] = {
        "data": {
            "name": federation.name,
            "clients": len(federation.clients),
            "transform": how and how.name,
            "frozen_augment": how and how.moves and how.moves.frozen,
            "validation": sum(federation.sizes("validation").values()) or None,
        },
        "model": {
            "name": net if isinstance(net, str) else type(net).__name__,
            "buffers": plan.buffers,
            "init": init,
        },
        "algorithm": {"name": name, **asdict(plan.algorithm)},
        "local": asdict(plan.training),
        "aggregation": {"weights": plan.weights},
        "evaluation": {"every": plan.evaluate_every, "new_client_rounds": plan.new_client_rounds},
        # the default repr holds an address, which another process does not have
        "library": {"participation": repr(rule) if is_dataclass(rule) else type(rule).__name__},
    }
    if plan.faults != Faults():
        sections["library"]["faults"] = repr(plan.faults)
    if plan.devices != Devices():
        sections["library"]["devices"] = repr(plan.devices)
    told = {
        k: {n: to_toml_value(v) for n, v in d.items() if v is not None} for k, d in sections.items()
    }
    return tomli_w.dumps({"seed": plan.seed, "rounds": plan.rounds, **told})


def to_toml_value(value: Any) -> bool | int | float | str:
    """A setting as TOML can hold it; one of a user's own types as text."""
    return value if isinstance(value, bool | int | float | str) else repr(value)
