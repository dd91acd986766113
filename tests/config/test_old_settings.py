"""Settings of earlier versions: read as what they meant, or refused in one clear line."""

from __future__ import annotations

import tomllib

import pytest

from helpers.commands import call, refused
from heterophony.config.old_settings import parse_settings_text
from heterophony.config.reading import resolve_config
from heterophony.core.errors import ConfigError

LOCAL = {"epochs": 1, "lr": 0.01}
DECAY = {"schedule": "exponential", "decay_factor": 0.9}
EVERYBODY = {"rate": 1.0, "replacement": False, "dropout": 0.0}


def pfakd(participation: dict, local: dict = LOCAL, **algorithm) -> dict:
    return {
        "data": {"clients": 4},
        "local": local,
        "participation": participation,
        "algorithm": {"name": "PFAKD", **algorithm},
    }


@pytest.mark.parametrize("participation", [EVERYBODY, {"count": 4}])
def test_pfakds_own_decay_is_the_schedule_where_all_clients_train_in_every_round(participation):
    old = resolve_config(pfakd(participation, lr_decay=0.9))
    assert old == resolve_config(pfakd(participation, {**LOCAL, **DECAY}))
    assert [old.local.compute_lr_factor(t, 9) for t in range(3)] == [1.0, 0.9, 0.9**2]


def test_a_decay_of_1_was_none():
    assert resolve_config(pfakd({"rate": 0.5}, lr_decay=1.0)) == resolve_config(
        pfakd({"rate": 0.5})
    )


@pytest.mark.parametrize(
    ("participation", "local"),
    [
        ({"rate": 0.5}, LOCAL),
        ({"rate": 1.0, "dropout": 0.1}, LOCAL),
        ({"count": 4, "replacement": True}, LOCAL),
        (EVERYBODY, {}),
        (EVERYBODY, {**LOCAL, **DECAY}),
    ],
)
def test_a_decay_that_no_schedule_repeats_is_refused(participation, local):
    with pytest.raises(
        ConfigError, match=r"^algorithm.lr_decay: is gone; set local.schedule = 'ex"
    ):
        resolve_config(pfakd(participation, local, lr_decay=0.9))


def test_a_file_with_the_old_setting_names_its_line(tmp_path):
    file = tmp_path / "old.toml"
    file.write_text('[algorithm]\nname = "pfakd"\nlr_decay = 0.9\n')
    assert refused(3, "run", file).startswith(f"{file}:3: algorithm.lr_decay: is gone; set local.")


def test_a_run_of_before_resumes_and_is_the_same_as_one_of_today(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ["-c", "rounds=2", "-c", "data.clients=2", "-c", "participation.rate=1.0"]
    short += ["-c", "local.epochs=1", "-c", "engine.name=serial"]
    assert call("run", "pfakd", *short, "--out", "new").exit_code == 0
    text = (tmp_path / "new" / "config.toml").read_text()
    old = text.replace('name = "pfakd"\n', 'name = "pfakd"\nlr_decay = 1.0\n')
    assert parse_settings_text(old) == tomllib.loads(text) != tomllib.loads(old)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.toml").write_text(old)
    assert call("resume", "old").exit_code == 0
    hashes = {
        (tmp_path / d / "result.json").read_text().split('"model_sha256"')[1][:70]
        for d in ("old", "new")
    }
    assert len(hashes) == 1


def test_settings_that_are_newer_than_runs_are_left_out_of_their_files():
    text = resolve_config({"algorithm": {"name": "fedreg"}}).to_toml()
    assert "phases" not in text
    chosen = {"algorithm": {"name": "fedreg", "phases": "interleaved"}}
    assert 'phases = "interleaved"' in resolve_config(chosen).to_toml()


def test_a_run_of_local_from_before_continues_with_all_clients():
    everybody = resolve_config({"algorithm": {"name": "local", "clients": "all"}}).to_toml()
    assert 'clients = "all"' not in everybody  # as a run of before wrote it
    assert resolve_config(tomllib.loads(everybody)).algorithm.everybody
    selected = resolve_config({"algorithm": {"name": "local"}})
    assert not selected.algorithm.everybody
    assert resolve_config(tomllib.loads(selected.to_toml())).algorithm == selected.algorithm


def test_a_run_of_feddecomp_that_had_too_few_epochs_continues_as_it_was():
    raw = tomllib.loads(resolve_config({"algorithm": {"name": "feddecomp"}}).to_toml())
    raw["algorithm"]["own_epochs"], raw["local"]["epochs"] = 2, 1
    assert resolve_config(raw).algorithm.own_epochs == 1
    by_hand = {"algorithm": raw["algorithm"], "local": {"epochs": 1}}
    with pytest.raises(ConfigError, match=r"^algorithm.own_epochs: 2 of local.epochs = 1"):
        resolve_config(by_hand)
