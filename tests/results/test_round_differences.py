"""Differences to a reference over the rounds: pairs, means, intervals, and the figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heterophony.cli import app
from heterophony.core.errors import ConfigError
from heterophony.results.statistics import compare_over_rounds, find_reference, smooth_curve

FULL_RUNS = Path(__file__).parents[2] / "results" / "fedreg-table2-sota"


@dataclass(frozen=True)
class MadeRun:
    series: str
    seed: int
    curves: dict[str, list[tuple[int, float]]]
    data: str = "d"

    @property
    def start(self) -> dict[str, Any]:
        return {"data_sha256": self.data}

    @property
    def algorithm(self) -> str:
        return self.series.lower()

    @property
    def display_name(self) -> str:
        return self.series


def made(series: str, seed: int, *values: float, data: str = "d") -> Any:
    return MadeRun(series, seed, {"G": list(enumerate(values))}, data)


def test_differences_are_between_runs_of_the_same_seed_and_data():
    runs = [
        *(made("FedAvg", 0, 0.1, 0.2), made("FedAvg", 1, 0.1, 0.6)),
        *(made("FedReG", 0, 0.1, 0.3), made("FedReG", 1, 0.1, 0.9), made("FedReG", 2, 0.1, 0.0)),
        made("Ditto", 0, 0.9, 0.9, data="other"),
    ]
    (found,) = compare_over_rounds(runs, "FedAvg", "G")
    assert (found.name, found.seeds) == ("FedReG", (0, 1))
    assert [(p.t, round(p.mean, 9)) for p in found.points] == [(0, 0.0), (1, 0.2)]
    half = 12.706204736 * 0.1  # Student's t of two values, whose standard error is 0.1
    assert found.points[1].interval.high == pytest.approx(0.2 + half, rel=1e-6)


def test_one_seed_has_no_interval():
    (found,) = compare_over_rounds([made("a", 0, 0.5), made("b", 0, 0.7)], "a", "G")
    assert found.points[0].interval is None


def test_the_mean_around_an_evaluation_begins_with_the_first_alone():
    gaps = {0: 0.0, 2: 3.0, 4: 6.0, 6: 9.0}
    assert smooth_curve(gaps, 3) == {0: 0.0, 2: 3.0, 4: 6.0, 6: 7.5}


def test_a_reference_is_found_by_its_algorithm():
    runs = [made("FedAvg", 0, 0.1), made("FedReG", 0, 0.1)]
    assert find_reference(runs, None) == "FedAvg"
    assert find_reference(runs, "fedreg") == "FedReG"
    with pytest.raises(ConfigError, match="--reference ditto: no such series"):
        find_reference(runs, "ditto")


def test_report_draws_the_difference_and_refuses_a_reference_elsewhere(tmp_path):
    def report(*words: str) -> Any:
        return CliRunner().invoke(app, ["report", str(FULL_RUNS), *words])

    figure = tmp_path / "difference.svg"
    found = report("-o", str(figure), "--kind", "difference", "--reference", "fedreg")
    assert found.exit_code == 0, found.output
    assert "difference from FedReG, points" in figure.read_text()
    page = report("-o", str(tmp_path / "page.html"), "--reference", "fedavg")
    assert (page.exit_code, page.output.count("\n")) == (3, 1)
