"""Run folders written by an earlier version: they resume, report and are listed.

``fedper-finished`` has all of its 4 rounds. ``fedreg-unfinished`` was killed (SIGKILL) after 2 of its
4 rounds; client memories that no resume reads were removed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from helpers.commands import call
from heterophony.runs.events import select_evaluations
from heterophony.runs.folder import RunFolder
from heterophony.runs.summary import summarise

OLD_RUNS = Path(__file__).parents[1] / "data_files" / "old_runs"
# of the same run without an interruption, with the version that wrote the folders
FEDREG_SHA256 = "872ee3bc5855d621016a6e0ebf163b2257380dd8d84af458b4593a849734891a"
FEDREG_CORRECT = ([178, 205], [193, 232])  # G and P: correct test examples of the two clients


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    """A copy of the old runs, below the folder that ``heterophony list runs`` reads."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(OLD_RUNS, tmp_path / "runs")
    return tmp_path / "runs"


def call_for_json(*words: str | Path):
    done = call(*words, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_an_unfinished_run_resumes_to_the_result_of_an_uninterrupted_one(runs):
    folder = runs / "fedreg-unfinished"
    before = (folder / "events.jsonl").read_bytes()
    result = call_for_json("resume", folder)
    assert (folder / "events.jsonl").read_bytes().startswith(before)
    *_, last = select_evaluations(list(RunFolder(folder).iterate_events()))
    assert (last["G"], last["P"]) == FEDREG_CORRECT
    # another kind of CPU may round differently: then a whole run differs from the old one, too
    if call_for_json("run", folder / "config.toml")["model_sha256"] == FEDREG_SHA256:
        assert result["model_sha256"] == FEDREG_SHA256


def test_a_finished_run_stays_as_it_is(runs):
    folder = runs / "fedper-finished"
    result = json.loads((folder / "result.json").read_text())
    for again in (
        call_for_json("resume", folder),
        summarise(list(RunFolder(folder).iterate_events())).to_dict(),
    ):
        # the version that wrote the folder counted the untrained model among the last ten
        for measure in ("G", "P"):
            assert again[measure]["last10"]["mean"] > result[measure]["last10"]["mean"]
            again[measure] |= {"last10": result[measure]["last10"]}
        del again["P_mean"]  # which that version did not write
        assert again == result


@pytest.mark.parametrize("name", ["fedper-finished", "fedreg-unfinished"])
def test_an_old_run_is_reported(runs, name):
    done = call("report", runs / name, "-o", "page.html")
    assert done.exit_code == 0, done.stderr
    assert name.split("-")[0] in Path("page.html").read_text()


def test_old_runs_are_listed(runs):
    listed = {Path(r["name"]).name: r for r in call_for_json("list", "runs")}
    assert {name: (r["algorithm"], r["state"]) for name, r in listed.items()} == {
        "fedper-finished": ("fedper", "finished"),
        "fedreg-unfinished": ("fedreg", "round 2 of 4"),
    }
