"""Runs in their folders: start or resume them one after the other, or side by side on a cluster."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from ..algorithms import find_algorithm_name, label_algorithm, shorten_name
from ..algorithms.centralized import Centralized
from ..config.config import Config, save_checkpoint
from ..config.old_settings import parse_settings_text
from ..config.reading import read_config, read_toml
from ..config.sections import EngineSection
from ..config.short_keys import expand_overrides, ignore_note
from ..core.accelerator import Compute
from ..core.errors import DivergedError, FolderError
from ..core.files import TEXT_LIMIT, read_regular_file, translate_disk_errors, write_json
from ..core.net import copy_module
from ..core.status_line import name_slow_work
from ..core.tensors import Tensors, load_into_net
from ..data.federation import Federation
from ..engines.base import AUTO_ADDRESS, ClusterShare, prepare_engine
from ..jobs.plan import Plan
from ..runs.events import Event
from ..runs.folder import RunFolder
from ..runs.summary import Summary, summarise
from ..trackers import select_trackers
from .execute import describe_other_device, execute_plan
from .parallel_runs import run_in_parallel
from .progress import EventListener, RunsProgress

LabelledRuns = Mapping[Path, tuple[str, int]]  # by folder: label and number of rounds


@dataclass(frozen=True)
class RunTask:
    """A run to start or to resume: its folder, its configuration and its plan."""

    folder: RunFolder
    config: Config
    plan: Plan

    @property
    def label(self) -> str:
        """Describe the run in a few words."""
        name = label_algorithm(self.config.algorithm, self.config.algorithm_name)
        return f"{name} (seed {self.config.top.seed})"


class FederationCache:
    """Builds each federation once, however many runs share it."""

    def __init__(self) -> None:
        self.federations: dict[tuple[str, int], Federation] = {}

    def get(self, config: Config) -> Federation:
        key = (repr(config.data), config.top.seed)
        if key not in self.federations:
            self.federations[key] = read_federation(config)
        return self.federations[key]


def read_federation(config: Config) -> Federation:
    """Read and partition the data; if that takes long, say so."""
    with name_slow_work(f"reading {config.data.name}"):
        return config.build_federation()


def create_or_reopen(folder: RunFolder, text: str, option: str) -> None:
    """Lock the folder for a run with this configuration: a new one, or the one it holds already."""
    if not folder.config_file.exists():
        folder.create(text)
    elif parse_settings_text(folder.reopen()) != parse_settings_text(text):
        folder.close()
        raise FolderError(f"{folder.path} holds a run with other settings; choose another {option}")


def load_tasks(
    folders: Sequence[RunFolder], overrides: Sequence[str] = (), trust: bool = False
) -> list[RunTask]:
    """Read the configurations of existing runs; ``overrides`` may change the section [engine].

    With ``trust``, algorithms from outside are imported.
    """
    federations, tasks = FederationCache(), []
    for folder in folders:
        text = folder.reopen()
        folder.close()
        if "\n[library]\n" in text:
            raise FolderError(
                f"{folder.path} was begun from Python with its own data; continue it there with"
                f" hp.run(..., out='{folder.path}', resume=True)"
            )
        config = read_begun_config(folder.config_file, overrides, trust)
        prepare_engine(config.engine)
        tasks.append(RunTask(folder, config, config.build_plan(federations.get(config))))
    return tasks


def read_begun_config(file: Path, overrides: Sequence[str] = (), trust: bool = False) -> Config:
    """Read the configuration of a run folder; refuse a cluster that ``overrides`` do not name.

    Whoever joins a cluster sends it their token, and the folder may come from somebody else. So an
    algorithm from outside is imported only with ``trust``.
    """
    with translate_disk_errors(file):
        read_regular_file(
            file, TEXT_LIMIT
        )  # raises if it is a pipe or a device, which could be read for ever
    config = read_config(file, overrides, trust=trust)
    address = config.engine.address
    asked = any(pair.partition("=")[0].strip() == "engine.address" for pair in overrides)
    if address not in (None, AUTO_ADDRESS) and not asked:
        raise FolderError(
            f"{file} names a Ray cluster, which would receive your token; if it is yours, add"
            f" -c {quote(f'engine.address={address}')}, or run here with -c engine.name=pool"
        )
    return config


def list_engine_settings(engine: EngineSection, overrides: Sequence[str] = ()) -> list[str]:
    """List the engine settings of a command: those of ``-c``, and the cluster that its file names."""
    own = [pair for pair in overrides if pair.strip().startswith("engine.")]
    if engine.address is None:
        return own
    return [*own, 'engine.name="ray"', f'engine.address="{engine.address}"']


def resume_tasks(
    tasks: Sequence[RunTask],
    progress: RunsProgress,
    workers: int | None = None,
    track: Sequence[str] = (),
    warn: Callable[[str], None] = warnings.warn,
) -> list[Summary]:
    """Run what is left of existing runs: side by side if all are on Ray, else one after the other."""
    if len(tasks) > 1 and not track and all(t.config.engine.name == "ray" for t in tasks):
        runs = {t.folder.path: (t.label, t.plan.rounds) for t in tasks}
        for reason in run_on_cluster(runs, tasks[0].config.engine, workers, progress).values():
            raise DivergedError(reason)
        return [summarise(list(t.folder.iterate_events())) for t in tasks]
    for task in tasks:
        task.folder.lock()
    return run_sequentially(tasks, progress, workers, track, warn)


def run_sequentially(
    tasks: Sequence[RunTask],
    progress: RunsProgress,
    workers: int | None = None,
    track: Sequence[str] = (),
    warn: Callable[[str], None] = warnings.warn,
) -> list[Summary]:
    """Run one task after the other, each on all workers. The folders must be locked."""
    summaries = []
    for task in tasks:
        engine, sizes = task.config.engine, task.plan.federation.sizes("test")
        compute = engine.choose_compute()
        label = f"{task.label} on {compute.device}"
        status = progress.begin_run(label, task.plan.rounds, list(sizes.values()))
        try:
            summaries.append(
                execute_plan(
                    task.plan,
                    task.folder,
                    engine.name,
                    workers or engine.workers,
                    status,
                    select_trackers(track),
                    warn,
                    engine,
                    status.name_phase,
                    compute,
                )
            )
        finally:
            task.folder.close()
    return summaries


def run_on_cluster(
    runs: LabelledRuns,
    engine: EngineSection,
    workers: int | None,
    progress: RunsProgress,
    overrides: Sequence[str] = (),
    warn: Callable[[str], None] = warnings.warn,
) -> dict[Path, str]:
    """Run side by side, each run on its share of a Ray cluster; return which diverged, and how."""
    from ..engines.ray.cluster import share_cluster

    with share_cluster(workers or engine.workers, engine, len(runs)) as (width, share):
        return run_side_by_side(runs, width, progress, overrides, warn, share)


def run_side_by_side(
    runs: LabelledRuns,
    width: int,
    progress: RunsProgress,
    overrides: Sequence[str] = (),
    warn: Callable[[str], None] = warnings.warn,
    share: ClusterShare | None = None,
) -> dict[Path, str]:
    """Run ``width`` runs at a time, a process each; return which diverged, and how.

    ``overrides`` are settings of the section [engine] in place of those in the folders.
    """
    listeners: dict[Path, EventListener] = {}
    computes = {path: read_compute(path, overrides) for path in runs}
    for path, compute in computes.items():
        if other := describe_other_device(list(RunFolder(path).iterate_events()), compute):
            warn(f"{path}: {other}")

    def on_event(path: Path, event: Event) -> None:
        if path not in listeners:
            label, rounds = runs[path]
            listeners[path] = progress.begin_run(f"{label} on {computes[path].device}", rounds)
        listeners[path](event)

    return run_in_parallel(list(runs), width, on_event, share, overrides)


def read_compute(folder: Path, overrides: Sequence[str]) -> Compute:
    """Read where the jobs of a run will compute; raise if the device is not here.

    ``read_begun_config`` has read the same file before.
    """
    config = read_config(RunFolder(folder).config_file, overrides, trust=True)
    return config.engine.choose_compute()


def build_comparison(
    algorithms: Sequence[str],
    seeds: Sequence[int] | None,
    file: Path | None,
    overrides: Sequence[str],
    note: Callable[[str], None] = ignore_note,
) -> dict[str, Config]:
    """Build the configuration of every run, by label; without seeds, use the configuration's own.

    ``note`` is told how short keys were understood. The caller's algorithms are trusted.
    """
    algorithms = [find_algorithm_name(name) for name in algorithms]
    labels, configs = label_algorithms(algorithms), {}
    overrides = expand_overrides(read_toml(file)[1], overrides, algorithms, note, True)
    for seed in [None] if seeds is None else seeds:
        for name in algorithms:
            own = [f'algorithm.name="{name}"', *([] if seed is None else [f"seed={seed}"])]
            config = read_config(file, [*overrides, *own], trust=True)
            configs[f"{labels[name]}-{config.top.seed}"] = config
    return configs


def label_algorithms(names: Sequence[str]) -> dict[str, str]:
    """Give every algorithm a label that is a folder's name; classes of the same name get longer ones."""
    names = list(dict.fromkeys(names))
    uses = Counter(map(shorten_name, names))
    return {n: s if uses[s := shorten_name(n)] == 1 else n.replace(":", ".") for n in names}


