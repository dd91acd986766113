"""Tune every algorithm of a setting and make its final runs, one core per algorithm."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from heterophony.config.reading import resolve_config
from heterophony.core.errors import ConfigError
from heterophony.core.files import write_atomically
from heterophony.papers.leaderboard import Entry, describe_seed, read_leaderboard, write_entry
from heterophony.results.runs import group_by_series, load_runs
from heterophony.results.search_tables import format_value
from heterophony.runs.curves import compute_curves
from heterophony.runs.folder import RunFolder
from heterophony.runs.summary import summarise
from heterophony.studies.compare import build_comparison, create_comparison
from heterophony.studies.hooks import show_progress
from heterophony.studies.many import RunOptions, run_many
from heterophony.studies.search import make_trial_label
from heterophony.studies.spec import RunSpec

from .numbers import TUNING_FILE, read_plain
from .plan import SEEDS, SETTINGS, STAGES, TUNE_SEED, Combination, Setting, list_combinations

REMARK = "trial {} of its search: with the better ones a seed diverged"
DIVERGED_FILE = "diverged.txt"  # beside the final runs of a combination
SERIAL = "engine.name=serial"  # a run has one core
LAST_EVALUATIONS = 2  # their mean is the score of a trial


@dataclass(frozen=True)
class Trial:
    """One combination in one stage of a search; no score if the run diverged or cannot run."""

    settings: Combination
    rounds: int
    score: float | None
    reason: str = ""


def run_setting(setting: Setting, runs: Path, workers: int, only: Sequence[str] = ()) -> None:
    """Execute the missing runs of a setting, several algorithms at a time."""
    names = [name for name in setting.algorithms if not only or name in only]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for name in pool.map(run_algorithm, repeat(setting), names, repeat(runs)):
            print(f"{setting.name}: {name}", flush=True)


def run_algorithm(setting: Setting, name: str, runs: Path) -> str:
    """Tune an algorithm unless another setting's search serves, and make its final runs."""
    searched = next(s for s in SETTINGS if s.name == setting.searched_in)
    run_final(setting, name, tune(searched, name, runs), runs)
    return name


# The search -------------------------------------------------------------------------------------


def tune(setting: Setting, name: str, runs: Path) -> list[Trial]:
    """Run the missing trials of a search by successive halving.

    Return all trials: those of the last stage first, each stage from the best trial to the worst.
    """
    file, folder = get_search_file(setting, name, runs), runs / setting.name / "trials" / name
    known = read_trials(file)
    left, out = list_combinations(name, setting.rounds), list[Trial]()
    for share, most in STAGES:
        rounds = round(share * setting.rounds)
        before = {make_trial_label(t.settings): t for t in known if t.rounds == rounds}
        tried = [
            before.get(make_trial_label(settings))
            or run_trial(setting, name, share, settings, folder)
            for settings in left[:most]
        ]
        tried.sort(key=lambda trial: -1.0 if trial.score is None else trial.score, reverse=True)
        out = [*tried, *out]
        left = [trial.settings for trial in tried if trial.score is not None]
    if out != known:
        found = [asdict(trial) for trial in out]
        write_atomically(file, (json.dumps(found, indent=1) + "\n").encode())
        shutil.rmtree(folder)
    return out


def read_trials(file: Path) -> list[Trial]:
    """Read the trials of a search; none if it has not run."""
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return [Trial(**trial) for trial in found]


def run_trial(
    setting: Setting, name: str, share: float, settings: Combination, folder: Path
) -> Trial:
    """Run one combination with the seed of the search, and score it on validation examples."""
    overrides = [*setting.list_search_overrides(share), *format_overrides(settings), SERIAL]
    rounds = round(share * setting.rounds)
    try:
        specs = build_comparison([name], [TUNE_SEED], None, overrides)
        trial = create_comparison(folder / f"{rounds}-{make_trial_label(settings)}", specs)
        diverged = run_all(trial)
    except ConfigError as error:  # such as momentum where a rule is that of plain SGD
        return Trial(settings, rounds, None, str(error))
    (run,) = trial
    if run.path in diverged:
        return Trial(settings, rounds, None, diverged[run.path])
    curve = compute_curves(list(run.iterate_events()))["P_valid"]
    return Trial(settings, rounds, fmean(value for _, value in curve[-LAST_EVALUATIONS:]))


def run_all(due: Mapping[RunFolder, Any]) -> dict[Path, str]:
    """Complete runs in this process; return which diverged, and why."""
    with show_progress(False) as shown:
        return run_many(due, RunOptions(shown, 1))


def format_overrides(settings: Combination) -> list[str]:
    return [f"{key}={format_value(value)}" for key, value in settings.items()]


def get_search_file(setting: Setting, name: str, runs: Path) -> Path:
    return runs / setting.name / "searches" / f"{name}.json"


