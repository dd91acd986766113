"""The page that compares all algorithms: its numbers, and that it is written from them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from heterophony.algorithms import ALGORITHM_CLASSES

ROOT = Path(__file__).parents[1]
MEASURED = json.loads((ROOT / "docs" / "reference" / "comparison.json").read_text())


def test_measured_algorithms_exist_were_measured_everywhere_and_are_better_than_chance():
    """An algorithm that was not measured yet is no error: measuring takes a while."""
    measured = set(MEASURED["digits"])
    assert measured <= set(ALGORITHM_CLASSES)
    assert all(set(runs) == measured for runs in MEASURED.values())
    for data in ("digits", "fmnist"):
        for name, run in MEASURED[data].items():
            assert max(run["G"] or 0, run["P"]) > 0.15, (data, name)  # ten classes


def test_the_page_is_up_to_date_and_says_why_where_a_method_is_behind():
    page = runpy.run_path(str(ROOT / "scripts" / "comparison"))["page"]
    written = (ROOT / "docs" / "reference" / "comparison.md").read_text()
    assert written == page(MEASURED), "run scripts/comparison --page"