def prepare_run_folders(parent: Path, configs: Mapping[str, Config]) -> list[RunFolder]:
    """Write every configuration to its folder before any run begins, so that all can be resumed."""
    if (parent / "config.toml").exists():
        raise FolderError(f"{parent} is a single run; choose another --out")
    federations, folders = FederationCache(), []
    for label, config in configs.items():
        federation = federations.get(config)
        config.build_plan(federation)  # raises if the model does not fit the data
        text, folder = config.fill_model_defaults(federation).to_toml(), RunFolder(parent / label)
        if not folder.config_file.exists():
            folder.create(text)
            folder.close()
        elif not has_same_settings(folder.read_config_text(), text):
            raise FolderError(
                f"{folder.path} holds a run with other settings; choose another --out"
            )
        folders.append(folder)
    write_json(parent / "compare.json", {"runs": list(configs)})
    return folders


def has_same_settings(text: str, other: str) -> bool:
    """Do two configurations agree in everything but the section [engine]?"""
    return parse_non_engine_settings(text) == parse_non_engine_settings(other)


def parse_non_engine_settings(text: str) -> dict[str, Any]:
    """Parse all settings but those of the section [engine]; of a damaged text, none."""
    return {k: v for k, v in parse_settings_text(text).items() if k != "engine"}


def prepare_pretraining(config: Config, checkpoint: Path) -> RunTask:
    """Prepare the run that trains a checkpoint, in a locked folder beside it."""
    federation = read_federation(config)
    # before the algorithm changes: the head is as deep as the algorithm to come needs it
    config = config.fill_model_defaults(federation)
    if not isinstance(config.algorithm, Centralized):
        config = replace(config, algorithm=Centralized(), algorithm_name="centralized")
    folder = RunFolder(checkpoint.with_name(f"{checkpoint.name}.run"))
    plan = config.build_plan(federation)
    create_or_reopen(folder, config.to_toml(), "-o")
    return RunTask(folder, config, plan)


def save_pretrained(task: RunTask, checkpoint: Path) -> None:
    """Write the model of a finished pretraining as a checkpoint."""
    server = task.folder.restore_newest_commit(task.plan.federation.sizes())
    assert server is not None  # the last round has just been committed
    net = copy_module(task.plan.template)  # has what is given
    load_into_net(net, server.average | server.model)
    save_checkpoint(checkpoint, Tensors(net.state_dict()))
