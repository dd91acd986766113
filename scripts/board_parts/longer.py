"""Longer runs of methods that are behind: do they only need more rounds?

One seed of one setting, with four times the rounds, for every method that is behind there; and for
FedAvg and Local, which they are compared with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heterophony.core.files import write_atomically
from heterophony.papers.leaderboard import describe_seed, open_leaderboard
from heterophony.results.runs import load_runs
from heterophony.runs.folder import RunFolder
from heterophony.studies.compare import build_comparison, create_comparison
from heterophony.studies.hooks import show_progress
from heterophony.studies.many import RunOptions, run_many
from heterophony.studies.spec import RunSpec

from .behind import FACTOR
from .numbers import LONGER_FILE, G, P, read_plain
from .plan import DATA, SEEDS, TUNED_ALPHA

LONGER_DATA = DATA[0]
SEED = SEEDS[0]
DIVERGED_FILE = "diverged.txt"
EVERY = 3  # rounds between evaluations, so that the last ten are of the last quarter


def run_longer(names: Sequence[str], board: Path, runs: Path, workers: int) -> None:
    """Execute the missing longer runs."""
    due = dict[RunFolder, RunSpec]()
    overrides = [f"rounds={FACTOR * LONGER_DATA.rounds}", f"evaluation.every={EVERY}"]
    prefix = f"{LONGER_DATA.name}-dirichlet-{TUNED_ALPHA}-20-"
    with open_leaderboard(board) as entries:
        found = {entry.folder.name: entry.folder / "config.toml" for entry in entries}
        compared = {
            name: build_comparison([name], [SEED], found[f"{prefix}{name}"], overrides)
            for name in names
        }
    for name, specs in compared.items():
        ((folder, spec),) = create_comparison(runs / "longer" / name, specs).items()
        ended = [(folder.path / name).exists() for name in ("result.json", DIVERGED_FILE)]
        due |= {} if any(ended) else {folder: spec}
    print(f"longer: {len(due)} runs", flush=True)
    with show_progress(False) as shown:
        diverged = run_many(due, RunOptions(shown, workers, side_by_side=True))
    for path, reason in diverged.items():
        print(f"{path} diverged: {reason}", flush=True)
        (path / DIVERGED_FILE).write_text(reason, encoding="utf-8")


def record_longer(runs: Path, board: Path) -> None:
    """Write the results of the longer runs next to the entries; keep those of other algorithms."""
    ended = sorted(
        path.parent
        for name in ("result.json", DIVERGED_FILE)
        for path in (runs / "longer").glob(f"*/*/{name}")
    )
    found = read_plain(board / LONGER_FILE) | {p.parent.name: describe_longer(p) for p in ended}
    lines = [f" {json.dumps(name)}: {json.dumps(told)}" for name, told in sorted(found.items())]
    if lines:
        write_atomically(board / LONGER_FILE, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def describe_longer(folder: Path) -> dict[str, Any]:
    """Describe a run: P, G and the hash of its models, or why it diverged."""
    if not (folder / "result.json").exists():
        return {"diverged": (folder / DIVERGED_FILE).read_text(encoding="utf-8")}
    found = describe_seed(load_runs([folder])[0])
    measures = {k: v for k, v in found["measures"].items() if k in (P, G)}
    return {**measures, "model_sha256": found["model_sha256"]}
