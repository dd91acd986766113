"""The library: data of any kind in, an algorithm by name or value, models ready to use out."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import UserDict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.support import QUICK, blobs, calm, digits, identical, memory, model, played, same
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.algorithms.fedbabu import FedBABU
from heterophony.algorithms.fedprox import FedProx
from heterophony.core.errors import ConfigError, DataError, DivergedError, FolderError
from heterophony.data.sources import read_source
from heterophony.runs.events import Event

ALGORITHMS = sorted(ALGORITHM_CLASSES)
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


# A newcomer's own things, at the top level so that other processes find them ------------------


@dataclass(frozen=True)
class Mine(hp.Algorithm):
    """FedAvg that goes only a part of the way."""

    part: float = hp.setting(0.5, "how far", low=0, high=1)
    remark: str | None = hp.setting(None, "whatever")

    def merge(self, server: hp.Server, replies: list[hp.Reply]) -> hp.Server:
        there = hp.mean(replies)
        return server.update(server.model + self.part * (there - server.model))


@dataclass(frozen=True)
class Whole(Mine):
    """All of the way: FedAvg, almost to the bit."""

    def merge(self, server: hp.Server, replies: list[hp.Reply]) -> hp.Server:
        return server.update(hp.mean(replies))


@dataclass(frozen=True)
class Broken(hp.Algorithm):
    """One client's update is not a number."""

    def local(self, client: hp.Client) -> hp.Tensors:
        up = super().local(client)
        if client.id == "2" and client.t == 1:
            up["head.0.bias"][3] = float("nan")
        return up


@dataclass(frozen=True)
class Dice(hp.Algorithm):
    """Its own models are tuned by chance."""

    def adapt(self, client: hp.Client) -> None:
        with torch.no_grad():
            client.net.head[0].bias.add_(3 * torch.randn(10))


class Own(nn.Module):
    """A module with names of its own, and a head that is called last."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 12)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x.flatten(1)).relu())


def sequential() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


def right(model: nn.Module, federation: hp.Federation, client: str) -> int:
    """Right answers on the client's test examples, given as they are stored."""
    test = federation.data(client).test
    with torch.inference_mode():
        return int((model(test.get_all_stored()).argmax(1) == test.labels).sum())


# The contract's example -----------------------------------------------------------------------


def test_the_example_of_the_contract():
    federation = hp.federate("digits", clients=8, partition=hp.Dirichlet(0.1), seed=0)
    result = hp.run("fedreg", federation, rounds=2, participation=0.25, training=QUICK)
    assert len(result.clients) == 8
    assert result.P.last10.mean == pytest.approx(
        np.mean([sum(e["P"]) for e in result.events if e["event"] == "evaluation" and e["t"]])
        / sum(federation.sizes("test").values())
    )
    assert result.G.best >= result.G.last
    assert result.clients["7"].accuracy == result.clients["7"].correct / result.clients["7"].total
    own = result.personal("7")
    assert isinstance(own, nn.Module)
    assert own(federation.x[:5]).shape == (5, 10)
    assert right(own, federation, "7") == result.clients["7"].correct
    assert str(result).startswith("<Result fedreg: G 0.")


def test_the_defaults_are_a_fifth_of_the_clients_and_the_model_for_the_shape():
    result = hp.run("fedavg", digits(12), rounds=1, training=QUICK)
    assert [len(e["clients"]) for e in result.events if e["event"] == "round"] == [2]
    assert "base.0.weight" in model(result)
    assert model(result)["base.0.weight"].dim() == 4


# Data -----------------------------------------------------------------------------------------


def test_arrays_are_dealt_by_the_partition():
    whole = read_source("digits")
    federation = hp.federate((whole.x, whole.y), clients=5, partition=hp.IID(), seed=3)
    named = hp.federate("digits", clients=5, partition=hp.IID(), seed=3)
    assert federation.clients == ("0", "1", "2", "3", "4")
    assert all(torch.equal(federation.train[c], named.train[c]) for c in named.clients)
    assert federation.sha256 != hp.federate("digits", clients=5, partition=hp.IID()).sha256


def test_arrays_already_split_are_pooled_and_split_anew():
    (a, b) = blobs([30, 10])
    four = hp.federate((*a, *b), clients=2, partition=hp.IID())
    x, y = np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])
    assert four.sha256 == hp.federate((x, y), clients=2, partition=hp.IID()).sha256


