"""Tune all algorithms, make the final runs with the chosen settings, and add them to the board."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heterophony.analysis.runs import Run, group_by_series, load_runs
from heterophony.cli.leaderboard import describe_seed
from heterophony.core.files import write_atomically
from heterophony.engines.child_processes import start_fork_server
from heterophony.experiments.compare import build_comparison, prepare_run_folders
from heterophony.experiments.leaderboard import write_entry
from heterophony.experiments.parallel_runs import run_in_parallel
from heterophony.experiments.progress import show_progress
from heterophony.experiments.search import run_search
from heterophony.experiments.tune import (
    ConfigRunner,
    TuneRequest,
    build_tune,
    write_chosen,
    write_request,
)
from heterophony.runs.tune_table import read_tune

from .numbers import TUNING_FILE, describe_tuning
from .plan import (
    DATA,
    SEEDS,
    TUNE_SEED,
    DataPlan,
    list_final_overrides,
    list_searches,
    list_tune_overrides,
)

# imported once, by the server that all processes are forked from: the runs take seconds
PRELOAD = ("heterophony.experiments.trials", "sklearn.datasets")


def start_server() -> None:
    """Start the process that all runs are forked from."""
    start_fork_server(*PRELOAD)


def tune_all(data: DataPlan, runs: Path, workers: int) -> None:
    """Run what is left of the searches of a data set: the same as ``heterophony tune``."""
    for name, (algorithms, searched) in list_searches(data).items():
        folder = runs / name
        if all((folder / "chosen" / f"{a}.toml").exists() for a in algorithms):
            continue
        request = TuneRequest(
            algorithms, searched, list_tune_overrides(data), [TUNE_SEED], sampler="grid"
        )
        tune = build_tune(request, None)
        write_request(folder, request, None)
        print(f"{name}: {len(algorithms)} algorithms", flush=True)
        with show_progress() as progress:
            run_search(tune.search, folder, ConfigRunner(tune, progress, workers))
        write_chosen(tune, folder, read_tune(folder, tune.names, tune.search.by).best)


def record_tuning(runs: Path, board: Path) -> None:
    """Write what the finished searches tried and chose beside the entries."""
    found: dict[str, Any] = {}
    for data in DATA:
        for name, (algorithms, _) in list_searches(data).items():
            if (runs / name / "chosen").exists():
                table = read_tune(runs / name, algorithms, "P").to_dict()
                found.setdefault(data.name, {}).update(describe_tuning(table["algorithms"]))
    lines = [
        f" {json.dumps(data)}: {{\n"
        + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(tuned.items()))
        + "\n }"
        for data, tuned in found.items()
    ]
    write_atomically(board / TUNING_FILE, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def find_chosen(data: DataPlan, runs: Path) -> dict[str, Path]:
    """Find the configuration with the chosen settings of every algorithm."""
    return {
        name: runs / folder / "chosen" / f"{name}.toml"
        for folder, (algorithms, _) in list_searches(data).items()
        for name in algorithms
    }


def run_setting(data: DataPlan, alpha: str, runs: Path, workers: int) -> None:
    """Make the final runs of one setting that are missing."""
    parent = runs / f"{data.name}-{alpha}"
    chosen, due = find_chosen(data, runs), []
    for name in sorted(chosen):
        configs = build_comparison([name], SEEDS, chosen[name], list_final_overrides(alpha))
        folders = prepare_run_folders(parent / name, configs)
        due += [f.path for f in folders if not (f.path / "result.json").exists()]
    print(f"{parent.name}: {len(due)} runs", flush=True)
    for folder, reason in run_in_parallel(due, workers, lambda path, event: None).items():
        print(f"{folder} diverged: {reason}", flush=True)


def add_to_board(data: DataPlan, alpha: str, runs: Path, board: Path) -> None:
    """Add what has all its seeds, as ``heterophony leaderboard add`` does, unless it is there."""
    for folder in sorted((runs / f"{data.name}-{alpha}").glob("*")):
        finished = [run for run in sorted(folder.glob("*-*")) if (run / "result.json").exists()]
        entry = board / f"{data.name}-dirichlet-{alpha}-20-{folder.name}"
        if len(finished) == len(SEEDS) and not entry.exists():
            add_entry(entry, finished)


def add_entry(entry: Path, folders: Sequence[Path]) -> None:
    """Write the entry of runs that differ in their seeds only."""
    ((_, runs),) = group_by_series(load_runs(folders)).items()
    config = (folders[0] / "config.toml").read_text(encoding="utf-8")
    write_entry(entry, config, {run.seed: describe_without_seconds(run) for run in runs})


def describe_without_seconds(run: Run) -> dict[str, Any]:
    """Describe a seed; without its seconds, as two runs and other programs shared the cores."""
    found = describe_seed(run)
    return {**found, "measures": {k: v for k, v in found["measures"].items() if k != "seconds"}}
