"""The examples run as they are, with the same result; and what to do if not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_data.py"


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


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 25


@pytest.mark.parametrize("how", ["without the guard", "from a pipe"])
def test_a_script_that_workers_cannot_import_is_told_what_to_do(how, tmp_path):
    text = EXAMPLE.read_text()
    file = tmp_path / "script.py"
    file.write_text(text.replace('__name__ == "__main__"', "True"))
    done = script(text, "-", "pool") if how == "from a pipe" else script(None, str(file), "pool")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "heterophony.core.errors.EngineError: a worker of the pool could not start"
    )
    assert 'below `if __name__ == "__main__":`' in last
    assert last.endswith("in a file (or use the serial engine)")