def choose_order(trials: Sequence[Trial]) -> list[Combination]:
    """List the combinations that have a score, those that went furthest first, each once."""
    out: list[Combination] = []
    for trial in trials:
        if trial.score is not None and trial.settings not in out:
            out.append(trial.settings)
    return out


# Final runs -------------------------------------------------------------------------------------


def run_final(setting: Setting, name: str, trials: Sequence[Trial], runs: Path) -> None:
    """Make the final runs; if a seed diverges, all seeds have the next best combination."""
    for settings in choose_order(trials):
        folder = get_final_folder(setting, name, settings, runs)
        if (folder / DIVERGED_FILE).exists():
            continue
        overrides = [*setting.list_final_overrides(), *format_overrides(settings), SERIAL]
        due = create_comparison(folder, build_comparison([name], SEEDS, None, overrides))
        diverged = run_all({run: s for run, s in due.items() if not run.result_file.exists()})
        if not diverged:
            return
        (folder / DIVERGED_FILE).write_text("\n".join(diverged.values()), encoding="utf-8")
    raise RuntimeError(f"{setting.name}, {name}: every combination diverged")


def get_final_folder(setting: Setting, name: str, settings: Combination, runs: Path) -> Path:
    return runs / setting.name / "final" / name / make_trial_label(settings)


def find_finished(setting: Setting, name: str, runs: Path) -> tuple[int, list[Path]] | None:
    """Find the final runs of an algorithm, and the place of their combination; None if a seed lacks."""
    searched = next(s for s in SETTINGS if s.name == setting.searched_in)
    order = choose_order(read_trials(get_search_file(searched, name, runs)))
    for place, settings in enumerate(order):
        folder = get_final_folder(setting, name, settings, runs)
        if not (folder / DIVERGED_FILE).exists():
            done = [run for run in sorted(folder.glob("*-*")) if (run / "result.json").exists()]
            return (place, done) if len(done) == len(SEEDS) else None
    return None


def add_entries(setting: Setting, runs: Path, board: Path) -> None:
    """Add the algorithms whose seeds have all finished, as ``heterophony leaderboard add`` does."""
    has_entries = board.exists() and any(board.iterdir())
    known = {e.folder.name for e in read_leaderboard(board)} if has_entries else set()
    for name in setting.algorithms:
        found = find_finished(setting, name, runs)
        entry = board / f"{setting.name}-{name}"
        if found is None or entry.name in known:
            continue
        place, folders = found
        ((_, same),) = group_by_series(load_runs(folders)).items()
        config = (folders[0] / "config.toml").read_text(encoding="utf-8")
        seeds = {run.seed: describe_seed(run) for run in same}
        for result in seeds.values():
            del result["measures"]["seconds"]  # other programs shared the cores
        write_entry(entry, config, seeds, remark=REMARK.format(place + 1) if place else "")


def record_searches(runs: Path, board: Path) -> None:
    """Write the trials of all finished searches beside the entries; keep those of other settings."""
    found = read_plain(board / TUNING_FILE)
    for setting in SETTINGS:
        for name in setting.algorithms:
            file = get_search_file(setting, name, runs)
            if file.exists():
                found.setdefault(setting.name, {})[name] = describe_search(file)
    lines = [
        f" {json.dumps(key)}: {{\n"
        + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(tuned.items()))
        + "\n }"
        for key, tuned in sorted(found.items())
    ]
    write_atomically(board / TUNING_FILE, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def describe_search(file: Path) -> list[list[Any]]:
    """Describe each trial: its settings, its rounds, and its validation accuracy in % or why it has none."""
    return [
        [t.settings, t.rounds, t.reason if t.score is None else round(100 * t.score, 2)]
        for t in read_trials(file)
    ]


# Seconds ------------------------------------------------------------------------------------------


def measure_seconds(setting: Setting, entries: Sequence[Entry]) -> dict[str, float]:
    """Repeat the first seed of each entry of a setting on one core; return the seconds by algorithm.

    Raise ValueError if a hash differs from the entry's.
    """
    torch.set_num_threads(1)
    found = {}
    for entry in entries:
        if entry.folder.name != f"{setting.name}-{entry.algorithm_name}":
            continue
        config = {**entry.config, "seed": SEEDS[0]}
        spec = RunSpec(resolve_config(config)).load_data()
        with TemporaryDirectory() as parent:
            folder = RunFolder(Path(parent, "run"))
            spec.open_folder(folder)
            folder.close()
            begun = time.perf_counter()
            run_all({folder: spec})
            found[entry.algorithm_name] = round(time.perf_counter() - begun, 2)
            sha256 = summarise(list(folder.iterate_events())).model_sha256
        if sha256 != entry.seeds[SEEDS[0]].model_sha256:
            raise ValueError(f"{entry.folder.name}: seed {SEEDS[0]} gave another hash")
        print(f"{entry.folder.name}: {found[entry.algorithm_name]} s, same hash", flush=True)
    return found
