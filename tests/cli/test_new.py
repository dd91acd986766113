"""``heterophony new``: what it writes runs, and its test passes; nothing is overwritten."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heterophony.cli import app


def call(*words: str) -> object:
    return CliRunner().invoke(app, words)


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("new", "study").exit_code == 0
    monkeypatch.chdir(tmp_path / "study")
    monkeypatch.syspath_prepend(tmp_path / "study")
    yield tmp_path / "study"
    sys.modules.pop("my_algorithm", None)


def test_the_study_runs_on_its_own_data_and_its_tests_pass(study):
    runpy.run_path("make_data.py")
    done = call("run", "study.toml", "-c", "rounds=3", "-c", "engine.name=serial", "--out", "run")
    assert done.exit_code == 0, done.output
    assert "MyAlgorithm, 3 rounds" in done.output
    tests = runpy.run_path("test_study.py")
    ran = [tests[name]() for name in tests if name.startswith("test_")]
    assert len(ran) == 2


def test_every_file_of_its_readme_is_there(study):
    text = Path("README.md").read_text()
    assert {p.name for p in study.iterdir()} == {"README.md", "study.toml", "my_algorithm.py", "make_data.py", "test_study.py", "heterophony.schema.json"}  # fmt: skip
    assert all(p.name in text for p in study.iterdir() if p.name != "README.md")


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = call("new", str(tmp_path))
    assert done.exit_code == 3
    assert "already exists; name a new folder" in done.output
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    assert call("new", str(tmp_path / "notes.txt")).exit_code == 3
