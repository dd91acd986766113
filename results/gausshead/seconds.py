"""Measure how much processor time ten rounds of every method take, and record it in seconds.json.

Usage: python results/gausshead/seconds.py

One core, on the first federation. Each method is run three times, in turn with the others; the fastest counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from heterophony.config.reading import resolve_config
from heterophony.runs.folder import RunFolder
from heterophony.studies.run import run_one
from heterophony.studies.spec import RunSpec
from report import DECIDING, FINAL, SECONDS

ROUNDS, TIMES = 10, 3


def measure_seconds(config: Mapping[str, Any]) -> float:
    """Measure the processor time of ten rounds and one evaluation, without reading the data."""
    shortened = {"rounds": ROUNDS, "evaluation": {"every": ROUNDS}, "engine": {"name": "serial"}}
    spec = RunSpec(resolve_config({**config, **shortened}))
    plan = spec.build_plan()
    with TemporaryDirectory() as parent:
        folder = RunFolder(Path(parent, "run"))
        folder.create(spec.load_data().format_config())
        begun = time.process_time()
        run_one(spec, folder, plan)
        taken = time.process_time() - begun
        folder.close()
    return taken


def main() -> None:
    torch.set_num_threads(1)
    cells = [cell for cell in FINAL.table.cells if cell.column == DECIDING[0]]
    taken: dict[str, list[float]] = {cell.row: [] for cell in cells}
    for _ in range(TIMES):
        for cell in cells:
            taken[cell.row].append(measure_seconds(cell.config))
    found = {row: round(min(seconds), 2) for row, seconds in taken.items()}
    SECONDS.write_text(json.dumps(found, indent=1) + "\n")
    print(found)


if __name__ == "__main__":
    main()
