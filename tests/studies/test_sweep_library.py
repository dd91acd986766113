"""``hp.sweep``: many settings from Python, with the bits of ``hp.run``, chosen by validation."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Lock

import pytest
from torch import nn

import heterophony as hp
from helpers.support import QUICK, digits
from heterophony.core.errors import ConfigError, EngineError
from heterophony.data.sources import read_source

HOW = {"model": "mlp", "rounds": 2, "participation": 0.5, "training": QUICK}


@cache
def validated() -> hp.Federation:
    whole = read_source("digits")
    some = (whole.x[:300], whole.y[:300])
    return hp.federate(some, clients=3, partition=hp.IID(), validation_fraction=0.2)


def hashes(folder: Path) -> dict[str, str]:
    return {
        p.parent.name: json.loads(p.read_text())["model_sha256"]
        for p in folder.glob("*/result.json")
    }


def test_a_sweep_has_the_bits_of_single_runs_on_both_engines(tmp_path):
    swept = {"mu": [0, 0.5], "lr": [0.01, 0.1]}
    found = hp.sweep("fedprox", validated(), swept, seeds=(0, 1), out=tmp_path / "a", **HOW)
    assert found.keys == ["algorithm.mu", "training.lr"]
    assert len(found.rows) == 4
    assert found.best == found.rows[0].settings
    single = hp.run(
        hp.FedProx(mu=0.5),
        validated(),
        **{**HOW, "training": hp.Training(epochs=1, batch=16, lr=0.1), "seed": 1},
    )
    bits = hashes(tmp_path / "a")
    assert len(bits) == 8
    assert bits["mu=0.5_lr=0.1-1"] == single.model_sha256
    how = {"seeds": (0, 1), "engine": "pool", "workers": 2, "out": tmp_path / "b"}
    again = hp.sweep("fedprox", validated(), swept, **how, **HOW)
    assert hashes(tmp_path / "b") == bits
    assert again.rows == found.rows


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_a_sweep_in_a_log_is_one_line_at_its_end(engine, capfd):
    how = {**HOW, "rounds": 1, "engine": engine, "workers": 2}
    hp.sweep("fedavg", validated(), {"lr": [0.1, 0.2, 0.3]}, **how)
    assert capfd.readouterr().err == "3 runs finished\n"
    heard = []
    how |= {"progress": False, "on_event": heard.append}
    hp.sweep("fedavg", validated(), {"lr": [0.1, 0.2]}, **how)
    assert capfd.readouterr().err == ""
    assert [e["event"] for e in heard].count("end") == 2


def test_the_same_call_continues_and_what_diverges_is_a_row(tmp_path):
    swept = {"lr": "0.01,1e30"}
    found = hp.sweep("fedavg", validated(), swept, out=tmp_path, **HOW)
    assert [row.state for row in found.rows] == ["finished", "diverged"]
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/events.jsonl")}
    again = hp.sweep("fedavg", validated(), swept, out=tmp_path, **HOW)
    assert again == found
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    assert len(hp.draw_sweep(found).axes) == 1


def test_draws_and_keywords_of_run_and_a_temporary_folder():
    swept = {"rounds": [1, 2], "lr": "0.001..0.1"}
    found = hp.sweep("fedavg", validated(), swept, random=3, model="mlp", training=QUICK)
    assert found.keys == ["rounds", "training.lr"]
    assert len(found.rows) == 3
    folder = found.folder
    assert folder.is_dir()
    del found
    assert not folder.exists()


def test_without_validation_examples_it_warns_and_chooses_nothing():
    with pytest.warns(UserWarning, match=r"hp\.federate\(…, validation_fraction=0\.2\)"):
        found = hp.sweep("fedavg", digits(), {"lr": [0.1, 0.01]}, **HOW)
    assert found.best is None
    assert [row.settings["training.lr"] for row in found.rows] == [0.1, 0.01]


@pytest.mark.parametrize(
    ("swept", "how", "said"),
    [
        ({}, {}, "settings: must name what to vary"),
        ({"lrr": [1]}, {}, "lrr: cannot be varied; did you mean 'lr'?"),
        ({"lr": 0.1}, {}, "settings['lr']: must be a list, as in [0.01, 0.1], not 0.1"),
        ({"lr": []}, {}, "settings['lr']: must list values"),
        ({"lr": "0.1..1"}, {}, "training.lr: a range needs random draws"),
        ({"lr": [0.1, -1]}, {}, "training.lr: must be at least 0, not -1"),
        ({"mu": [-1]}, {}, "algorithm.mu: must be at least 0, not -1"),
        ({"lr": [0.1]}, {"round": 1}, "round: neither a keyword of hp.run"),
        ({"lr": [0.1]}, {"engine": "ray"}, "engine: must be one of serial, pool, not 'ray'"),
        ({"lr": [0.1]}, {"seeds": ()}, "seeds: must list at least one seed"),
    ],
)
def test_a_mistake_is_one_line_and_begins_nothing(swept, how, said, tmp_path):
    with pytest.raises(ConfigError) as caught:
        hp.sweep("fedprox", validated(), swept, out=tmp_path / "s", **how)
    assert str(caught.value).startswith(said)
    assert not (tmp_path / "s").exists()


def test_what_cannot_be_sent_to_other_processes_is_one_line(tmp_path):
    lock = Lock()
    how = {
        **HOW,
        "model": lambda: (lock, nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, 10)))[1],
    }
    how["engine"] = "pool"
    with pytest.raises(EngineError, match=r"^the pool engine cannot send 'lock', which test_what_"):
        hp.sweep("fedavg", validated(), {"lr": [0.1, 0.2]}, out=tmp_path, **how)


def test_a_script_that_processes_cannot_import_is_told_what_to_do(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "import heterophony as hp\n"
        "clients = hp.federate('digits', clients=2, validation_fraction=0.2)\n"
        "hp.sweep('fedavg', clients, {'lr': [0.1, 0.2]}, engine='pool', workers=1)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "the script must call hp.sweep below `if __name__ ==" in last
