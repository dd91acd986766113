"""Many runs are listed from little: the end of their events and their results, without torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.support import played
from heterophony.core.errors import FolderError
from heterophony.results import overview as progress
from heterophony.results import runs
from heterophony.results.overview import RunProgress, list_run_progress
from heterophony.runs import run_index
from heterophony.runs.run_index import read_events, read_last_event

TORCHLESS = """
import sys
from heterophony.cli import app
try:
    app(["list", "runs", "--json"])
finally:
    assert not {"torch", "numpy"} & set(sys.modules), "loaded for a list"
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """A finished run of three rounds."""
    out = tmp_path_factory.mktemp("kept") / "run"
    played("fedper", out=out)
    return out


@pytest.fixture
def several(kept, tmp_path) -> Path:
    """A folder of runs: finished, after two rounds, and not started."""
    for name in ("done", "deep/half", "new"):
        shutil.copytree(kept, tmp_path / name)
    half = tmp_path / "deep/half"
    lines = (half / "events.jsonl").read_bytes().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if b'"event":"round"' in line][1]
    (half / "events.jsonl").write_bytes(b"".join(lines[: at + 1]) + b'{"event":"eval')
    (half / "result.json").unlink()
    (tmp_path / "new/events.jsonl").unlink()
    return tmp_path


def by_name(parent: Path) -> dict[str, RunProgress]:
    return {str(s.folder.relative_to(parent)): s for s in list_run_progress(parent)}


def test_a_finished_run_is_told_from_its_result_and_the_end_of_its_events(
    several, kept, monkeypatch
):
    events = several / "done/events.jsonl"
    start, *_, end = events.read_text().splitlines()
    events.write_text("\n".join([start, "no event at all" * 999, end]) + "\n")
    shutil.rmtree(several / "deep")
    monkeypatch.setattr(progress, "load_run", None)  # what reads all events
    result = json.loads((kept / "result.json").read_text())
    told = by_name(several)["done"]
    assert (told.algorithm, told.state) == ("fedper", "finished")
    for found, expected in ((told.G, result["G"]), (told.P, result["P"])):
        assert (found.best, found.last10.mean) == (expected["best"], expected["last10"]["mean"])


def test_an_unfinished_run_shows_how_far_it_got_and_its_best_so_far(several):
    told = by_name(several)["deep/half"]
    events = list(read_events(several / "deep/half/events.jsonl"))
    whole = sum(events[0]["test"])
    measured = [sum(e["P"]) / whole for e in events if e["event"] == "evaluation"]
    assert (told.algorithm, told.state) == ("fedper", "round 2 of 3")
    assert told.P.best == max(measured)


def test_a_run_whose_result_was_not_written_yet_is_told_from_its_events(several):
    before = by_name(several)["done"]
    (several / "done/result.json").unlink()
    assert by_name(several)["done"] == before


def test_what_cannot_be_read_does_not_hide_the_others(several):
    for name in ("listed", "torn", "odd", "locked"):
        shutil.copytree(several / "done", several / name)
    (several / "listed/result.json").write_text("[]\n")
    (several / "torn/events.jsonl").write_text("dear\n")
    (several / "odd/events.jsonl").write_text("5\n")
    (several / "locked/events.jsonl").unlink()
    (several / "locked/events.jsonl").mkdir()
    assert {name: s.state for name, s in by_name(several).items()} == {
        "done": "finished",
        "deep/half": "round 2 of 3",
        "new": "not started",
        "listed": "damaged",
        "torn": "damaged",
        "odd": "damaged",
        "locked": "unreadable",
    }


def test_the_newest_is_first(several):
    for age, name in enumerate(("deep/half", "new", "done")):
        os.utime(several / name / "config.toml", (9 - age, 9 - age))
    assert list(by_name(several)) == ["deep/half", "new", "done"]


def test_the_folders_of_clients_are_not_searched(several, monkeypatch):
    opened, scandir = [], os.scandir

    def spy(path):
        opened.append(str(Path(path).relative_to(several)))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", spy)
    assert (several / "done/commits/clients").is_dir()
    assert len(list(run_index.find_runs(several))) == 3
    assert sorted(opened) == [".", "deep", "deep/half", "done", "new"]


def test_a_list_of_runs_needs_no_torch(several, tmp_path_factory):
    cwd = tmp_path_factory.mktemp("cwd")
    shutil.copytree(several, cwd / "runs")
    words = [sys.executable, "-W", "error", "-c", TORCHLESS]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    states = {r["name"]: r["state"] for r in json.loads(done.stdout)}
    expected = {"done": "finished", "deep/half": "round 2 of 3", "new": "not started"}
    assert states == {f"runs/{name}": state for name, state in expected.items()}


EVENT = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=9), max_size=3).map(
    lambda event: {"event": "round", **event}
)


@given(st.lists(EVENT, max_size=6), st.integers(0, 40), st.integers(1, 64))
def test_the_last_event_is_the_last_of_all_wherever_the_file_was_cut(
    tmp_path_factory, events, cut, tail
):
    path = tmp_path_factory.getbasetemp() / "some.jsonl"
    written = "".join(json.dumps(e) + "\n" for e in events).encode()
    path.write_bytes(written[: max(0, len(written) - cut)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_index, "TAIL_BYTES", tail)
        assert read_last_event(path) == next(iter([*read_events(path)][::-1]), None)


def test_a_last_line_that_is_not_json_is_an_error(tmp_path):
    (tmp_path / "e.jsonl").write_text('{"event":"start"}\ndear\n')
    with pytest.raises(FolderError, match="a line is not JSON"):
        read_last_event(tmp_path / "e.jsonl")


def test_the_settings_of_each_run_are_compared_once_however_many_there_are(several, monkeypatch):
    asked, settings = [], runs.select_experiment_settings

    def spy(run):
        asked.append(run)
        return settings(run)

    monkeypatch.setattr(runs, "select_experiment_settings", spy)
    one = runs.load_run(several / "done")
    runs.label_runs([one] * 20)
    assert len(asked) == 20
