"""The page that compares all algorithms: made from what was measured, with nobody left out."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from heterophony.algorithms import ALGORITHM_CLASSES

ROOT = Path(__file__).parents[1]
MEASURED = json.loads((ROOT / "docs" / "comparison.json").read_text())


def test_every_algorithm_was_measured_everywhere_and_is_better_than_chance():
    assert all(set(runs) == set(ALGORITHM_CLASSES) for runs in MEASURED.values())
    for data in ("digits", "fmnist"):
        for name, run in MEASURED[data].items():
            assert max(run["G"] or 0, run["P"]) > 0.15, (data, name)  # ten classes


def test_the_page_is_up_to_date_and_says_why_where_a_method_is_behind():
    page = runpy.run_path(str(ROOT / "scripts" / "comparison"))["page"]
    shown = (ROOT / "docs" / "comparison.md").read_text()
    assert shown == page(MEASURED), "run scripts/comparison --page"
