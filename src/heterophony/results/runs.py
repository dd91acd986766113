"""Load run folders for analysis, with labels, series, state and curves."""

from __future__ import annotations

import json
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from ..algorithms import get_display_name
from ..core.errors import FolderError, HeterophonyError
from ..core.files import (
    find_archive,
    is_file,
    read_text_file,
    translate_disk_errors,
    unpack_archive,
)
from ..core.settings import flatten_config
from ..runs.curves import compute_curves, compute_loss_curves
from ..runs.events import Event, StartEvent, get_end, get_start
from ..runs.run_index import CONFIG_FILE, EVENTS_FILE, list_member_runs, read_events
from ..runs.summary import Summary, describe_run_state, summarise, summarise_so_far
from .boards import BoardStatus, read_board_status

Curve = list[tuple[int, float]]
DAMAGED = "cannot be shown: its files are damaged, or were written by another version"
PACKED_RUNS = "runs.zip"  # archive with run folders of the folder that contains it
# Runs that differ only in these are the same experiment (the algorithm is in the label anyway).
IGNORED_SETTINGS = ("seed", "algorithm.name", "engine.")


@dataclass(frozen=True)
class Run:
    """A loaded run; runs that differ only in their seed share the name ``series``."""

    folder: Path
    label: str
    series: str
    config: dict[str, Any]
    events: list[Event]
    curves: dict[str, Curve]
    summary: Summary | None  # None for an unfinished run
    boards: BoardStatus | None = None  # None unless the run is on boards

    @property
    def start(self) -> StartEvent:
        """The event with which the run began."""
        return get_start(self.events)

    @property
    def algorithm(self) -> str:
        """The name of the algorithm in the configuration."""
        return str(self.start["algorithm"])

    @property
    def display_name(self) -> str:
        """The display name of the algorithm."""
        return get_display_name(self.algorithm)

    @property
    def seed(self) -> int:
        return int(self.start["seed"])

    @property
    def state(self) -> str:
        """``finished``, or ``round 3 of 20``."""
        return describe_run_state(self.events)

    @cached_property
    def current_summary(self) -> Summary | None:
        """The summary of a finished or unfinished run; None before the first evaluation."""
        return self.summary or summarise_so_far(self.events)

    @cached_property
    def client_mean_curves(self) -> dict[str, Curve]:
        """The curves in which all clients have the same weight, regardless of their test set sizes."""
        return compute_curves(self.events, "mean")

    @cached_property
    def loss_curves(self) -> dict[str, Curve]:
        """The loss over the rounds, by measure; empty in runs of early versions."""
        return compute_loss_curves(self.events)


def load_run(folder: Path) -> Run:
    """Load one run folder; raise FolderError if it is damaged."""
    try:
        return read_run_files(folder)
    except HeterophonyError:
        raise
    except Exception as error:  # a damaged file may raise any error
        raise FolderError(f"{folder} {DAMAGED}") from error


def read_run_files(folder: Path) -> Run:
    """Read the files of a run folder, labelled with the algorithm; damaged files raise many kinds of errors."""
    config, lines = folder / CONFIG_FILE, folder / EVENTS_FILE
    if not is_file(config):
        raise FolderError(f"{folder} is not a run folder: it has no config.toml")
    events = list(read_events(lines))
    if not events:
        raise FolderError(f"{folder} has not started: it has no events yet")
    try:
        name = get_display_name(get_start(events)["algorithm"])
    except FolderError:
        raise FolderError(
            f"{lines} is damaged: it does not begin with the start of a run"
        ) from None
    summary = summarise(events) if get_end(events) else None
    settings, boards = read_config_table(config), read_board_status(folder)
    return Run(folder, name, name, settings, events, compute_curves(events), summary, boards)


def read_config_table(path: Path) -> dict[str, Any]:
    """Read the ``config.toml`` of a run as nested plain data."""
    try:
        with translate_disk_errors(path):
            table = tomllib.loads(read_text_file(path))
        list(flatten_config(table))  # otherwise labels and comparisons would raise it later
    except ValueError as error:
        raise FolderError(f"{path} is damaged: {error}") from None
    except RecursionError:
        raise FolderError(f"{path} is damaged: its sections are nested too deep") from None
    return table


def load_runs(
    paths: Iterable[Path],
    note: Callable[[str], None] = warnings.warn,
    check: Callable[[Run], object] = lambda run: None,
) -> list[Run]:
    """Load the runs at these paths and label them.

    A path is a run folder, a folder of run folders, or a .zip of run folders; a folder may have some runs
    packed in its ``runs.zip``. A damaged run in a folder of runs is left out, and ``note`` is called
    with the reason. ``check`` raises an error for a run that cannot be shown.
    """
    runs: dict[Path, Run] = {}
    for path in paths:
        loaded, problems = load_runs_at(path, check)
        if problems and (not loaded or is_file(path / CONFIG_FILE)):
            raise FolderError(problems[0])
        for problem in problems:
            note(f"left out: {problem}")
        runs |= loaded
    return label_runs(list(runs.values()))


def load_runs_at(path: Path, check: Callable[[Run], object]) -> tuple[dict[Path, Run], list[str]]:
    """Load the runs at one path; packed runs are loaded as if their archive were unpacked."""
    archive = None if is_file(path / CONFIG_FILE) else find_archive(path, PACKED_RUNS)
    if archive is None:
        return load_readable_runs(find_started_folders(path), check)
    with unpack_archive(archive) as folder:
        loaded, problems = load_readable_runs(find_started_folders(path, folder), check)
    place = archive.parent.resolve()
    runs = [
        replace(run, folder=place / run.folder.name) if run.folder.parent == folder else run
        for run in loaded.values()
    ]
    return {run.folder: run for run in runs}, [
        p.replace(str(folder), str(archive)) for p in problems
    ]


