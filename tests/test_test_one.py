"""``make test-one``: what it selects for one algorithm, and its answers to a wrong name."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from heterophony import algorithms
from heterophony.algorithms import ALGORITHM_CLASSES

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "test_one"))


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], "test-one: which algorithm? For example: make test-one NAME=ditto"),
        (["dito"], "test-one: no algorithm 'dito'; did you mean 'ditto'?"),
    ],
)
def test_a_wrong_name_is_answered_with_what_to_do(arguments, answer, capsys):
    assert SCRIPT["main"](arguments) == 2
    assert capsys.readouterr().err.startswith(answer)


BROKEN = """
from dataclasses import dataclass
from heterophony.core.algorithm import Algorithm, setting

@dataclass(frozen=True)
class FedFoo(Algorithm):
    {}
"""


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (
            "lam: float",
            "test-one: algorithm.lam: heterophony.algorithms.fedfoo:FedFoo gives this setting no ",
        ),
        ("lam: float = setting(1.0)", "test-one: algorithm.name: cannot import heterophony.algori"),
        (
            "lam: int = setting(0.5, 'x')",
            "test-one: algorithm.lam: must be a whole number, not 0.5",
        ),
        ("def __post_init__(self): self.x", "test-one: src/heterophony/algorithms/fedfoo.py: Attr"),
    ],
)
def test_an_algorithm_that_cannot_be_built_ends_with_one_line(
    line, answer, tmp_path, monkeypatch, capsys
):
    (tmp_path / "fedfoo.py").write_text(BROKEN.format(line))
    monkeypatch.setitem(ALGORITHM_CLASSES, "fedfoo", "FedFoo")
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "heterophony.algorithms.fedfoo", raising=False)
    monkeypatch.setitem(SCRIPT["main"].__globals__, "FOLDER", tmp_path)
    assert SCRIPT["main"](["fedfoo"]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(answer)
    sys.modules.pop("heterophony.algorithms.fedfoo", None)


@pytest.mark.parametrize(
    ("file", "test", "parameters", "selected"),
    [
        ("test_contract.py", "test_it_learns[fedavg]", {"name": "fedavg"}, True),
        ("test_contract.py", "test_it_learns[fedavgm]", {"name": "fedavgm"}, False),
        ("test_fedavg.py", "test_anything", {}, True),
        ("test_limits.py", "test_fedprox_without_pull_is_fedavg", {}, True),
        ("test_limits.py", "test_fedavgm_without_momentum", {}, False),
        ("test_defects.py", "test_we_do_not_have_it[FedAvg's shares]", {}, True),
        ("test_defects.py", "test_we_do_not_have_it[Per-FedAvg trains twice]", {}, False),
        ("test_architecture.py", "test_an_algorithm_is_short", {"path": "fedavg.py"}, True),
        ("test_architecture.py", "test_an_algorithm_is_short", {"path": "fedavgm.py"}, False),
    ],
)
def test_only_tests_of_the_algorithm_are_selected(file, test, parameters, selected):
    if "path" in parameters:
        parameters = {"path": SCRIPT["FOLDER"] / parameters["path"]}
    item = SimpleNamespace(path=Path(file), name=test, callspec=SimpleNamespace(params=parameters))
    assert SCRIPT["Selection"]("fedavg").concerns(item) == selected
