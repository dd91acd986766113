"""A run folder of a stranger: `resume` sends nothing to an address that the command does not name."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.commands import call, refused
from heterophony.runs.folder import RunFolder
from heterophony.studies.spec import read_spec

ADDRESS = "stranger.example:6379"
ENGINE = f'[engine]\nname = "ray"\naddress = "{ADDRESS}"\n'
REFUSED = (
    "{} names a Ray cluster, which would receive your token; if it is yours, add"
    f" -c engine.address={ADDRESS}, or run here with -c engine.name=pool"
)


@pytest.fixture
def foreign(tmp_path, monkeypatch) -> Path:
    """Make a folder of a stranger; joining any cluster fails the test."""
    monkeypatch.setattr("heterophony.engines.base.prepare_engine", lambda name: pytest.fail(name))
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "config.toml").write_text(f"rounds = 1\n{ENGINE}")
    return folder


def test_resume_joins_no_cluster_that_only_the_folder_names(foreign):
    said = REFUSED.format(foreign / "config.toml")
    assert refused(3, "resume", foreign) == said
    assert refused(3, "resume", foreign, "-c", "engine.name=ray") == said
    assert refused(3, "resume", foreign.parent) == said


def test_resume_of_a_sweep_joins_no_cluster_that_only_its_runs_name(foreign):
    (foreign.parent / "sweep.json").write_text(
        '{"settings": ["training.lr"], "runs": {"theirs": {"settings": {}, "seed": 0}}, "failed": {}}'
    )
    done = call("resume", foreign.parent, "--json")
    assert done.exit_code == 3
    assert done.stderr == f"error: {REFUSED.format(foreign / 'config.toml')}\n"


@pytest.mark.parametrize(
    "pair", [f"engine.address={ADDRESS}", "engine.address=mine:1", "engine.name=serial"]
)
def test_an_address_on_the_command_line_counts(foreign, pair):
    engine = read_spec(RunFolder(foreign), [pair]).config.engine
    assert (engine.address or engine.name) == pair.partition("=")[2]


def test_the_cluster_of_this_machine_needs_no_permission(tmp_path):
    (tmp_path / "config.toml").write_text('[engine]\nname = "ray"\naddress = "auto"\n')
    assert read_spec(RunFolder(tmp_path)).config.engine.address == "auto"


def test_an_address_cannot_add_a_command_to_the_hint(foreign):
    (foreign / "config.toml").write_text(ENGINE.replace(ADDRESS, "$(reboot):1"))
    assert "-c 'engine.address=$(reboot):1'," in refused(3, "resume", foreign)


def test_resume_of_a_tune_joins_no_cluster_that_only_its_file_names(tmp_path, foreign):
    (foreign / "base.toml").write_text(ENGINE)
    (foreign / "tune.json").write_text(
        '{"algorithms": ["fedavg"], "settings": ["lr=0.1,0.2"], "overrides": [], "seeds": [0],'
        ' "sampler": "random"}'
    )
    assert refused(3, "resume", foreign) == REFUSED.format(foreign / "base.toml")


def test_a_run_of_ones_own_is_resumed_as_before(tmp_path):
    out = tmp_path / "mine"
    quick = ["rounds=1", "data.clients=2", "training.epochs=1", "engine.name=serial"]
    assert call("run", *(w for p in quick for w in ("-c", p)), "--out", out).exit_code == 0
    assert call("resume", out).exit_code == 0