def test_clients_bring_their_own():
    parts = blobs([12, 20, 8])
    federation = hp.federate(parts, train_fraction=0.5)
    assert federation.sizes() == {"0": 6, "1": 10, "2": 4}
    assert federation.sizes("test") == {"0": 6, "1": 10, "2": 4}
    for client, (x, _) in zip(federation.clients, parts, strict=True):
        rows = torch.cat([federation.train[client], federation.test[client]])
        held = {tuple(v) for v in federation.x[rows].tolist()}
        assert held == {tuple(v) for v in x.tolist()}
    assert hp.run("fedavg", federation, rounds=1).G is not None


def test_clients_bring_their_own_split():
    (a, b) = blobs([5, 3])
    federation = hp.federate([(*a, *b), (*b, *a)])
    assert federation.sizes() == {"0": 5, "1": 3}
    assert federation.sizes("test") == {"0": 3, "1": 5}
    assert torch.equal(federation.x[federation.train["1"]], torch.from_numpy(b[0]))


def test_torch_tensors_and_paths_are_data_too(tmp_path):
    x, y = blobs([40])[0]
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    found = [
        hp.federate(data, clients=2, partition=hp.IID())
        for data in (
            (torch.from_numpy(x), torch.from_numpy(y)),
            tmp_path / "mine.npz",
            str(tmp_path / "mine.npz"),
        )
    ]
    assert len({f.sha256 for f in found}) == 1


