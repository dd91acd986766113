"""Measure how much processor time ten rounds of every method of a table take, on one core.

Usage: python results/measure_seconds.py gausshead|fine-tuning COLUMN

Writes seconds.json into the table's folder. Methods take turns; each runs three times, and the fastest run counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from heterophony.config.reading import resolve_config
from heterophony.papers.table import load_table
from heterophony.runs.folder import RunFolder
from heterophony.studies.run import run_one
from heterophony.studies.spec import RunSpec

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


def main(name: str, column: str) -> None:
    torch.set_num_threads(1)
    cells = [cell for cell in load_table(name).cells if cell.column == column]
    taken: dict[str, list[float]] = {cell.row: [] for cell in cells}
    for _ in range(TIMES):
        for cell in cells:
            taken[cell.row].append(measure_seconds(cell.config))
    found = {row: round(min(seconds), 2) for row, seconds in taken.items()}
    (Path(__file__).parent / name / "seconds.json").write_text(json.dumps(found, indent=1) + "\n")
    print(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
