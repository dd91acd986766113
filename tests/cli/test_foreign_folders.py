"""A run folder of a stranger: `resume` sends nothing to an address that the command does not name."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.commands import call, refused
from heterophony.config.reading import read_config
from heterophony.studies.tasks import list_engine_settings, read_begun_config

ADDRESS = "stranger.example:6379"
ENGINE = f'[engine]\nname = "ray"\naddress = "{ADDRESS}"\n'
REFUSED = (
    "{} names a Ray cluster, which would receive your token; if it is yours, add"
    f" -c engine.address={ADDRESS}, or run here with -c engine.name=pool"
)


@pytest.fixture
def foreign(tmp_path, monkeypatch) -> Path:
    """Make a folder of a stranger; joining any cluster fails the test."""
    monkeypatch.setattr("heterophony.studies.tasks.prepare_engine", lambda name: pytest.fail(name))
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
        '{"settings": ["local.lr"], "runs": {"theirs": {"settings": {}, "seed": 0}}, "failed": {}}'
    )
    done = call("resume", foreign.parent, "--json")
    assert done.exit_code == 3
    assert done.stderr == f"error: {REFUSED.format(foreign / 'config.toml')}\n"


@pytest.mark.parametrize(
    "pair", [f"engine.address={ADDRESS}", "engine.address=mine:1", "engine.name=serial"]
)
def test_an_address_on_the_command_line_counts(foreign, pair):
    engine = read_begun_config(foreign / "config.toml", [pair]).engine
    assert (engine.address or engine.name) == pair.partition("=")[2]


def test_the_cluster_of_this_machine_needs_no_permission(tmp_path):
    (tmp_path / "config.toml").write_text('[engine]\nname = "ray"\naddress = "auto"\n')
    assert read_begun_config(tmp_path / "config.toml").engine.address == "auto"


def test_an_address_cannot_add_a_command_to_the_hint(foreign):
    (foreign / "config.toml").write_text(ENGINE.replace(ADDRESS, "$(reboot):1"))
    assert "-c 'engine.address=$(reboot):1'," in refused(3, "resume", foreign)


def test_a_file_that_a_command_names_may_name_a_cluster(foreign):
    config = read_config(foreign / "config.toml")
    settings = list_engine_settings(config.engine)
    assert read_begun_config(foreign / "config.toml", settings).engine == config.engine


def test_a_run_of_ones_own_is_resumed_as_before(tmp_path):
    out = tmp_path / "mine"
    quick = ["rounds=1", "data.clients=2", "local.epochs=1", "engine.name=serial"]
    assert call("run", *(w for p in quick for w in ("-c", p)), "--out", out).exit_code == 0
    assert call("resume", out).exit_code == 0