def load_readable_runs(
    folders: Iterable[Path], check: Callable[[Run], object]
) -> tuple[dict[Path, Run], list[str]]:
    """Load the runs that can be read and shown; also return what is wrong with the others."""
    runs, problems = {}, []
    for folder in folders:
        try:
            run = load_run(folder.resolve())
            check(run)
            runs[run.folder] = run
        except HeterophonyError as error:
            problems.append(str(error))
        except Exception:  # a damaged file may raise any error
            problems.append(f"{folder} {DAMAGED}")
    return runs, problems


def find_started_folders(path: Path, unpacked: Path | None = None) -> list[Path]:
    """Return the started run folders in a path, or the path itself if it is a run folder.

    ``unpacked`` is the folder with the path's unpacked archive; a run in both is read from the path.
    """
    if is_file(path / CONFIG_FILE):
        return [path]
    if unpacked is None and not path.is_dir():
        raise FolderError(f"{path} does not exist; name a run folder, or a folder of run folders")
    parents = [path] if unpacked is None else [unpacked, path]
    with translate_disk_errors(path):
        members = {f.name: f for parent in parents for f in list_member_runs(parent)}
        started = [f for f in members.values() if has_started(f / EVENTS_FILE)]
    if not started:
        raise FolderError(f"{path} holds no run that has started; start one with `heterophony run`")
    return started


def has_started(events: Path) -> bool:
    """Return True if a run has started: it has an event, or its event file cannot be read."""
    try:
        return any(True for _ in read_events(events))
    except HeterophonyError:
        return True  # the error is reported when the run is loaded


# Labels -------------------------------------------------------------------------------------


def label_runs(runs: Sequence[Run]) -> list[Run]:
    """Label runs by algorithm and, where needed, by differing settings, seed and state.

    An unfinished run becomes a series of its own, and so does a second run with the same seed, so that
    neither enters a mean over seeds.
    """
    names = build_base_labels(runs)
    shared, seen, out = Counter(names), Counter[tuple[str, int]](), []
    for run, name in zip(runs, names, strict=True):
        label = f"{name}, seed {run.seed}" if shared[name] > 1 else name
        seen[name, run.seed] += 1
        repeated = seen[name, run.seed]
        if repeated > 1:
            label += f", run {repeated}"
        if not run.summary:
            label += f", {run.state}"
        series = name if run.summary and repeated == 1 else label
        out.append(replace(run, label=label, series=series))
    return out


def build_base_labels(runs: Sequence[Run]) -> list[str]:
    """Label each run by its algorithm and the settings that differ between runs of this algorithm."""
    settings = [select_experiment_settings(run) for run in runs]
    by_algorithm: dict[str, list[dict[str, str]]] = {}
    for run, own in zip(runs, settings, strict=True):
        by_algorithm.setdefault(run.algorithm, []).append(own)
    differing = {name: find_differing_settings(group) for name, group in by_algorithm.items()}
    names = choose_distinct_names(by_algorithm)
    return [
        " ".join([names[run.algorithm], *format_settings(own, differing[run.algorithm])])
        for run, own in zip(runs, settings, strict=True)
    ]


def choose_distinct_names(algorithms: Iterable[str]) -> dict[str, str]:
    """Return a distinct display name for each algorithm, even if a user's own algorithm is also called FedAvg."""
    names = {algorithm: get_display_name(algorithm) for algorithm in algorithms}
    uses = Counter(names.values())
    return {k: name if uses[name] == 1 else f"{name} ({k})" for k, name in names.items()}


def find_differing_settings(runs: Sequence[dict[str, str]]) -> set[str]:
    """Return the keys of settings whose values differ between runs."""
    keys = {k for settings in runs for k in settings}
    return {k for k in keys if len({settings.get(k) for settings in runs}) > 1}


def format_settings(settings: dict[str, str], keys: set[str]) -> list[str]:
    """Format the settings that a run's label shows."""
    return [f"{k.removeprefix('algorithm.')}={v}" for k, v in settings.items() if k in keys]


def select_experiment_settings(run: Run) -> dict[str, str]:
    """Return a run's settings that define its experiment: all but ``IGNORED_SETTINGS``."""
    return {
        k: v for k, v in iterate_setting_texts(run.config) if not k.startswith(IGNORED_SETTINGS)
    }


def iterate_setting_texts(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the text of every setting of a configuration."""
    for key, value in flatten_config(config):
        if key == "model.group":  # the seed decides which clients have which net
            yield key, ", ".join(str(group.get("name")) for group in value)
            continue
        yield key, value if isinstance(value, str) else json.dumps(value, default=str)


# Seeds --------------------------------------------------------------------------------------


def group_by_series(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs by series; series and runs keep their order."""
    out: dict[str, list[Run]] = {}
    for run in runs:
        out.setdefault(run.series, []).append(run)
    return out


def compute_mean_curve(runs: Sequence[Run], measure: str) -> Curve:
    """Average a curve over the runs, at the rounds in which all runs were evaluated."""
    lines = [dict(run.curves[measure]) for run in runs]
    rounds = sorted(set.intersection(*(set(line) for line in lines)))
    return [(t, fmean(line[t] for line in lines)) for t in rounds]
