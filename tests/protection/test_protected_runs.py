"""Protections in whole runs: what changes nothing has the bits of before, on every engine; resumes."""

from __future__ import annotations

import signal
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

import heterophony as hp
from helpers.boards import compute_one_at_a_time, mosquitto, on_boards, simulated, small
from helpers.killed_run import run_until_killed
from helpers.support import CALM, calm, identical, played, untimed
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.config.reading import read_config
from heterophony.core import files as secret_file
from heterophony.core.errors import ConfigError, FolderError
from heterophony.protection import PROTECTION_CLASSES, build_protections, describe_protections

NOTHING = [
    hp.ClientDP(clip=inf, noise=0.0),
    hp.TopK(ratio=1.0),
    hp.Quantize(bits=32),
    hp.TrimmedMean(f=0),
    hp.Median(f=0),
    hp.Krum(f=0),
    hp.NormBound(bound=inf),
]
SECRET = bytes(range(32))
SHORT = {"rounds": 2, "evaluate_every": 2, "weights": "uniform"}
PROTECTIONS = {
    "client_dp": hp.ClientDP(clip=0.5, noise=1.0),
    "device_dp": hp.ClientDP(clip=0.5, noise=1.0, where="device"),
    "krum": hp.Krum(f=1),
    "masked_sum": hp.MaskedSum(),
    "median": hp.Median(),
    "norm_bound": hp.NormBound(),
    "quantize": hp.Quantize(bits=1),
    "top_k": hp.TopK(ratio=0.1),
    "trimmed_mean": hp.TrimmedMean(),
}
PERSONAL = {  # FedReG's weights from replies would make its merge more than a sum
    "fedreg": hp.FedReG(weights="origin", augment="copy"),
    "fedper": hp.FedPer(),
    "ditto": hp.Ditto(),
}


@pytest.fixture
def one_secret(monkeypatch):
    """Every run draws the same secret, so that runs can be compared."""
    monkeypatch.setattr(secret_file, "draw_secret", lambda: SECRET)


@pytest.mark.parametrize("name", sorted(set(ALGORITHM_CLASSES) - {"centralized"}))
def test_what_changes_nothing_leaves_no_trace_in_the_plan(name):
    """Then no code of a protection runs, on any engine: `plan.protections` is what decides."""
    pairs = [f"algorithm.name={name}", "data.clients=4", "model.name=mlp"]
    config = replace(read_config(None, pairs), protections=tuple(NOTHING))
    plan = config.build_plan(played("fedavg", rounds=0).plan.federation)
    assert plan.protections == ()
    assert not plan.needs_secret


def test_what_changes_nothing_has_the_bits_of_before():
    for engine in ("serial", "pool"):
        result = played("fedreg", engine=engine, workers=2, protection=NOTHING, **CALM)
        assert untimed(result) == untimed(calm("fedreg"))


def get_settings(kind: str) -> dict:
    return {**SHORT, **({"participation": 5} if kind == "krum" else {})}


def play(kind: str, name: str = "fedreg", out: Path | None = None, **how) -> hp.Result:
    settings = {**get_settings(kind), **how, "protection": [PROTECTIONS[kind]]}
    return played(PERSONAL[name], out=out, resume=out is not None, **settings)


def test_every_protection_is_tried():
    kinds = {describe_protections([p])["protection"][0]["kind"] for p in PROTECTIONS.values()}
    assert kinds == set(PROTECTION_CLASSES) - {"example_dp"}  # which has tests of its own


@pytest.mark.parametrize("name", PERSONAL)
@pytest.mark.parametrize("kind", PROTECTIONS)
def test_a_killed_run_resumes_to_the_same_bits(kind, name, one_secret, tmp_path):
    """Kill -9 after the second round was recorded and before it was committed."""
    how = (tmp_path / "run", 1, SECRET, get_settings(kind))
    assert run_until_killed(PERSONAL[name], PROTECTIONS[kind], *how) == -signal.SIGKILL
    resumed = play(kind, name, tmp_path / "run")
    assert identical(resumed, play(kind, name))
    epsilons = [e.get("epsilon") for e in resumed.events if e["event"] == "round"]
    assert (epsilons[1] is not None) == (kind in ("client_dp", "device_dp"))


@pytest.mark.parametrize("kind", ["device_dp", "top_k"])
def test_the_pool_gives_the_serial_bits(kind, one_secret):
    assert untimed(play(kind)) == untimed(play(kind, engine="pool", workers=2))


