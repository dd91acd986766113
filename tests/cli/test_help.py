"""Help: every example of a command is understood by the program; shells complete names."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from helpers.documents import find_problem, split_commands
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.cli import EXAMPLES, app
from heterophony.cli.completion import complete_algorithm, complete_run_argument


@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_are_understood_and_end_the_help(command):
    words = [w for line in EXAMPLES[command] for w in split_commands(line)]
    assert [w[1 : 1 + len(command.split())] for w in words] == [command.split()] * len(words)
    assert [problem for w in words if (problem := find_problem(w))] == []
    done = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert EXAMPLES[command][-1].replace("  ", " ")[:40] in done.output.replace("  ", " ")


def complete(text: str, monkeypatch) -> list[str]:
    """Ask as bash does what the last word of a command line can be."""
    words = text.split(" ")
    environment = {
        "_HETEROPHONY_COMPLETE": "complete_bash",
        "COMP_WORDS": text,
        "COMP_CWORD": str(len(words) - 1),
    }
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    done = CliRunner().invoke(app, [], prog_name="heterophony")
    return done.output.split()


def test_shells_complete_commands_choices_and_algorithms(monkeypatch):
    assert complete("heterophony res", monkeypatch) == ["resume"]
    assert complete("heterophony list par", monkeypatch) == ["partitions"]
    assert complete("heterophony compare fedavg fedro", monkeypatch) == ["fedrod"]


def test_files_of_settings_are_completed_beside_algorithms(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").touch()
    assert complete_run_argument("stu") == ["study.toml"]
    assert complete_algorithm("") == list(ALGORITHM_CLASSES)
