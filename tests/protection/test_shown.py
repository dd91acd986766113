"""Protections where people see them: the report page, the audit, and the list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import heterophony as hp
from helpers.support import played
from heterophony.cli import app
from heterophony.core.errors import ConfigError
from heterophony.core.tensors import Tensors
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.plan import Job
from heterophony.privacy.attacks import observe_update
from heterophony.protection import PROTECTION_CLASSES
from heterophony.report.page.html import render_report
from heterophony.report.page.page_data import build_protection_section
from heterophony.results.runs import load_run


def test_the_page_shows_epsilon_over_the_rounds(tmp_path):
    attack = hp.Attack(kind="sign_flip", f=1)
    result = played("fedper", protection=[hp.ClientDP(noise=1.0), hp.TopK(ratio=0.5)], rounds=2,
                    weights="uniform", evaluate_every=2, attack=attack, out=tmp_path / "run")  # fmt: skip
    run = load_run(tmp_path / "run")
    section = build_protection_section([run])
    (row,), (curve,) = section["table"]["rows"], section["curves"]
    cells = row["cells"]
    spent = [round(e["epsilon"], 5) for e in result.events if e["event"] == "round"]
    assert curve["points"] == [[1, spent[0]], [2, spent[1]]]
    assert cells[1].startswith("client_dp (clip 1, noise 1,")
    assert (cells[2], cells[3], cells[-1]) == (f"{spent[1]:.3f}", "1e-05", "1")
    assert "G and P of every client" in section["table"]["notes"][0]
    assert "ε over the rounds" in render_report([run])
    assert build_protection_section([load_run(plain(tmp_path))]) is None


def plain(folder: Path) -> Path:
    played("fedper", rounds=1, out=folder / "plain")
    return folder / "plain"


@pytest.mark.parametrize(
    "protection",
    [
        hp.ClientDP(clip=0.01, noise=0.0),
        hp.ClientDP(clip=1.0, noise=1.0, where="device"),
        hp.TopK(),
    ],
    ids=repr,
)
def test_the_audit_attacks_what_protections_leave(protection, tmp_path):
    plan = played("fedavg", rounds=0, protection=[protection], weights="uniform").plan
    sent = plan.algorithm.send(plan.create_initial_server(), "0")
    job = Job(kind="train", t=0, client="0", tensors=sent)
    gradient = Tensors({k: torch.randn_like(v) for k, v in sent.items()})
    seen = observe_update(plan, job, FolderClientStore(tmp_path, tmp_path), gradient, 0.1, 1)
    assert not torch.equal(seen["base.1.weight"], gradient["base.1.weight"])
    if isinstance(protection, hp.TopK):
        kept = seen["base.1.weight"].flatten().nonzero().numel()
        assert kept == -(-gradient["base.1.weight"].numel() // 10)
    if protection == hp.ClientDP(clip=0.01, noise=0.0):
        assert float(seen.square().sqrt()) == pytest.approx(0.01 / 0.1, rel=1e-3)


def test_an_audit_runs_with_a_protection_and_refuses_others(tmp_path):
    small = ("data.name=digits", "data.clients=3", "model.name=digitsnet", "training.steps=1",
             "engine.name=serial", "aggregation.weights=uniform")  # fmt: skip
    few = ("--rounds", "1", "--clients", "1", "--images", "1", "--iterations", "2")

    def call(protection: str, out: str):
        pairs = [w for pair in (*small, f"protection={protection}") for w in ("-c", pair)]
        return CliRunner().invoke(
            app, ["audit", "fedavg", *few, *pairs, "--out", str(tmp_path / out)]
        )

    assert call("[{kind='client_dp',noise=1.0,where='device'}]", "a").exit_code == 0
    refused = call("masked_sum", "b")
    assert isinstance(refused.exception, ConfigError | SystemExit)
    assert "nothing" in (refused.output + str(refused.exception))


def test_the_list_has_every_protection():
    shown = CliRunner().invoke(app, ["list", "protections", "--json"])
    rows = json.loads(shown.stdout)
    assert [r["name"] for r in rows] == list(PROTECTION_CLASSES)
    assert all(r["about"].endswith((".", ")")) for r in rows)