X, Y = np.zeros((4, 5), np.float32), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((X,), "pass (x, y) or (x_train, y_train, x_test, y_test)"),
        ((X, Y, X), "pass (x, y) or (x_train, y_train, x_test, y_test)"),
        ([], "every client needs (x, y) or (x_train, y_train, x_test, y_test)"),
        ([(X, Y), (X,)], "every client needs (x, y) or (x_train, y_train, x_test, y_test)"),
        ((X, Y[:3]), "examples (4, 5) and labels (3,) have different lengths"),
        # together there are as many labels as examples, but whose?
        ([(X, Y[:3]), (X[:3], Y)], "examples (4, 5) and labels (3,) have different lengths"),
        (
            (X, Y, X[:, :2], Y),
            "training examples (4, 5) and test examples (4, 2) must have the same shape",
        ),
        (
            [(X, Y), (X[:, :2], Y)],
            "client 1 has examples of shape (2,) and type float32, client 0 of (5,) and float32",
        ),
        ("nonsense", "data.name: 'nonsense' is neither a data set"),
        (None, "pass (x, y) or (x_train, y_train, x_test, y_test), a Dataset or DataLoader of torch"),
        (5, "pass (x, y) or (x_train, y_train, x_test, y_test), a Dataset or DataLoader of torch"),
        ((x for x in (X, Y)), "pass (x, y) or (x_train, y_train, x_test, y_test), a Dataset or"),
        ({1, 2}, "pass (x, y) or (x_train, y_train, x_test, y_test), a Dataset or DataLoader of"),
        (UserDict(x=X, y=Y), "pass (x, y) or (x_train, y_train, x_test, y_test), a Dataset or"),
        (np.stack([X, X]), "pass (x, y) or (x_train, y_train, x_test, y_test), a Dataset or Data"),
        (hp.Federation, "data: is the class Federation; pass an instance"),
        ({"a": None}, "every client needs (x, y) or (x_train, y_train, x_test, y_test); client a has "
                      "None"),
        ({"a": "xy"}, "every client needs (x, y) or (x_train, y_train, x_test, y_test); client a has "
                      "an object of type str"),
        ({"train": (X, Y), "test": None}, "every client needs (x, y)"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_dealt_are_said(data, said):
    with pytest.raises(DataError) as caught:
        hp.federate(data, clients=2)
    assert str(caught.value).startswith(said)


def test_a_client_with_one_example_is_refused_because_it_cannot_test():
    with pytest.raises(DataError, match=r"^client 1 has 1 example"):
        hp.federate(blobs([10, 1, 10]))


@every_algorithm
def test_a_client_with_one_training_example_takes_part(name):
    (a, b, c) = blobs([30, 1, 9])
    federation = hp.federate([(*a, *c), (*b, *c)])
    result = hp.run(name, federation, rounds=2, participation=1.0, training=QUICK)
    assert result.clients["1"].train == 1
    assert result.clients["1"].participations == (0 if result.plan.algorithm.pooled else 2)
    assert result.clients["1"].total == 9


@every_algorithm
def test_a_class_that_nobody_holds_is_no_trouble(name):
    """Class 1 of 4 has no example at all, class 3 only one for testing."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(24, 6)).astype(np.float32)
    y = np.tile([0, 2], 12)
    test = np.array([0, 2, 3])
    federation = hp.federate([(x, y, x[:3], test), (x[:8], y[:8], x[3:6], test)], classes=4)
    assert federation.classes == 4
    result = hp.run(name, federation, rounds=2, participation=1.0, training=QUICK)
    assert [c.total for c in result.clients.values()] == [3, 3]
    assert result.personal("0")(federation.x[:2]).shape == (2, 4)


# Models and algorithms of one's own -----------------------------------------------------------


@pytest.mark.parametrize("make", [sequential, Own])
@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedreg"])
def test_any_module_is_split_into_base_and_head(name, make):
    result = played(name, model=make, rounds=2)
    heads = {k: v.shape for k, v in result.personal("0").net.head.state_dict().items()}
    assert sorted(tuple(s) for s in heads.values()) == [(10,), (10, 12)]
    assert identical(result, played(name, model=make, rounds=2))


@pytest.mark.parametrize("make", [sequential, Own])
def test_a_modules_weights_are_the_start_and_stay_its_own(make):
    given = make()
    before = {k: v.clone() for k, v in given.state_dict().items()}
    start = played("fedavg", model=given, rounds=0)
    assert {v.sum().item() for v in model(start).values()} == {
        v.sum().item() for v in before.values()
    }
    played("fedavg", model=given, rounds=1)
    assert all(torch.equal(v, before[k]) for k, v in given.state_dict().items())
    assert identical(start, played("fedavg", model=given, rounds=0, seed=0))


def test_an_algorithm_by_value_is_as_good_as_by_name():
    assert identical(played("fedprox"), played(FedProx()))
    assert same(model(played(Whole())), model(played("fedavg")))


def test_an_own_algorithm_gives_the_same_bits_on_both_engines():
    half = played(Mine(0.5))
    assert identical(half, played(Mine(0.5), engine="pool", workers=2))
    assert not identical(half, played(Mine(0.25)))
    assert half.summary.algorithm == "mine"


def test_an_own_algorithm_that_stands_still():
    result = played(Mine(part=0.0))
    assert same(model(result), result.plan.create_initial_server().model)


@pytest.mark.parametrize("part", [-0.1, 1.5, "half"])
def test_an_own_algorithms_settings_are_checked(part):
    with pytest.raises(ConfigError, match=r"^part: must be "):
        Mine(part)


def test_a_lambda_gives_the_same_bits_on_both_engines():
    make = lambda: sequential()  # noqa: E731  # the point of the test
    serial = played("fedavg", model=make, rounds=1)
    assert identical(serial, played("fedavg", model=make, rounds=1, engine="pool", workers=1))


# The models that come out -----------------------------------------------------------------------


@every_algorithm
def test_the_models_are_those_that_were_measured(name):
    result = calm(name)
    last = result.events[-2]
    federation = result.plan.federation
    own = [right(result.personal(c), federation, c) for c in federation.clients]
    assert own == last["P"]
    assert own == [c.correct for c in result.clients.values()]
    if result.plan.algorithm.common:
        generic = result.generic()
        assert [right(generic, federation, c) for c in federation.clients] == last["G"]


def test_a_model_tuned_by_chance_is_still_the_one_that_was_measured():
    result = played(Dice())
    federation, before = result.plan.federation, torch.random.get_rng_state()
    own = [right(result.personal(c), federation, c) for c in federation.clients]
    assert own == result.events[-2]["P"]
    assert own != result.events[-2]["G"]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_models_take_stored_bytes_and_scaled_numbers():
    result = played("fedper")
    test = result.plan.federation.data("1").test
    scaled, _ = test.batch(torch.arange(4))
    own = result.personal("1")
    assert torch.equal(own(test.get_all_stored()[:4]), own(scaled))
    assert not own.training


def test_a_kept_result_outlives_its_temporary_folder_only_as_long_as_itself():
    result = played("fedper", rounds=1)
    own, folder = result.personal("0"), Path(result.folder)
    assert folder.is_dir()
    x = result.plan.federation.x[:3]
    logits = own(x)
    del result
    assert not folder.exists()
    assert torch.equal(own(x), logits)


def test_P_may_be_measured_seldom_but_is_after_the_last_round():
    result = played(FedBABU(tune_epochs=1, tune_every=2))
    measured = [e for e in result.events if e["event"] == "evaluation"]
    assert [e["P"] is not None for e in measured] == [True, False, True, True]
    assert all(e["G"] for e in measured)
    assert [c.correct for c in result.clients.values()] == measured[-1]["P"]
    assert result.P.last == sum(measured[-1]["P"]) / sum(
        result.plan.federation.sizes("test").values()
    )
    seldom = played(FedBABU(tune_epochs=1, tune_every=100))
    assert seldom.model_sha256 == result.model_sha256
    assert [e["P"] is None for e in seldom.events if e["event"] == "evaluation"] == [
        *(False, True, True, False)
    ]


def test_local_has_no_common_model():
    result = played("local", rounds=1)
    assert result.G is None
    with pytest.raises(DataError, match=r"^local has no generic model$"):
        result.generic()
    assert str(result).startswith("<Result local: no G, P 0.")


def test_an_unknown_client_is_said():
    with pytest.raises(DataError, match=r"^there is no client '9'$"):
        played("fedavg", rounds=1).personal("9")


# Trouble ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_a_nan_in_an_update_names_client_round_and_tensor(engine):
    with pytest.raises(DivergedError) as caught:
        played(Broken(), participation=1.0, engine=engine, workers=2)
    assert str(caught.value) == (
        "client 2, round 1: 'head.0.bias' of its update holds NaN or infinity; lower training.lr"
    )


def test_a_huge_learning_rate_is_said():
    wild = hp.Training(epochs=3, batch=16, lr=1e30)
    with pytest.raises(DivergedError, match=r"^client \d, round 0: .*lower training\.lr"):
        played("fedavg", training=wild)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"rounds": -1}, "rounds: must be at least 0, not -1"),
        ({"rounds": 1.5}, "rounds: must be a whole number, not 1.5"),
        ({"seed": -1}, "seed: must be at least 0, not -1"),
        ({"evaluate_every": 0}, "evaluation.every: must be at least 1, not 0"),
        ({"head_depth": 0}, "model.head_depth: must be at least 1, not 0"),
        ({"workers": -1, "engine": "pool"}, "engine.workers: must be at least 1, not -1"),
        (
            {"engine": "pol"},
            "engine.name: must be one of serial, pool, ray, not 'pol'; did you mean",
        ),
        ({"model": "digitnet"}, "model.name: no 'digitnet' here; did you mean 'digitsnet'?"),
        ({"participation": True}, "participation: must be a share, a number or a rule"),
        ({"participation": 1.5}, "participation.rate: must be above 0 and at most 1, not 1.5"),
        ({"participation": 7}, "participation.count: 7 clients are selected per round"),
    ],
)
def test_wrong_settings_are_said_before_anything_is_written(how, said, tmp_path):
    with pytest.raises(ConfigError) as caught:
        played("fedavg", out=tmp_path / "run", **how)
    assert str(caught.value).startswith(said)
    assert not (tmp_path / "run").exists()


def test_an_unknown_algorithm_gets_the_nearest_right_one():
    with pytest.raises(ConfigError, match=r"^algorithm\.name: no 'fedrag' here; did you mean"):
        played("fedrag")


# Folders ----------------------------------------------------------------------------------------


class StopError(Exception):
    """Something happened in the middle."""


def stop_at_round_1(event: Event) -> None:
    if event["event"] == "round" and event["t"] == 1:
        raise StopError


def test_a_run_in_a_folder_goes_on_after_an_interruption(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        played("fedrod", out=out, on_event=stop_at_round_1)
    result = played("fedrod", out=str(out), resume=True)
    assert identical(result, played("fedrod"))
    assert result.folder == out
    assert {p.name for p in out.iterdir()} == {
        *("commits", "config.toml", "events.jsonl", "lock", "partition.json", "result.json")
    }


def test_a_finished_run_is_read_not_repeated(tmp_path):
    first = played("fedper", out=tmp_path / "run")
    seen: list[Event] = []
    again = played("fedper", out=tmp_path / "run", resume=True, on_event=seen.append)
    assert not seen
    assert again.summary == first.summary
    assert memory(again, "0").keys() == memory(first, "0").keys()


def test_resume_begins_where_there_is_nothing(tmp_path):
    assert identical(played("fedavg", out=tmp_path / "a", resume=True), played("fedavg"))


def test_a_used_folder_is_refused(tmp_path):
    out = tmp_path / "run"
    played("fedavg", out=out, rounds=1)
    with pytest.raises(FolderError, match="already holds a run"):
        played("fedavg", out=out, rounds=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(FolderError, match="is not empty"):
        played("fedavg", out=tmp_path / "other")


@pytest.mark.parametrize(
    "other",
    [
        {"rounds": 5},
        {"seed": 1},
        {"training": replace(QUICK, lr=0.1)},
        {"participation": 1.0},
        {"model": "digitsnet"},
        {"evaluate_every": 2},
        {"algorithm": "fedprox"},
    ],
)
def test_a_run_does_not_go_on_with_other_settings(other, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        played("fedavg", out=out, on_event=stop_at_round_1)
    with pytest.raises(FolderError) as caught:
        played(**{"algorithm": "fedavg", **other}, out=out, resume=True)
    assert str(caught.value) == f"{out} holds a run with other settings; choose another out="
    assert identical(played("fedavg", out=out, resume=True), played("fedavg"))  # it is not locked


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        played("fedavg", out=out, on_event=stop_at_round_1)
    with pytest.raises(FolderError, match=r"^the data differ from those the run was started with"):
        played("fedavg", digits(alpha=5.0), out=out, resume=True)


def test_the_configuration_describes_own_things_too(tmp_path):
    class Everybody:
        def chosen(self, t, clients, seed):
            return list(clients)

    out = tmp_path / "run"
    played(Mine(0.25), out=out, rounds=1, model=Own(), participation=Everybody())
    text = (out / "config.toml").read_text()
    assert '[model]\nname = "Own"\n' in text
    assert '[algorithm]\nname = "mine"\npart = 0.25\n\n' in text
    assert tomllib.loads(text)["objects"] == {
        "data": "arrays",
        "model": "Own",
        "algorithm": "Mine",
        "participation": "Everybody",
    }


def test_the_configuration_names_an_algorithm_as_the_events_do(tmp_path):
    result = played("fedrep_full", out=tmp_path / "run", rounds=1)
    assert result.summary.algorithm == "fedrep_full"
    assert '[algorithm]\nname = "fedrep_full"\n' in (tmp_path / "run" / "config.toml").read_text()


def test_a_run_leaves_torchs_generator_as_it_was():
    before = torch.random.get_rng_state()
    played("fedavg", rounds=1)
    assert torch.equal(torch.random.get_rng_state(), before)


# What is public ---------------------------------------------------------------------------------


def test_the_public_names_are_all_there():
    assert {"Algorithm", "Samples", "answer", "frozen", "run", "setting", "state"} <= set(
        hp.__all__
    )
    for name, module in hp.PUBLIC.items():
        assert getattr(hp, name) is getattr(sys.modules[f"heterophony.{module}"], name)
    assert dir(hp) == sorted([*hp.__all__, "__version__"])
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = hp.nothing


def test_the_stub_for_editors_has_one_line_for_every_public_name():
    stub = Path(hp.__file__).with_suffix(".pyi").read_text()
    lines = [line for line in stub.splitlines() if line and not line.startswith('"""')]
    assert lines == [*(f"from .{m} import {n} as {n}" for n, m in hp.PUBLIC.items()),
                     "__version__: str"]  # fmt: skip


def test_a_package_below_does_not_hide_the_public_function_of_its_name():
    code = "import heterophony.runs.folder, heterophony; print(heterophony.run.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "heterophony.studies.run\n"


def test_importing_it_does_not_import_torch():
    code = (
        "import sys, heterophony, heterophony.cli; print({'torch', 'numpy'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_pool_of_a_script_imports_torch_while_the_run_is_prepared(monkeypatch):
    """Workers start in milliseconds from a fork server, if that has had the time to import."""
    done = []
    monkeypatch.setattr(
        "heterophony.engines.child_processes.start_fork_server", lambda: done.append("server")
    )

    def build_plan(*_):
        raise ConfigError("as far as needed")

    monkeypatch.setattr("heterophony.config.config.Config.build_plan", build_plan)
    with pytest.raises(ConfigError, match="as far as needed"):
        played("fedavg", engine="pool")
    assert done == ["server"]
    with pytest.raises(ConfigError, match="as far as needed"):
        played("fedavg", engine="serial")
    assert done == ["server"]
