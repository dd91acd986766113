"""Tune all algorithms, make the final runs with the chosen settings, and add them to the leaderboard."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from heterophony.core.files import write_atomically
from heterophony.engines.child_processes import start_fork_server
from heterophony.papers.leaderboard import describe_seed, read_leaderboard, write_entry
from heterophony.results.runs import Run, group_by_series, load_runs
from heterophony.results.search_tables import format_value, read_tune
from heterophony.runs.folder import RunFolder
from heterophony.studies.compare import build_comparison, create_comparison
from heterophony.studies.hooks import show_progress
from heterophony.studies.many import RunOptions, run_many
from heterophony.studies.search import Combination, run_search
from heterophony.studies.spec import RunSpec
from heterophony.studies.tune import TuneRequest, build_tune, write_chosen, write_request

from .numbers import TUNING_FILE, describe_tuning, read_plain
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
PRELOAD = ("heterophony.studies.many", "sklearn.datasets")

PLACE_MARK = "+"  # in names of folders, before the place of a combination that is not the best
REMARK = "combination {} of its search: with the better ones a seed diverged"


def start_server() -> None:
    """Start the process that all runs are forked from."""
    start_fork_server(*PRELOAD)


def tune_all(data: DataPlan, runs: Path, workers: int, only: Collection[str]) -> None:
    """Run the remaining searches of a data set, as ``heterophony tune`` does."""
    for name, (planned, every) in list_searches(data).items():
        folder, algorithms = runs / name, [a for a in planned if a in only]
        if all(is_tuned(folder, a) for a in algorithms):
            continue
        others = tuple(f"{a}." for a in planned if a not in only)
        searched = [pair for pair in every if not pair.startswith(others)]
        request = TuneRequest(
            algorithms, searched, list_tune_overrides(data), [TUNE_SEED], sampler="grid"
        )
        tune = build_tune(request, None)
        write_request(folder, request, None)
        print(f"{name}: {len(algorithms)} algorithms", flush=True)
        with show_progress() as progress:
            run_search(tune.search, folder, RunOptions(progress, workers, side_by_side=True))
        write_chosen(tune, folder, read_tune(folder, tune.names, tune.search.by).best)


def is_tuned(folder: Path, algorithm: str) -> bool:
    """Return True if a search has chosen the settings of an algorithm."""
    return (folder / "chosen" / f"{algorithm}.toml").exists()


def list_tuned(data: DataPlan, runs: Path) -> dict[str, list[str]]:
    """List the algorithms that the searches of a data set have finished, by folder."""
    searches = list_searches(data).items()
    tuned = {name: [a for a in found if is_tuned(runs / name, a)] for name, (found, _) in searches}
    return {name: found for name, found in tuned.items() if found}


def record_tuning(runs: Path, board: Path) -> None:
    """Write the trials and choices of the finished searches; keep those of other algorithms."""
    found = read_plain(board / TUNING_FILE)
    for data in DATA:
        for name, algorithms in list_tuned(data, runs).items():
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
    """Find the configuration with the chosen settings of every algorithm that was tuned."""
    return {
        name: runs / folder / "chosen" / f"{name}.toml"
        for folder, algorithms in list_tuned(data, runs).items()
        for name in algorithms
    }


def list_combinations(data: DataPlan, runs: Path) -> dict[str, list[Combination]]:
    """List the combinations of every algorithm whose trial finished, the best on validation first."""
    return {
        found.label: [row.settings for row in found.sweep.rows if row.state == "finished"]
        for folder, algorithms in list_tuned(data, runs).items()
        for found in read_tune(runs / folder, algorithms, "P").algorithms
    }


def run_setting(data: DataPlan, alpha: str, runs: Path, workers: int) -> None:
    """Execute the missing final runs; if a seed diverges, use the next combination for all seeds."""
    combinations = list_combinations(data, runs)
    waiting = dict.fromkeys(sorted(combinations), 0)
    while waiting:
        due, names = dict[RunFolder, RunSpec](), dict[Path, str]()
        for name, place in waiting.items():
            settings = combinations[name][place]
            for folder, spec in prepare_final_runs(
                data, alpha, runs, name, place, settings
            ).items():
                if not folder.result_file.exists():
                    due[folder], names[folder.path] = spec, name
        print(f"{data.name}-{alpha}: {len(due)} runs", flush=True)
        with show_progress(False) as shown:
            diverged = run_many(due, RunOptions(shown, workers, side_by_side=True))
        for path, reason in diverged.items():
            print(f"{path} diverged: {reason}", flush=True)
        again = {names[path] for path in diverged}
        waiting = {name: place + 1 for name, place in waiting.items() if name in again}


def prepare_final_runs(
    data: DataPlan, alpha: str, runs: Path, name: str, place: int, settings: Combination
) -> dict[RunFolder, RunSpec]:
    """Write the configurations of all seeds with the combination at this place."""
    own = [f"{key}={format_value(value)}" for key, value in settings.items()]
    file, overrides = find_chosen(data, runs)[name], list_final_overrides(alpha)
    specs = build_comparison([name], SEEDS, file, [*overrides, *own])
    parent = runs / f"{data.name}-{alpha}" / (f"{name}{PLACE_MARK}{place}" if place else name)
    return create_comparison(parent, specs)


def list_finished(data: DataPlan, alpha: str, runs: Path) -> dict[str, tuple[int, list[Path]]]:
    """List the algorithms whose seeds have all finished: the combination's place, and the run folders."""
    out: dict[str, tuple[int, list[Path]]] = {}
    for folder in sorted((runs / f"{data.name}-{alpha}").glob("*")):
        name, _, place = folder.name.partition(PLACE_MARK)
        finished = [run for run in sorted(folder.glob("*-*")) if (run / "result.json").exists()]
        if len(finished) == len(SEEDS):
            out.setdefault(name, (int(place or 0), finished))
    return out


def add_to_board(data: DataPlan, alpha: str, runs: Path, board: Path) -> None:
    """Add algorithms whose seeds have all finished, as ``heterophony leaderboard add`` does, if not yet there."""
    known = {entry.folder.name for entry in read_leaderboard(board)}
    for name, (place, folders) in list_finished(data, alpha, runs).items():
        entry = board / f"{data.name}-dirichlet-{alpha}-20-{name}"
        if entry.name not in known:
            add_entry(entry, folders, REMARK.format(place + 1) if place else "")


def add_entry(entry: Path, folders: Sequence[Path], remark: str) -> None:
    """Write the entry of runs that differ in their seeds only."""
    ((_, runs),) = group_by_series(load_runs(folders)).items()
    config = (folders[0] / "config.toml").read_text(encoding="utf-8")
    seeds = {run.seed: describe_without_seconds(run) for run in runs}
    write_entry(entry, config, seeds, remark=remark)


def describe_without_seconds(run: Run) -> dict[str, Any]:
    """Describe a seed without its seconds: two runs and other programs shared the cores."""
    found = describe_seed(run)
    return {**found, "measures": {k: v for k, v in found["measures"].items() if k != "seconds"}}
