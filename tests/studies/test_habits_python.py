"""What people try in Python: own rules of participation, training by client, tensors as metrics."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from functools import partial

import numpy as np
import pytest
import torch

import heterophony as hp
from heterophony.core.errors import BusyError, ConfigError, FolderError
from heterophony.core.files import hold_folder
from heterophony.core.tensors import Tensors
from heterophony.core.training import create_optimizer


@pytest.fixture(scope="module")
def clients():
    return hp.federate("digits", clients=4, partition="iid")


def run(clients, **how):
    how = {"rounds": 2, "model": "mlp", "progress": False, "training": hp.Training(steps=1), **how}
    return hp.run(how.pop("algorithm", "fedavg"), clients, **how)


class Recording(hp.FedAvg):
    name: object = "own"
    value: object = None

    def local(self, client):
        update = super().local(client)
        client.metrics[type(self).name] = type(self).value
        return update


class Counting(Recording):
    name, value = 1, 2.0


def test_a_metric_without_a_name_is_one_line(clients):
    words = r"client.metrics\[1\]: the name must be a text, not int; write client.metrics\['1'\]$"
    with pytest.raises(ConfigError, match=words):
        run(clients, algorithm=Counting)


def test_a_tensor_of_one_number_is_a_metric_and_others_are_explained(clients):
    for value in (torch.tensor(2.5), torch.tensor([2.5], requires_grad=True), 2.5):
        Recording.value = value
        result = run(clients, algorithm=Recording, rounds=1)
        assert '"own":2.5' in (result.folder / "events.jsonl").read_text()
    Recording.value = torch.zeros(3)
    with pytest.raises(
        ConfigError, match=r"client.metrics\['own'\]: must be a number, not Tensor \(3,\)"
    ):
        run(clients, algorithm=Recording)


def select_alternately(t, names, seed):
    return [c for i, c in enumerate(names) if i % 2 == t % 2][::-1]


def test_a_function_selects_the_clients_of_a_round(clients, tmp_path):
    result = run(clients, participation=select_alternately, out=tmp_path / "run")
    rounds = [e for e in result.events if e["event"] == "round"]
    assert [e["clients"] for e in rounds] == [["0", "2"], ["1", "3"]]
    objects = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["objects"]
    assert objects["participation"] == "select_alternately"
    again = run(clients, participation=select_alternately, out=tmp_path / "run", resume=True)
    assert again.summary.model_sha256 == result.summary.model_sha256
    for wrong, words in (
        (
            lambda t, names, seed: ["nobody"],
            "returned 'nobody', which is not among the clients of round 0",
        ),
        (lambda t, names, seed: 3, "returned 3; it must return a list of clients"),
        (lambda t, names, seed: [9], "returned '9', which is not among the clients of round 0"),
        (
            lambda t, names: names,
            r"the function fails in round 0 \(TypeError: .*\); it must be a function of",
        ),
        (lambda t, names, seed: 1 / 0, r"in round 0 \(ZeroDivisionError: division by zero\)"),
        ("all", "a function of \\(t, clients, seed\\), not 'all'"),
        (hp.Uniform, "must be a share, a number, a rule such as"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(clients, participation=wrong)


@pytest.mark.parametrize("found", [[3, 1], np.array([1, 3]), np.array(["1", "3"]), ("3", "1")])
def test_a_function_may_return_an_array_or_numbers(clients, found):
    result = run(clients, participation=lambda t, names, seed: found, rounds=1)
    assert [e["clients"] for e in result.events if e["event"] == "round"] == [["1", "3"]]


def test_training_can_differ_by_client(clients, tmp_path):
    usual, slow = hp.Training(steps=1), hp.Training(steps=1, lr=0.0)
    plain = run(clients, participation=1.0)
    same = run(clients, participation=1.0, training=lambda c: usual)
    assert same.summary.model_sha256 == plain.summary.model_sha256
    still = run(clients, participation=1.0, training=dict.fromkeys(clients.clients, slow))
    all_slow = run(clients, participation=1.0, training=slow)
    assert still.summary.model_sha256 == all_slow.summary.model_sha256
    one = run(clients, participation=1.0, training={0: slow, "1": usual, "2": usual, "3": usual},
              out=tmp_path / "run")  # fmt: skip
    assert one.summary.model_sha256 not in (plain.summary.model_sha256, still.summary.model_sha256)
    objects = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["objects"]
    assert objects["training"] == f"{slow!r} of 0; {usual!r} of 1, 2, 3"
    with pytest.raises(FolderError, match="holds a run with other settings"):
        run(clients, participation=1.0, training={"0": slow}, out=tmp_path / "run", resume=True)
    for wrong, words in (
        ({"9": slow}, "training: there is no client '9'"),
        ({"0": 0.1}, "training of client '0': must be hp.Training"),
        (0.1, "training: must be hp.Training"),
        (
            {"lr": 0.1, "epochs": 2},
            r"training: a dict is by client; write hp.Training\(lr=0.1, epochs=2\)$",
        ),
        (
            {"0": hp.Training(optimizer="adam")},
            "is only defined for training.optimizer = 'sgd', not 'adam'",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            run(clients, training=wrong, algorithm="scaffold")


def test_clients_that_train_differently_have_the_bits_of_autograd(clients):
    """They meet in one process, and only those with the same settings train as one computation."""
    base = {"batch": 5, "lr": 0.1}
    ways = {
        0: hp.Training(**base),
        1: hp.Training(**base, nesterov=True),
        2: hp.Training(**base | {"batch": 8}, steps=3),
        3: hp.Training(batch=5, optimizer="adam"),
    }
    for chosen in (ways, ways | {3: hp.Training(**base, nesterov=True, weight_decay=0.1)}):
        fast, plain = (
            run(clients, participation=1.0, training=chosen, fast=fast) for fast in ("auto", "off")
        )
        assert fast.summary.model_sha256 == plain.summary.model_sha256


def test_the_work_of_a_round_counts_each_client_as_it_trains(clients):
    one, three = hp.Training(batch=5, steps=1), hp.Training(batch=5, steps=3)
    plan = run(clients, rounds=0, training={"0": one, "1": three, "2": one, "3": three}).plan
    assert [plan.count_fedavg_examples(0, c) for c in ("0", "1", "0123")] == [5, 15, 40]


def test_training_by_client_is_refused_where_it_has_no_meaning(clients):
    by_client = {"0": hp.Training(batch=5)}
    private = {"protection": [hp.ExampleDP(clip=1.0, noise=1.0)], "model": "mlp"}
    for how, words in (
        ({"algorithm": "centralized"}, "training: centralized trains on pooled data"),
        (private, "training: the accounting of example-level privacy needs the same training"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(clients, training=by_client, **how)
    with pytest.raises(ConfigError, match=r"training: to vary settings, pass one hp\.Training"):
        hp.sweep("fedavg", clients, {"lr": [0.1]}, training=by_client)


def halve(t, rounds):
    return 0.5**t


def test_an_optimiser_and_a_schedule_can_be_functions(clients, tmp_path):
    plain = run(clients, training=hp.Training(steps=3, momentum=0.9), participation=1.0, fast="off")
    same = run(clients, participation=1.0,
               training=hp.Training(steps=3, optimizer=partial(torch.optim.SGD, momentum=0.9, fused=True)))  # fmt: skip
    assert same.loss_curves == plain.loss_curves  # momentum persists between rounds
    scheduled = [
        run(clients, training=hp.Training(steps=3, momentum=0.0, schedule=schedule, **how))
        for schedule, how in ((halve, {}), ("exponential", {"decay_factor": 0.5}))
    ]
    assert scheduled[0].model_sha256 == scheduled[1].model_sha256
    own = hp.Training(steps=3, optimizer=torch.optim.RMSprop, schedule=halve, lr=0.001)
    first = run(clients, training=own, out=tmp_path / "run")
    pool = run(clients, training=own, engine="pool", workers=2)
    assert pool.model_sha256 == first.model_sha256
    again = run(clients, training=own, out=tmp_path / "run", resume=True)
    assert again.model_sha256 == first.model_sha256
    objects = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["objects"]
    assert objects["training"].endswith("with RMSprop and halve of 0, 1, 2, 3")
    by_client = run(clients, training=dict.fromkeys(clients.clients, own))
    assert by_client.model_sha256 == first.model_sha256


def test_unsuitable_optimisers_and_schedules_are_refused(clients):
    parameter = torch.nn.Parameter(torch.zeros(1))
    for how, words in (
        ({"optimizer": torch.optim.SGD([parameter], lr=0.1)}, "or a function, not a SGD$"),
        (
            {"optimizer": torch.optim.Adam, "betas": (0.5, 0.9)},
            "betas: the optimizer is a function",
        ),
        (
            {"schedule": torch.optim.lr_scheduler.StepLR(torch.optim.SGD([parameter]), 1)},
            "or a function, not a StepLR$",
        ),
        (
            {"schedule": halve, "warmup": 2},
            "warmup: the schedule is a function; set this in the function",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            hp.Training(**how)
    for how, words in (
        (
            {"optimizer": torch.optim.LBFGS},
            "training.optimizer: LBFGS cannot step without a closure",
        ),
        ({"optimizer": lambda groups: 3}, "must return a torch.optim.Optimizer, not int"),
        ({"optimizer": halve}, "training.optimizer: halve fails for a list of groups"),
        ({"schedule": lambda t, rounds: -1.0}, "the factor of round 0 must be at least 0, not -1"),
        (
            {"schedule": lambda t: 1.0},
            r"fails for round 0 of 2 \(TypeError: .*\); it must be a function of \(round, rounds\)",
        ),
        ({"schedule": lambda t, rounds: "linear"}, "ValueError: could not convert string to float"),
        ({"schedule": torch.optim.lr_scheduler.StepLR}, "TypeError: int is not an Optimizer"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(clients, training=hp.Training(**how))
    with pytest.raises(ConfigError, match="scaffold is only defined for 'sgd', not for a function"):
        run(clients, algorithm="scaffold", training=hp.Training(optimizer=torch.optim.Adam))


def test_nesterov_is_that_of_torch():
    ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    how = hp.Training(lr=0.1, momentum=0.9, nesterov=True)
    mine = create_optimizer(Tensors({"w": ours}), how, {}, Tensors())
    other = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, nesterov=True, fused=True)
    for step in range(4):
        for p in (ours, theirs):
            p.grad = p.detach() * (step + 1)
        mine.step()
        other.step()
    assert torch.equal(ours, theirs)


def test_nesterov_needs_momentum_and_a_rule_that_allows_it(clients):
    for algorithm, momentum, words in (
        ("fedavg", 0.0, "training.nesterov: needs training.momentum above 0"),
        ("fednova", 0.9, "training.nesterov: FedNova counts steps of plain momentum"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(
                clients, algorithm=algorithm, training=hp.Training(momentum=momentum, nesterov=True)
            )
    with pytest.raises(ConfigError, match="nesterov: only with optimizer = 'sgd'"):
        hp.Training(optimizer="adam", nesterov=True)
    assert "nesterov" not in hp.Training().to_settings()
    assert hp.Training(nesterov=True).to_settings()["nesterov"] is True


def test_a_folder_in_use_is_refused(tmp_path):
    code = "import sys; from pathlib import Path; from heterophony.core.files import hold_folder\n"
    code += "with hold_folder(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / "all")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(BusyError, match="is in use by another process"),
            hold_folder(tmp_path / "all"),
        ):
            pass
        other.stdin.close()
    with hold_folder(tmp_path / "all"):
        pass


def test_a_second_comparison_in_one_folder_is_refused(clients, tmp_path):
    how = {"rounds": 1, "model": "mlp", "out": tmp_path / "all", "progress": False}
    seen = []

    def compare_again(event):
        if not seen:
            seen.append(event)
            with pytest.raises(BusyError, match="all is in use by another process"):
                hp.compare(["fedper"], clients, **how)

    hp.compare(["fedavg"], clients, on_event=compare_again, **how)
    assert len(seen) == 1
    assert sorted(p.name for p in (tmp_path / "all").iterdir() if p.is_dir()) == ["fedavg-0"]


class WithAuxiliary(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU())
        self.head, self.other = torch.nn.Linear(8, 10), torch.nn.Linear(8, 10)

    def forward(self, x):
        features = self.base(x)
        return self.head(features), self.other(features)


def test_auxiliary_outputs_are_answered_in_one_line(clients):
    with pytest.raises(ConfigError) as caught:
        run(clients, model=WithAuxiliary())
    assert str(caught.value) == (
        "WithAuxiliary returns tuple, not a tensor; return only the logits, or an object that has them"
        " as .logits (auxiliary outputs are allowed; their loss belongs in an algorithm's"
        " client.fit(loss=…))"
    )
