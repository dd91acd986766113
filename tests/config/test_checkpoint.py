"""Warm starts: what a checkpoint gives, what stays new, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import heterophony as hp
from helpers.support import digits, identical, model, net_with_batch_norm, played, same
from heterophony.algorithms.centralized import Centralized
from heterophony.cli import app
from heterophony.config.checkpoint import load_checkpoint_into, save_checkpoint
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError, FolderError
from heterophony.core.randomness import seeded
from heterophony.core.tensors import state
from heterophony.models import get_model_builder

QUICK = ("rounds=2", "data.clients=4", "training.epochs=1", "engine.name=serial", "model.name=mlp")


def pairs(*settings: str) -> list[str]:
    return [word for s in settings for word in ("-c", s)]


def call(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(w) for w in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def checkpoint(path: Path, name: str = "convnet", shape=(3, 32, 32), classes=200, depth=1) -> Path:
    """Any weights but the ordinary ones."""
    with seeded("elsewhere"):
        save_checkpoint(path, state(get_model_builder(name)(shape, classes, depth)))
    return path


def coloured(classes: int = 3) -> hp.Federation:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, size=(24, 32, 32, 3), dtype=np.uint8)
    return hp.federate((x, np.arange(24) % classes), clients=2, partition=hp.IID())


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_all_layers_but_the_last_are_the_checkpoints_bit_for_bit(depth, tmp_path):
    """Pre-trained on 200 classes, begun with another number: conv1, conv2, fc1 and fc2 stay."""
    path = checkpoint(tmp_path / "tiny.safetensors", depth=depth)
    how = {"model": "convnet", "rounds": 0, "head_depth": depth}
    warm, cold = (played("fedrep_full", coloured(), **how, init=p) for p in (path, None))
    given, begun, ordinary = hp.Tensors(load_file(path)), model(warm), model(cold)
    new = [k for k in begun if given[k].shape != begun[k].shape]
    assert len(new) == 2
    assert sum(begun[k].numel() for k in new) == 193 * 3
    assert same(begun.without(*new), given.without(*new))
    assert same(begun.only(*new), ordinary.only(*new))  # as if there were no checkpoint
    assert not any(torch.equal(begun[k], ordinary[k]) for k in begun if k not in new)


@pytest.mark.parametrize("name", ["fedrep_full", "fedavg", "fedper", "fedrod", "ditto"])
def test_the_ordinary_start_as_a_checkpoint_changes_no_bit(name, tmp_path):
    plain = played(name)
    path = tmp_path / "start.safetensors"
    with seeded(plain.plan.seed, "init"):
        save_checkpoint(path, state(plain.plan.model()))
    assert identical(played(name, init=path), plain)
    assert identical(played(name, init=path, engine="pool", workers=2), plain)


def test_own_parts_are_built_on_what_was_trained_before(tmp_path):
    path = checkpoint(tmp_path / "a.safetensors", "mlp", (1, 8, 8), 10)
    given = hp.Tensors(load_file(path))
    net = played("fedrod", init=path, rounds=0).plan.template
    assert torch.equal(net.own[-1].weight, given["head.0.weight"])
    own = hp.Tensors(played("ditto", init=path, rounds=0).plan.template.own.state_dict())
    assert same(own, given)


def test_running_statistics_come_along(tmp_path):
    trained = played(Centralized(), model=net_with_batch_norm)
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, trained._server.average | trained._server.model)
    start = played("fedavg", model=net_with_batch_norm, init=path, rounds=0)
    given = hp.Tensors(load_file(path))
    assert int(given["base.1.num_batches_tracked"]) > 0
    assert same(state(start.plan.template), given)
    measured = [e for r in (trained, start) for e in r.events if e["event"] == "evaluation"]
    assert measured[-1]["G"] == measured[-2]["G"]


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"name": "digitsnet"}, "has a tensor 'base.0.bias', unlike this model; it must come"),
        (
            {"depth": 2},
            "has no tensor 'base.1.bias', unlike this model; it must come from the same",
        ),
        ({"shape": (1, 9, 9)}, "tensor 'base.1.weight' of "),
    ],
)
def test_what_does_not_fit_is_said_and_nothing_is_written(how, said, tmp_path):
    path = checkpoint(tmp_path / "a.safetensors", **{"name": "mlp", "shape": (1, 8, 8), **how})
    with pytest.raises(ConfigError) as caught:
        played("fedavg", init=path, out=tmp_path / "run")
    assert str(caught.value).startswith("model.init: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_shapes_that_differ_are_said(tmp_path):
    path = checkpoint(tmp_path / "a.safetensors", "mlp", (1, 9, 9), 10)
    with pytest.raises(
        ConfigError, match=r"has the shape \(100, 81\), but this model needs \(100, 64\); only"
    ):
        played("fedavg", init=path)


@pytest.mark.parametrize("content", [b"", b"x" * 7, b"x" * 400, b"\xff" * 64])
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^model.init: ") as caught:
        played("fedavg", init=tmp_path / "a.safetensors")
    assert "\n" not in str(caught.value)


class Trap:
    def __reduce__(self):
        return Path.touch, (Path("sprung"),)


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.safetensors").write_bytes(pickle.dumps(Trap()))
    torch.save({"base.1.weight": Trap()}, "b.safetensors")
    for name in ("a", "b"):
        with pytest.raises(ConfigError, match=r"^model.init: "):
            played("fedavg", init=f"{name}.safetensors")
    assert not Path("sprung").exists()


def test_NaN_and_a_missing_file_are_refused(tmp_path):
    net = get_model_builder("mlp")((1, 8, 8), 10, 1)
    with torch.no_grad():
        net.head[0].bias[3] = float("nan")
    save_checkpoint(tmp_path / "a.safetensors", state(net))
    with pytest.raises(ConfigError, match=r"tensor 'head.0.bias' holds NaN or infinity"):
        played("fedavg", init=tmp_path / "a.safetensors")
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file or directory"):
        played("fedavg", init=tmp_path / "none.safetensors")


def test_a_run_does_not_go_on_with_another_checkpoint(tmp_path):
    path = checkpoint(tmp_path / "a.safetensors", "mlp", (1, 8, 8), 10)

    def stop(event):
        if event["event"] == "round":
            raise KeyboardInterrupt

    how = {"init": path, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        played("fedper", on_event=stop, **how)
    trained = path.read_bytes()
    save_checkpoint(path, state(get_model_builder("mlp")((1, 8, 8), 10, 1)))
    with pytest.raises(FolderError, match="start_sha256 differs"):
        played("fedper", resume=True, **how)
    path.write_bytes(trained)
    assert identical(played("fedper", resume=True, **how), played("fedper", init=path))


# The command ----------------------------------------------------------------------------------


def test_pretrain_writes_what_was_trained_and_a_run_begins_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(
        "pretrain", *pairs(*QUICK, "algorithm.name=fedper"), "-o", "a.safetensors"
    )
    assert code == 0, err
    assert out.splitlines()[0] == "Centralised, 2 rounds, seed 0: accuracy in %"
    assert err.splitlines()[-1] == (
        "wrote a.safetensors; to start runs from it: -c model.init=a.safetensors"
    )
    given = hp.Tensors(load_file("a.safetensors"))
    config = read_config(None, [*QUICK, "algorithm.name=centralized"])
    central = hp.run(
        *("centralized", config.build_federation()), model="mlp", rounds=2, training=config.training
    )
    assert same(given, model(central))
    code, out, _ = call(
        "run",
        *pairs(*QUICK, "algorithm.name=fedper", "model.init=a.safetensors"),
        "--json",
        "--out",
        "b",
    )
    found = json.loads(out)
    first = json.loads(Path("b/events.jsonl").read_text().splitlines()[1])
    assert sum(first["G"]) / sum(c["total"] for c in found["clients"].values()) == central.G.last
    assert read_config(Path("b/config.toml")).model.init == "a.safetensors"
    before = Path("a.safetensors").read_bytes()
    Path("a.safetensors").unlink()
    again = ("pretrain", *pairs(*QUICK, "algorithm.name=fedper"), "-o", "a.safetensors", "--json")
    assert call(*again)[0] == 0  # it was finished: only the file is written anew
    assert Path("a.safetensors").read_bytes() == before
    code, _, err = call("pretrain", *pairs(*QUICK, "seed=1"), "-o", "a.safetensors")
    assert code == FolderError.exit_code
    assert "holds a run with other settings" in err


def test_pretrain_keeps_the_heads_depth_and_the_schedule_of_the_configuration(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    few = (*QUICK[1:4], "rounds=1", "model.name=digitsnet")
    assert call("pretrain", *pairs(*few, "algorithm.name=fedreg"), "-o", "deep.safetensors")[0] == 0
    assert any(k.startswith("head.2.") for k in load_file("deep.safetensors"))
    cosine = ("algorithm.name=centralized", "algorithm.schedule=cosine")
    assert call("pretrain", *pairs(*few, *cosine), "-o", "c.safetensors")[0] == 0
    assert read_config(Path("c.safetensors.run/config.toml")).algorithm == Centralized("cosine")
    assert call("run", *pairs(*few, "algorithm.name=fedreg", "model.init=deep.safetensors"))[0] == 0
    code, _, err = call("run", *pairs(*few, "algorithm.name=fedavg", "model.init=deep.safetensors"))
    assert code == ConfigError.exit_code
    assert "model.init: deep.safetensors has " in err


def test_without_a_checkpoint_nothing_is_new():
    assert identical(played("fedavg", digits(), init=None), played("fedavg", digits()))


def test_feddecomps_shared_part_begins_with_the_checkpoint_and_its_own_with_nothing(tmp_path):
    path = checkpoint(tmp_path / "a.safetensors", "mlp", (1, 8, 8), 10)
    given = hp.Tensors(load_file(path))
    net = played("feddecomp", init=path, rounds=0).plan.template
    sigma = {k: v for k, v in net.state_dict().items() if k.endswith(("original", "bias"))}
    named = {k.replace("parametrizations.weight.original", "weight"): v for k, v in sigma.items()}
    assert same(hp.Tensors(named), given)
    x = torch.rand(5, 1, 8, 8)
    cold = get_model_builder("mlp")((1, 8, 8), 10, 1)
    cold.load_state_dict(given)
    assert torch.equal(net(x), cold(x))  # B = 0: nothing of its own yet


def test_a_state_dict_of_torchvision_gives_all_but_the_last_layer(tmp_path):
    """It names no base and no head: ``conv1.weight`` is that of ``base.conv1``."""
    build = get_model_builder("resnet18_imagenet")
    with seeded("elsewhere"):
        given = hp.Tensors(build((3, 32, 32), 1000, 1).state_dict())
    path = tmp_path / "resnet18.safetensors"
    save_checkpoint(path, hp.Tensors({k.partition(".")[2]: v for k, v in given.items()}))
    net = load_checkpoint_into(lambda: build((3, 32, 32), 5, 1), str(path))()
    begun = hp.Tensors(net.state_dict())
    assert same(begun.only("base.*"), given.only("base.*"))
    assert begun["head.fc.weight"].shape == (5, 512)
    with pytest.raises(ConfigError, match=r"model.init: .* has no tensor 'base.0.bias'"):
        load_checkpoint_into(lambda: get_model_builder("convnet")((3, 32, 32), 5, 1), str(path))
