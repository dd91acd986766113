"""Algorithms outside the package, by ``package.module:Class``: everywhere a name is taken."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import heterophony as hp
from helpers.commands import refused
from helpers.forked import Forked
from helpers.support import identical, played
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class, shorten_name
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError
from heterophony.studies.compare import label_algorithms

MODULE = '''
"""Algorithms of a user."""
from abc import ABC, abstractmethod
from dataclasses import dataclass

import heterophony as hp


@dataclass(frozen=True)
class My_FedAvg(hp.Algorithm):
    """FedAvg with a personal bias that goes only a part of the way."""

    personal = ("head.*.bias",)
    part: float = hp.setting(0.5, "how far", low=0, high=1)

    def merge(self, server, replies):
        return server.update(server.model + self.part * (hp.mean(replies) - server.model))


class Unfinished(hp.Algorithm, ABC):
    @abstractmethod
    def invent(self): ...


class Undecorated(hp.Algorithm):
    part: float = hp.setting(0.5, "how far")


def helper(): ...
'''
NAME = "lab.ideas:My_FedAvg"
SMALL = ("rounds=2", "data.clients=4", "model.name=mlp", "training.steps=2", "engine.workers=2")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A current folder that holds the package ``lab``."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").touch()
    (tmp_path / "lab" / "ideas.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [m for m in sys.modules if m == "lab" or m.startswith("lab.")]:
        del sys.modules[name]


@pytest.fixture
def importable(folder, monkeypatch) -> Path:
    monkeypatch.syspath_prepend(folder)
    return folder


def command(*words: str, settings: tuple[str, ...] = ()) -> str:
    """The command in a process of its own, in the current folder; what it prints."""
    pairs = [word for pair in settings for word in ("-c", pair)]
    done = Forked(*words, *pairs)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    return out


# From Python ----------------------------------------------------------------------------------


def test_by_name_it_has_the_bits_of_its_value_serially_and_in_a_pool(importable):
    from lab.ideas import My_FedAvg  # the fixture wrote it

    by_name = played(NAME)
    assert by_name.summary.algorithm == by_name.events[0]["algorithm"] == NAME
    assert played(My_FedAvg()).summary.algorithm == "my_fedavg"
    assert identical(by_name, played(My_FedAvg()))
    assert identical(by_name, played(NAME, engine="pool", workers=2))
    assert not identical(by_name, played("fedavg"))


def test_a_folder_that_names_it_resumes(importable, tmp_path):
    first = played(NAME, out=tmp_path / "run")
    assert f'name = "{NAME}"' in (tmp_path / "run" / "config.toml").read_text()
    assert played(NAME, out=tmp_path / "run", resume=True).summary == first.summary


def test_an_interrupted_run_that_names_it_continues_on_the_command_line(folder):
    settings = (*SMALL, f"algorithm.name={NAME}")
    command("run", "--out", "whole", settings=settings)
    command("run", "--out", "cut", settings=settings)
    (folder / "cut" / "result.json").unlink()
    max((folder / "cut" / "commits").glob("0*")).unlink()  # as if it had ended before round 2
    lines = (folder / "cut" / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "cut" / "events.jsonl").write_text("".join(lines[:-2]))
    command("resume", "cut", "--trust")
    whole, cut = (
        json.loads((folder / name / "result.json").read_text()) for name in ("whole", "cut")
    )
    assert cut["model_sha256"] == whole["model_sha256"]
    assert cut["algorithm"] == NAME


# From a configuration -------------------------------------------------------------------------


def test_its_settings_are_keys_of_the_section(importable, tmp_path):
    file = tmp_path / "my.toml"
    file.write_text(f'[algorithm]\nname = "{NAME}"\npart = 0.25\n')
    config = read_config(file, ["engine.accelerator=cpu"], trust=True)
    assert config.algorithm.part == 0.25
    assert read_config(None, [f"algorithm.name={NAME}"], trust=True).algorithm.part == 0.5
    file.write_text(config.to_toml())
    assert read_config(file, trust=True) == config
    file.write_text(f'[algorithm]\nname = "{NAME}"\npart = -1\n')
    with pytest.raises(ConfigError, match=r"my\.toml:3: algorithm\.part: must be at least 0"):
        read_config(file, trust=True)
    with pytest.raises(ConfigError, match=r"^algorithm\.prt: unknown key; did you mean 'part'"):
        read_config(None, [f"algorithm.name={NAME}", "algorithm.prt=1"], trust=True)


# From the command line ------------------------------------------------------------------------


def test_run_resume_and_compare_find_it_in_the_current_folder(folder):
    command("run", settings=(*SMALL, f"algorithm.name={NAME}"))
    run = folder / "runs" / "my_fedavg-digits-1"
    result = json.loads((run / "result.json").read_text())
    assert result["algorithm"] == NAME
    (run / "result.json").unlink()
    command("resume", str(run), "--trust")
    assert json.loads((run / "result.json").read_text()) == result
    out = command("compare", NAME, "fedavg", "--out", "both", "--json", settings=SMALL)
    assert {p.name for p in (folder / "both").iterdir() if p.is_dir()} == {
        *("my_fedavg-0", "fedavg-0")
    }
    rows = json.loads(out)
    assert [row["algorithm"] for row in rows] == [NAME, "fedavg"]
    assert [row["name"] for row in rows] == ["My_FedAvg", "FedAvg"]
    again = json.loads((folder / "both" / "my_fedavg-0" / "result.json").read_text())
    assert again["model_sha256"] == result["model_sha256"]


def test_labels_are_names_of_folders_and_differ():
    assert shorten_name("fedrep_full") == "fedrep_full"
    assert label_algorithms([NAME, "a.b:Mine", "fedavg", NAME, "c:Mine"]) == {
        NAME: "my_fedavg",
        "a.b:Mine": "a.b.Mine",
        "fedavg": "fedavg",
        "c:Mine": "c.Mine",
    }


# Mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lab.ideas:", "'lab.ideas:' must be package.module:Class"),
        (":Mine", "':Mine' must be package.module:Class"),
        (
            "lab/ideas.py:Mine",
            "'lab/ideas.py:Mine' must be package.module:Class; did you mean 'lab.ideas:Mine'?",
        ),
        (
            "ideas.py:Mine",
            "'ideas.py:Mine' must be package.module:Class; did you mean 'ideas:Mine'?",
        ),
        ("lab.ideas.Mine", "unknown name 'lab.ideas.Mine'; did you mean 'lab.ideas:Mine'?"),
        ("ideas.py", "unknown name 'ideas.py'; write module:Class, as in 'ideas:MyClass'"),
        ("fed.avg-m!", "unknown name 'fed.avg-m!'"),
        ("nowhere.ideas:Mine", "there is no module 'nowhere' on this machine; install its package"),
        ("lab.idea:Mine", "there is no module 'lab.idea' on this machine; install its package"),
        ("lab.ideas:MyFedAvg", "lab.ideas has no class 'MyFedAvg'; did you mean 'My_FedAvg'?"),
        ("lab.ideas:helper", "lab.ideas:helper is not a subclass of heterophony.Algorithm"),
        ("lab.ideas:hp", "lab.ideas:hp is not a subclass of heterophony.Algorithm"),
        ("lab.ideas:Unfinished", "lab.ideas:Unfinished is abstract; it does not define invent"),
        (
            "lab.ideas:Undecorated",
            "lab.ideas:Undecorated has a setting 'part' but is not a dataclass; write @dataclass",
        ),
        (
            "lab.broken:Mine",
            "cannot import lab.broken: ModuleNotFoundError: No module named 'gone'"
            " (lab/broken.py, line 1)",
        ),
        ("lab.torn:Mine", "cannot import lab.torn: SyntaxError: "),
        (
            "lab.undocumented:Mine",
            "cannot import lab.undocumented: ConfigError: setting: give a default and a description,"
            " as in setting(1.0, 'strength of the pull') (lab/undocumented.py, line 3)",
        ),
    ],
)
def test_a_mistake_is_one_line(importable, name, said):
    (importable / "lab" / "broken.py").write_text("import gone\n")
    (importable / "lab" / "torn.py").write_text("class Mine(\n")
    text = "import heterophony as hp\nclass Mine(hp.Algorithm):\n    lam: float = hp.setting(1.0)\n"
    (importable / "lab" / "undocumented.py").write_text(text)
    line = refused(3, "run", "-c", f"algorithm.name={name}")
    assert line.startswith(f"algorithm.name: {said}")
    with pytest.raises(ConfigError):
        hp.run(name, hp.federate("digits", clients=2))


def test_a_setting_without_a_default_is_said_with_its_class(importable):
    text = f"{MODULE}\n@dataclass(frozen=True)\nclass Needs(hp.Algorithm):\n    lam: float\n"
    (importable / "lab" / "ideas.py").write_text(text)
    said = (
        "algorithm.lam: lab.ideas:Needs gives this setting no default; write lam: … = setting(1.0,"
        " 'what it is') in the class, or set algorithm.lam"
    )
    assert refused(3, "run", "-c", "algorithm.name=lab.ideas:Needs") == said
    with pytest.raises(ConfigError) as caught:
        hp.run("lab.ideas:Needs", hp.federate("digits", clients=2))
    assert str(caught.value) == said
    pairs = ["algorithm.name=lab.ideas:Needs", "algorithm.lam=2"]
    assert read_config(None, pairs, trust=True).algorithm.lam == 2


def test_a_mistake_names_the_line_of_its_file(folder, tmp_path):
    file = tmp_path / "my.toml"
    file.write_text('seed = 1\n\n[algorithm]\nname = "nowhere:Mine"\n')
    with pytest.raises(ConfigError, match=r"my\.toml:4: algorithm\.name: there is no module"):
        read_config(file, trust=True)


def test_a_class_of_the_package_has_a_long_name_too():
    assert get_algorithm_class("heterophony.algorithms.fedavg:FedAvg") is get_algorithm_class(
        "fedavg"
    )


# Mistakes in an algorithm's file ------------------------------------------------------------------


@dataclass(frozen=True)
class NothingSent(hp.Algorithm):
    """Its ``local`` forgets to return."""

    def local(self, client):
        client.fit()


@dataclass(frozen=True)
class MistypedPattern(hp.Algorithm):
    """The head is a Sequential: its bias is called head.0.bias."""

    personal = ("head.bias",)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (NothingSent(), r"nothingsent: local\(\) returned NoneType; return the tensors to send"),
        (
            MistypedPattern(),
            r"personal = 'head.bias' matches no tensor .* 'head' has .*head.0.bias",
        ),
    ],
)
def test_a_mistake_in_the_file_is_one_line_too(algorithm, said):
    with pytest.raises(ConfigError, match=said):
        hp.run(algorithm, hp.federate("digits", clients=2), rounds=1)


def test_a_registered_class_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setitem(ALGORITHM_CLASSES, "fedavg", "FedAvgg")
    said = "heterophony.algorithms.fedavg has no class 'FedAvgg'; did you mean 'FedAvg'?"
    assert said in refused(3, "run", "-c", "algorithm.name=fedavg")
