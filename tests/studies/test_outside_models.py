"""Models outside the package, by ``package.module:function``, from the command line and from Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import heterophony as hp
from helpers.commands import refused
from helpers.forked import Forked
from helpers.support import digits, identical, played
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError

MODULE = '''
"""Nets of a user."""
from torch import nn


class Both(nn.Module):
    """A net that takes an image and a table."""

    def __init__(self):
        super().__init__()
        self.image, self.table = nn.Linear(192, 8), nn.Linear(5, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, image, table):
        return self.head((self.image(image.flatten(1)) + self.table(table)).relu())


def make_net():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    net[1].requires_grad_(False)
    return net


def make_wide(width): ...


number = 3
'''
NAME = "lab_nets:make_net"
SMALL = ["rounds=1", "data.clients=3", "training.steps=1", "engine.name=serial"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A current folder that holds the module ``lab_nets``."""
    (tmp_path / "lab_nets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("lab_nets", None)


def run(*words: str) -> str:
    """Run a command in a process of its own, in the current folder; return what it prints."""
    done = Forked(*words)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    return out


def pairs(*settings: str) -> list[str]:
    return [word for setting in (*SMALL, *settings) for word in ("-c", setting)]


def test_by_name_it_has_the_bits_of_its_function(folder):
    by_name = played("fedavg", model=NAME, rounds=2)
    from lab_nets import make_net  # the fixture wrote it

    assert identical(by_name, played("fedavg", model=make_net, rounds=2))
    assert identical(by_name, played("fedavg", model=NAME, rounds=2, engine="pool", workers=1))
    assert set(by_name.plan.given) == {"base.1.weight", "base.1.bias"}


def test_a_command_runs_it_and_resumes_it_only_with_trust(folder):
    run("run", "fedavg", *pairs(f"model.name={NAME}"), "--out", "cut")
    result = json.loads((folder / "cut" / "result.json").read_text())
    (folder / "cut" / "result.json").unlink()
    line = refused(3, "resume", "cut")
    assert f"model.name: {NAME} would import {folder / 'lab_nets.py'}; read that file" in line
    run("resume", "cut", "--trust")
    again = json.loads((folder / "cut" / "result.json").read_text())
    assert again["model_sha256"] == result["model_sha256"]


def test_a_file_of_two_inputs_trains_a_net_of_two_inputs(folder):
    draw = np.random.default_rng(0)
    image = draw.integers(0, 256, (40, 8, 8, 3), np.uint8)
    table, y = draw.normal(size=(40, 5)).astype(np.float32), np.arange(40) % 2
    np.savez(folder / "both.npz", y=y, **{"x.image": image, "x.table": table})
    run("run", "fedper", *pairs("data.name=both.npz", "model.name=lab_nets:Both"), "--out", "two")
    model = hp.load(folder / "two", trust=True).personal("0")
    assert model(image=image[:3], table=table[:3]).shape == (3, 2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "lab_nets.py",
            "unknown name 'lab_nets.py'; write module:function, as in 'lab_nets:make_net'",
        ),
        ("lab_nets.Both", "unknown name 'lab_nets.Both'; did you mean 'lab_nets:Both'?"),
        ("lab_nets:make_nett", "lab_nets has no 'make_nett'; did you mean 'make_net'?"),
        ("lab_nets:number", "lab_nets:number is neither a function that builds a net, nor a"),
        ("lab_nets:make_wide", "lab_nets:make_wide has required arguments (width); use a function"),
        ("lab-nets:x", "'lab-nets:x' must be package.module:function"),
        ("nowhere:x", "there is no module 'nowhere' on this machine; install its package"),
    ],
)
def test_a_mistake_is_one_line(folder, name, said):
    line = refused(3, "run", "fedavg", *pairs(f"model.name={name}"))
    assert line.startswith(f"model.name: {said}")


def test_a_net_that_does_not_fit_the_data_is_one_line(folder):
    said = "Both cannot process examples of 1×8×8: Both.forward() missing 1 required positional"
    with pytest.raises(ConfigError, match=r"Both cannot process examples of 1×8×8"):
        played("fedavg", digits(), model="lab_nets:Both")
    config = read_config(None, [*SMALL, "model.name=lab_nets:Both"], trust=True)
    with pytest.raises(ConfigError) as caught:
        config.build_plan(digits())
    assert str(caught.value).startswith(said)
    assert config.own_code == ["lab_nets:Both"]
