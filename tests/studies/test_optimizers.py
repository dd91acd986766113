"""Optimisers, schedules and clipping in whole runs: same bits everywhere, or refused in one line."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace

import pytest
import torch

import heterophony as hp
from helpers.support import (
    QUICK,
    digits,
    identical,
    memory,
    model,
    played,
    replies,
    same,
    untimed,
)
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.config.reading import read_config, resolve_config
from heterophony.core.errors import ConfigError, DivergedError
from heterophony.studies.sweep import CallSpecMaker

LENGTH = {"epochs": 1, "batch": 16}
ADAM = hp.Training(**LENGTH, optimizer="adam", lr=0.01, schedule="cosine", warmup=1, clip_norm=0.5)
CONV = {"model": "digitsnet", "rounds": 4, "training": ADAM}


class StopError(Exception):
    pass


def stop_after_half(event):
    if event["event"] == "round" and event["t"] == 1:
        raise StopError


def test_the_pool_and_a_resumed_run_have_the_bits_of_the_serial_one(tmp_path):
    serial = played("fedper", **CONV)
    pooled = played("fedper", engine="pool", workers=2, **CONV)
    assert untimed(pooled) == untimed(serial)
    out = tmp_path / "run"
    with pytest.raises(StopError):
        played("fedper", out=out, resume=True, on_event=stop_after_half, **CONV)
    assert identical(played("fedper", out=out, resume=True, **CONV), serial)
    for other in ({"schedule": "constant", "final_fraction": None}, {"clip_norm": None}):
        changed = {**CONV, "training": replace(ADAM, **other)}
        assert played("fedper", **changed).model_sha256 != serial.model_sha256


def test_the_state_persists_or_resets_and_nothing_of_it_is_sent():
    how = {"rounds": 3, "participation": 1.0}
    kept, reset = (
        played("fedavg", training=replace(ADAM, momentum_state=s), **how)
        for s in ("persist", "reset")
    )
    client, steps = "0", len(digits().train["0"]) // 16
    assert memory(reset, client) == {}
    state = memory(kept, client)["momentum/main"]
    assert {k.partition("/")[0] for k in state} == {"exp_avg", "exp_avg_sq", "step"}
    assert {v.item() for v in state.only("step/*").values()} == {3 * steps}
    assert kept.model_sha256 != reset.model_sha256
    assert kept.summary.bytes == reset.summary.bytes == played("fedavg", **how).summary.bytes


def test_the_schedule_of_centralised_is_the_common_one():
    own = hp.Centralized(schedule="cosine")
    common = played("centralized", training=replace(QUICK, schedule="cosine", final_fraction=0.0))
    assert same(model(played(own)), model(common))
    recorded = [e["measures"]["lr"] for e in common.events if e["event"] == "round"]
    assert recorded == pytest.approx([0.05, 0.0375, 0.0125])


def test_clip_norm_limits_the_whole_gradient_of_a_step():
    """One step of plain SGD at rate 1 moves by the clipped gradient, the proximal term included."""
    how = hp.Training(steps=1, batch=16, lr=1.0, momentum=0.0, clip_norm=0.01)

    @dataclass(frozen=True)
    class Pulled(hp.Algorithm):
        strength: float = 0.0

        def local(self, client):
            start = {k: v.detach().clone() for k, v in client.net.named_parameters()}
            client.fit(pull=lambda w: self.strength * w)
            moved = [v.detach() - start[k] for k, v in client.net.named_parameters()]
            client.metrics["moved"] = float(torch.cat([m.flatten() for m in moved]).norm())
            return client.shared()

    for strength in (0.0, 100.0):
        result = played(Pulled(strength), rounds=1, training=how)
        found = [e["measures"]["moved"] for e in result.events if e["event"] == "round"]
        assert found == pytest.approx([0.01], rel=1e-3)


def test_a_limit_that_is_never_reached_changes_no_bit():
    loose = played("fedprox", training=replace(QUICK, clip_norm=1e6))
    assert loose.model_sha256 == played("fedprox").model_sha256


# Algorithms whose rule uses the rate --------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ALGORITHM_CLASSES))
def test_an_algorithm_runs_with_the_optimisers_that_it_allows_and_refuses_others(name):
    cls = get_algorithm_class(name)
    how = hp.Training(**LENGTH, optimizer=cls.optimizers[-1], schedule="cosine", warmup=1)
    clip = 1.0 if cls.allows_clipping else None
    result = played(name, rounds=2, training=replace(how, clip_norm=clip))
    assert all(bool(v.isfinite().all()) for v in model(result).values() if v.is_floating_point())
    for other in {"sgd", "adam", "adamw"} - set(cls.optimizers):
        with pytest.raises(ConfigError, match=f"not '{other}'; set training.optimizer"):
            played(name, training=hp.Training(optimizer=other))


HALVED = {  # settings, and those whose rates are half as large
    "apfl": ({}, {}),
    "fedamp": ({"alpha": 0.1}, {"alpha": 0.1}),  # where the floor holds
    "fednova": ({"mu": 0.5}, {"mu": 0.5}),
    "pfedgate": ({"gate_lr": 0.02}, {"gate_lr": 0.01}),
    "pfedme": ({}, {"own_lr": 0.025, "local_lr": 0.005}),
    "scaffold": ({}, {}),
}


@pytest.mark.parametrize("name", HALVED)
def test_half_the_rate_by_warm_up_is_half_the_rate(name, monkeypatch):
    """In the first round, a warm-up of one round halves every rate that the rule uses."""
    first = []
    for settings, how in zip(
        HALVED[name], (replace(QUICK, warmup=1), replace(QUICK, lr=QUICK.lr / 2)), strict=True
    ):
        algorithm = get_algorithm_class(name)(**settings)
        _, sent = replies(monkeypatch, algorithm, rounds=2, training=how)
        first.append([(r.tensors.digest(), r.metrics.get("alpha")) for r in sent[0]])
    assert first[0] == first[1]


# Refusals -----------------------------------------------------------------------------------


def test_what_the_algorithm_or_the_rounds_do_not_allow_is_refused_before_a_folder_exists(tmp_path):
    cases = {
        "algorithm.name: SCAFFOLD is only defined for training.optimizer = 'sgd', not 'adam'; set"
        " training.optimizer, or choose another algorithm": (
            "scaffold",
            hp.Training(optimizer="adam"),
        ),
        "algorithm.name: GPFL is only defined for training.optimizer = 'sgd' or 'adam', not 'adamw';"
        " set training.optimizer, or choose another algorithm": (
            "gpfl",
            hp.Training(optimizer="adamw"),
        ),
        "training.clip_norm: SCAFFOLD is not defined for clipped gradients; remove training.clip_norm": (
            "scaffold",
            hp.Training(clip_norm=1.0),
        ),
        "training.warmup: must be below rounds, which is 3, not 3": (
            "fedavg",
            hp.Training(warmup=3),
        ),
        "training.decay_rounds: with 2, the rate never falls in 3 rounds, of which 1 are warm-up; lower"
        " training.decay_rounds": (
            "fedavg",
            hp.Training(schedule="step", decay_rounds=2, warmup=1),
        ),
    }
    for said, (name, how) in cases.items():
        with pytest.raises(ConfigError) as caught:
            played(name, training=how, out=tmp_path / "run")
        assert str(caught.value) == said
    assert not (tmp_path / "run").exists()


def test_a_file_and_pairs_are_refused_alike(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text("[algorithm]\nname = 'fednova'\n[training]\noptimizer = 'adam'\n")
    with pytest.raises(ConfigError, match=r"my.toml:2: algorithm.name: FedNova is only"):
        read_config(file)
    with pytest.raises(ConfigError, match=r"^training.momentum: only with optimizer = 'sgd'"):
        read_config(None, ["training.optimizer=adam", "training.momentum=0.9"])


def test_a_pair_that_changes_the_optimiser_drops_what_the_file_says_of_the_other(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text(read_config(None, ["schedule=step", "lr=0.5"]).to_toml())
    changed = read_config(file, ["optimizer=adamw", "training.schedule=cosine"])
    assert changed.training == hp.Training(
        optimizer="adamw", lr=0.5, weight_decay=0, schedule="cosine"
    )
    assert read_config(file, ["epochs=1"]).training.momentum == 0.9
    file.write_text("[training]\noptimizer = 'adam'\nmomentum = 0.9\n")
    with pytest.raises(ConfigError, match=r"my.toml:3: training.momentum: only with"):
        read_config(file, ["optimizer=adam"])


def test_the_text_of_a_configuration_gives_it_back():
    pairs = ["optimizer=adam", "betas=[0.8, 0.9]", "schedule=cosine", "warmup=2", "clip_norm=1"]
    config = read_config(None, [*pairs, "engine.accelerator=cpu"])
    assert config.training.betas == (0.8, 0.9)
    assert resolve_config(tomllib.loads(config.to_toml())) == config


def test_a_sweep_over_optimisers_leaves_each_its_own_defaults():
    given = hp.Training(epochs=2, momentum=0.5)
    maker = CallSpecMaker.from_call("fedavg", digits(), {"training": given})
    made = [maker.make_spec({"training.optimizer": name}, 0) for name in ("sgd", "adam")]
    assert [spec.config.training for spec in made] == [
        given,
        hp.Training(epochs=2, optimizer="adam"),
    ]


def test_divergence_names_what_helps():
    with pytest.raises(
        DivergedError, match=r"lower training.lr or training.momentum, or set training.clip"
    ):
        played("fedavg", training=replace(QUICK, lr=1e30))
    how = hp.Training(**LENGTH, optimizer="adam", lr=1e38)
    with pytest.raises(DivergedError, match=r"lower training.lr, or set training.clip_norm"):
        played("fedavg", training=how)
