"""``make test-one``: what it selects for one algorithm, and its answers to a wrong name."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

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
