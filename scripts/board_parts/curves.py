"""The curves that the pages of algorithms draw: docs/reference/curves.json, from final runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heterophony.core.files import write_atomically
from heterophony.studies.load import load

from .numbers import read_plain
from .plan import DataPlan
from .runs import list_finished

EVERY = 2  # rounds between two points; all are evaluated


def write_curves(data: DataPlan, alpha: str, runs: Path, path: Path) -> None:
    """Write the curves of algorithms whose seeds have all finished in a setting; keep those of others."""
    finished = list_finished(data, alpha, runs).items()
    curves = read_plain(path) | {name: read_curves(folders) for name, (_, folders) in finished}
    lines = [f" {json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(curves.items())]
    write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def read_curves(folders: Sequence[Path]) -> dict[str, Any]:
    """Read G and P of all seeds, in % with two digits."""
    results = [load(folder) for folder in folders]
    measured = [t for t, _ in results[0].curves["P"]]
    rounds = [t for t in measured if t % EVERY == 0]
    curves: dict[str, Any] = {"rounds": rounds}
    for measure in ("G", "P"):
        found = [dict(result.curves.get(measure, ())) for result in results]
        if all(found):
            curves[measure] = [[round(100 * one[t], 2) for t in rounds] for one in found]
    return curves
