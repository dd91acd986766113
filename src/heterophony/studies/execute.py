"""Run a plan in a folder on an engine, from its last commit to its result."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from math import ceil, log10

from ..core.accelerator import ON_CPU, Compute
from ..core.errors import FolderError
from ..core.files import load_secret, write_json
from ..core.settings import flatten_config
from ..engines.base import LOCAL_CLUSTER, Cluster, Engine, EngineSpec, create_engine
from ..jobs.plan import Plan, describe_plan
from ..protection import get_kind
from ..runs.events import Event, get_end, get_start, is_event, select_rounds
from ..runs.folder import RunFolder
from ..runs.loop import run_rounds
from ..runs.summary import Summary, summarise
from ..trackers import NamedTracker, TrackedRun
from ..trackers.following import follow_run


def execute_plan(
    plan: Plan,
    folder: RunFolder,
    where: str | Engine = "serial",
    workers: int | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    trackers: Sequence[NamedTracker] = (),
    warn: Callable[[str], None] = warnings.warn,
    cluster: Cluster = LOCAL_CLUSTER,
    on_phase: Callable[[str], None] = lambda phase: None,
    compute: Compute = ON_CPU,
) -> Summary:
    """Run the rounds that are left and write ``result.json``. The folder must be locked.

    ``where`` is an engine, or the name of one; ``workers``, ``cluster`` and ``compute`` are for a name.
    ``on_phase`` is called with what is going on before the first event.
    """
    events = list(folder.iterate_events())
    on_phase("checking the data")
    if not all(map(is_event, events)):
        raise FolderError(f"{folder.events_file} is damaged: a line is not an event")
    check_same_data(plan, events)
    check_same_files(plan, events)
    folder.client_store.check_names(plan.federation.train)
    if (other := describe_other_device(events, compute)) and not is_finished(events):
        warn(other)
    if (large := describe_large_delta(plan)) and not is_finished(events):
        warn(large)
    if plan.needs_secret:
        plan = replace(plan, secret=load_secret(folder.path, create=not events))
    if not folder.partition_file.exists():
        plan.federation.save_partition(folder.partition_file)
        if plan.federation.columns:
            write_json(folder.path / "columns.json", list(map(asdict, plan.federation.columns)))
    with follow_run(trackers, describe_tracked_run(folder), folder.iterate_events, warn) as follow:
        if not is_finished(events):
            check_same_initial_model(plan, events)
            engine = where
            if isinstance(engine, str):
                on_phase("starting" if engine == "serial" else "starting the workers")
                spec = EngineSpec(engine, workers, cluster, compute)
                engine = create_engine(spec, plan, folder.client_store)
            with engine as entered:
                first = f"round {len(select_rounds(events)) + 1}" if events else "first evaluation"
                on_phase(first)
                for event in run_rounds(plan, entered, folder, compute):
                    follow(event)
                    on_event(event)
            events = list(folder.iterate_events())
        summary = summarise(events)
        write_json(folder.result_file, summary.to_dict())
        follow.end(summary)
    return summary


def describe_tracked_run(folder: RunFolder) -> TrackedRun:
    """Describe the run for trackers: its name, folder and settings."""
    config = tomllib.loads(folder.read_config_text())
    plain = {
        k: v if isinstance(v, bool | int | float) else str(v) for k, v in flatten_config(config)
    }
    return TrackedRun(folder.path.absolute().name, folder.path, plain)


def is_finished(events: list[Event]) -> bool:
    """Has the run reached its end?"""
    return get_end(events) is not None


def check_same_data(plan: Plan, events: list[Event]) -> None:
    """Refuse to continue a run with other data than it began with."""
    if events and get_start(events).get("data_sha256") != plan.federation.sha256:
        raise FolderError(
            "the data are not those the run began with (data_sha256 differs);"
            " bring them back, or start a new run"
        )


def check_same_files(plan: Plan, events: list[Event]) -> None:
    """Refuse to continue a run with other files of availability or device speeds."""
    for file, sha256 in plan.file_digests.items():
        if events and get_start(events).get("files", {}).get(file) != sha256:
            raise FolderError(
                f"{file} is not what it was when the run began (its sha256 differs);"
                " bring it back, or start a new run"
            )


def describe_other_device(events: list[Event], compute: Compute) -> str:
    """Say that a run continues on another kind of device than it began on; nothing if it does not."""
    start = get_start(events) if events else None
    if start is None:
        return ""
    before, now = start.get("device", "cpu").split(":")[0], compute.device.type
    if before == now:
        return ""
    return (
        f"the run began on {before} and continues on {now}: numbers may differ in their last bits from"
        f" a run on {before} alone"
    )


def describe_large_delta(plan: Plan) -> str:
    """Say that δ is too large for the number of clients or examples; nothing if it is not."""
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
                f"protection.{get_kind(protection)}.delta: {promise.delta:g} is not well below one by"
                f" the number of {promise.unit}s{whose} ({count:,}); set it to {lower:g} or less"
            )
    return ""


def check_same_initial_model(plan: Plan, events: list[Event]) -> None:
    """Refuse to continue a run with another initial net: clients that join late begin with it."""
    began = get_start(events).get("start_sha256") if events else None  # older runs do not record it
    if began is not None and began != plan.start_sha256:
        raise FolderError(
            "the net is not the one the run began with (start_sha256 differs);"
            " bring back the model or its checkpoint, or start a new run"
        )