def test_devices_have_the_bits_of_a_simulation(one_secret, tmp_path, monkeypatch):
    compute_one_at_a_time(monkeypatch)
    given = '[{kind="client_dp", clip=0.5, noise=1.0}, {kind="top_k", ratio=0.1}]'
    settings = {"protection": given, "aggregation.weights": "uniform"}
    config = small("fedper", **settings)
    alone, here = simulated(config, tmp_path / "alone")
    with mosquitto(tmp_path / "broker", "one", "two") as (_, known):
        result, there = on_boards(config, known, tmp_path / "dp")
    assert result.model_sha256 == alone.model_sha256
    kept = ("t", "clients", "bytes_up", "bytes_down", "epsilon", "delta", "loss")
    rounds = [[{k: e[k] for k in kept} for e in events if e["event"] == "round"] for events in (here, there)]  # fmt: skip
    assert rounds[0] == rounds[1]
    dense = simulated(small("fedper", **{"aggregation.weights": "uniform"}), tmp_path / "dense")[0]
    assert result.bytes["up"] < dense.bytes["up"] / 4
    secret = tmp_path / "dp" / "run" / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    told = (tmp_path / "dp" / "run" / "config.toml").read_text()
    assert bytes(range(32)).hex() not in told
    assert "secret" not in told


@pytest.fixture
def begun(tmp_path):
    """The settings of a run with noise that stopped in its second round, to resume it."""

    class StopError(Exception):
        pass

    def stop(event):
        if event["event"] == "round" and event["t"] == 1:
            raise StopError

    how = {"protection": [hp.ClientDP(noise=1.0)], "out": tmp_path / "run", "resume": True, **SHORT}
    with pytest.raises(StopError):
        played("fedavg", on_event=stop, **how)
    return how


def test_a_lost_secret_is_a_clear_error(begun):
    (begun["out"] / "secret").unlink()
    with pytest.raises(FolderError, match="secret is missing: without it the noise of the run"):
        played("fedavg", **begun)


def test_a_replaced_secret_is_a_clear_error(begun):
    secret = begun["out"] / "secret"
    kept = secret.read_bytes()
    secret.write_bytes(bytes(32))
    with pytest.raises(FolderError) as caught:
        played("fedavg", **begun)
    assert str(caught.value) == (
        f"{secret} was replaced after the run started; restore it, or start the run again"
    )
    secret.write_bytes(kept)
    played("fedavg", **begun)


def test_a_secret_that_others_can_read_is_warned_about(begun):
    (begun["out"] / "secret").chmod(0o644)
    with pytest.warns(UserWarning, match="secret has mode 0644: whoever can read it") as warned:
        played("fedavg", **begun)
    assert len(warned) == 1


def test_protections_are_written_and_read(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        "[[protection]]\nkind = 'norm_bound'\nbound = inf\n[[protection]]\nkind = 'TopK'\nratio = 0.5\n"
    )
    config = read_config(file, ["protection.top_k.ratio=0.25", "protection.krum.f=0"])
    assert config.protections == (hp.NormBound(bound=inf), hp.TopK(ratio=0.25), hp.Krum(f=0))
    again = read_config_text(config.to_toml(), tmp_path)
    assert again.protections == config.protections
    assert read_config(None, ["protection=median", "participation.count=4"]).protections == (
        hp.Median(),
    )


def read_config_text(text: str, folder: Path):
    (folder / "again.toml").write_text(text)
    return read_config(folder / "again.toml")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["protection=krumm"], r"protection\.kind: .*did you mean 'krum'"),
        (["protection=[{ratio=1}]"], r"protection\.kind: missing; choose client_dp"),
        (["protection.top_k.rate=1"], r"protection\.top_k\.rate: unknown key"),
        (["protection.top_k=1"], r"must be protection\.KIND\.KEY"),
        (["protection=[{kind='top_k'},{kind='quantize'}]"], "top_k and quantize both encode what is sent"),
        (["protection=[{kind='top_k'},{kind='client_dp',noise=1.0,where='device'}]"],
         r"client_dp: must come before top_k"),
        (["protection=top_k", "participation.replacement=true"], r"set participation\.replacement = false"),
        (["protection=top_k", "algorithm.name=centralized"], "trains on pooled data, so nothing is sent"),
        (["protection=masked_sum", "participation.dropout=0.5"], "cannot be unmasked without every reply"),
        (["participation.kind=possion"], r"participation\.kind: .*did you mean 'poisson'"),
    ],
)  # fmt: skip
def test_bad_settings_are_clear(pairs, message):
    with pytest.raises(ConfigError, match=message):
        read_config(None, pairs)


def test_building_needs_tables():
    with pytest.raises(ConfigError, match="protection: must be a list of tables"):
        build_protections([1])
