"""The examples run as they are, with the same result; and what to do if not."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

from helpers.support import played
from heterophony import algorithms
from heterophony.cli import app

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE = EXAMPLES / "own_data.py"
SCRIPTS = ["lstm_sequences", "own_cnn", "sweep_and_export", "table_regression"]


@cache
def script(text: str | None, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words, and a script's text on its stdin."""
    command = [sys.executable, *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)


def test_own_model_and_own_data_give_the_same_model_in_one_process_and_in_several():
    said = [script(None, str(EXAMPLE), engine) for engine in ("serial", "pool")]
    assert [done.returncode for done in said] == [0, 0], said
    (line,) = {done.stdout for done in said}
    assert line.startswith("<Result fedper: G 0.")
    assert len(line.split()[-1]) == 64


def test_examples_are_short():
    lengths = {p.stem: len(p.read_text().splitlines()) for p in EXAMPLES.glob("*.py")}
    assert max(lengths.values()) <= 30
    assert set(lengths) == {*SCRIPTS, "own_algorithm", "own_data"}


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # within torch's own exporter
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_and_learns(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert found["result"].P.last > found["result"].curves["P"][0][1] + 0.1
    assert capsys.readouterr().out
    if name == "sweep_and_export":
        written = {"sweep.png", "tuned", "curves.png", "client7.onnx", "client7.onnx.data"}
        assert {p.name for p in tmp_path.iterdir()} == written


def test_an_algorithm_in_a_file_runs_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    few = ["-c", "rounds=1", "-c", "engine=serial", "-c", "algorithm.share=0.7"]
    words = ["run", "own_algorithm:HalfStep", *few, "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "HalfStep, 1 round" in done.output


def test_the_algorithm_that_contributors_are_shown_runs(tmp_path, monkeypatch):
    text = (EXAMPLE.parents[1] / "CONTRIBUTING.md").read_text()
    block = re.search(r"^   ```python\n(.*?)^   ```", text, re.M | re.S)[1]
    (tmp_path / "fedfoo.py").write_text(dedent(block))
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    monkeypatch.setitem(algorithms.ALGORITHM_CLASSES, "fedfoo", "FedFoo")
    assert played("fedfoo", rounds=1).G is not None
    del sys.modules["heterophony.algorithms.fedfoo"]


def test_a_script_without_the_guard_is_told_what_to_do_in_one_line(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(EXAMPLE.read_text().replace('__name__ == "__main__"', "True"))
    done = script(None, str(file), "pool")
    assert done.returncode == 1
    *trace, last = done.stderr.splitlines()
    assert last == (
        "heterophony.core.errors.EngineError: a worker of the pool could not start: it imports the"
        ' script again, so the script must call hp.run below `if __name__ == "__main__":` (or use'
        " the serial engine); if that is not the cause, see the error above"
    )
    assert [line.startswith("Traceback") for line in trace].count(True) == 1  # workers say nothing


def test_a_script_that_is_read_from_a_pipe_runs_on_the_pool():
    done = script(EXAMPLE.read_text(), "-", "pool")
    assert done.returncode == 0, done.stderr
    assert done.stdout == script(None, str(EXAMPLE), "serial").stdout
