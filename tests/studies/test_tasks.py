"""Other tasks than classification: every algorithm runs on them, on every engine, or says why not."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, r2_score
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss, log_softmax, nll_loss
from typer.testing import CliRunner

import heterophony as hp
from helpers.support import digits, identical, played, untimed
from helpers.tasks import OTHER_TASKS, SMALL, federated, make_arrays, run_task
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.algorithms.parts.low_rank import LoRAAlgorithm
from heterophony.cli import app
from heterophony.core.errors import ConfigError, DataError
from heterophony.data.source import group_examples
from heterophony.data.sources import wrap_arrays
from heterophony.report.page.page_data import build_page_data
from heterophony.results.runs import load_runs

NEED_ADAPTERS = {n for n in ALGORITHM_CLASSES if issubclass(get_algorithm_class(n), LoRAAlgorithm)}
NEED_CLASSES = {n for n in ALGORITHM_CLASSES if get_algorithm_class(n).needs_classes}


def test_the_algorithms_that_need_classes():
    assert {"fedas", "feddistill", "fedem", "fedetf", "fedgen", "fedgh", "fedkd", "fedpac", "fedproto", "fedreg", "fedrod",
            "fedtgp", "fixhead", "fml", "gausshead", "gpfl", "knnper", "pefll", "pfedfda", "pfedsd"} == NEED_CLASSES  # fmt: skip


@pytest.mark.parametrize("task", OTHER_TASKS)
def test_every_other_algorithm_runs_on_every_task(task):
    for name in sorted(ALGORITHM_CLASSES):
        if name in NEED_CLASSES:
            with pytest.raises(ConfigError, match=f"needs classes, but the task is '{task}'"):
                run_task(name, task)
        elif task == "sequence" and name in NEED_ADAPTERS:  # its net has only an LSTM and a head
            with pytest.raises(ConfigError, match="no layer of a kind that can be adapted"):
                run_task(name, task)
        else:
            result = run_task(name, task, rounds=1)
            assert np.isfinite(result.P.last)
            assert {m for of in result.metrics.values() for m in of} >= {"P"}


@pytest.mark.parametrize("task", OTHER_TASKS)
def test_the_pool_and_a_resumed_run_have_the_serial_bits(task, tmp_path):
    serial = run_task("ditto", task)
    assert untimed(run_task("ditto", task, engine="pool", workers=2)) == untimed(serial)

    def stop(event):
        if event["event"] == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_task("ditto", task, out=tmp_path / "run", on_event=stop)
    resumed = run_task("ditto", task, out=tmp_path / "run", resume=True)
    assert identical(resumed, serial)
    assert untimed(hp.load(tmp_path / "run")) == untimed(serial)


@pytest.mark.parametrize("task", OTHER_TASKS)
def test_a_task_is_learned(task):
    result = run_task("fedavg", task, rounds=12, training=hp.Training(lr=0.1))
    assert result.G.last > 0.75


def predict_all(result: hp.Result, federation: hp.Federation) -> tuple[np.ndarray, np.ndarray]:
    pairs = []
    for client in federation.clients:
        samples = federation.samples(client, "test")
        model = result.personal(client)
        pairs.append((model(samples.get_all_stored()).detach().numpy(), samples.labels.numpy()))
    return tuple(np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))


def test_p_of_a_regression_is_r2_over_all_clients():
    result = run_task("fedper", "regression")
    found, y = predict_all(result, federated("regression"))
    assert result.P.last == pytest.approx(r2_score(y, found), rel=1e-5)
    rmse = result.metrics["rmse"]["P"]
    assert rmse == pytest.approx(float(np.sqrt(((found - y) ** 2).mean())), rel=1e-5)


def test_every_client_has_every_metric_in_every_round():
    result = run_task("fedper", "multilabel")
    federation = federated("multilabel")
    row = result.rows()[-1]
    samples = federation.samples(row["client"], "test")
    predicted = result.personal(row["client"])(samples.get_all_stored()) > 0
    occurs = (predicted | (samples.labels > 0.5)).any(0).nonzero().flatten().tolist()
    expected = f1_score(
        samples.labels.int(), predicted.int(), labels=occurs, average="macro", zero_division=0
    )
    assert row["P_f1"] == pytest.approx(expected)
    measured = {f"{m}_{k}" for m in "GP" for k in ("auc", "f1", "loss")}
    assert {"round", "client", "test", "G", "P", *measured} == set(row)
    assert [t for t, _ in result.metric_curves["f1"]["G"]] == [0, 1, 2]


def top_two(output, y):
    """The share of examples whose class is among the two highest logits."""
    return (output.topk(2, 1).indices == y[:, None]).any(1).double().mean()


def test_own_metrics_are_measured_and_change_nothing_else():
    plain, measured = played("fedper"), played("fedper", metrics=["f1", top_two])
    assert identical(plain, measured)
    assert measured.metrics["top_two"]["P"] >= measured.P.last
    assert set(measured.metrics) == {"f1", "top_two"}
    assert plain.metrics == {}


class LogSoftmaxNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 20), nn.Linear(20, 10)

    def forward(self, x):
        return log_softmax(self.fc2(self.fc1(x.flatten(1)).relu()), 1)


def test_an_own_loss_is_minimised_on_every_engine():
    of = {"model": LogSoftmaxNet, "loss": nll_loss}
    nll = played("fedavg", **of)
    assert identical(nll, played("fedavg", engine="pool", workers=2, **of))
    (first, *_), (same, *_) = (
        [e["loss"]["main"] for e in r.events if e["event"] == "round"]
        for r in (nll, played("fedavg", model=LogSoftmaxNet))
    )
    assert first == pytest.approx(same)  # log_softmax of logarithms of shares changes nothing


def test_an_own_loss_changes_the_model_and_is_part_of_the_run(tmp_path):
    absolute = run_task("fedavg", "regression", loss=l1_loss, out=tmp_path / "run")
    assert absolute.model_sha256 != run_task("fedavg", "regression").model_sha256
    with pytest.raises(hp.HeterophonyError, match="other settings"):
        run_task("fedavg", "regression", out=tmp_path / "run", resume=True)


def test_an_algorithm_of_classes_refuses_an_own_loss():
    with pytest.raises(ConfigError, match="FedRoD is defined with the cross-entropy"):
        played("fedrod", loss=cross_entropy)


def test_a_model_that_does_not_fit_the_task_is_refused():
    with pytest.raises(ConfigError, match="returns 3 for each example; it must return 2 numbers"):
        run_task("fedavg", "regression", model=nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)))
    with pytest.raises(ConfigError, match="charlstm predicts one answer, but the task is"):
        run_task("fedavg", "sequence", model="charlstm")
    with pytest.raises(ConfigError, match="tokenlstm predicts a token at every position"):
        played("fedavg", model="tokenlstm")


def fail(output, y):
    raise KeyError("mine")


def sum_rows(output, y):
    return output.sum(1)


def count_rows(output, y):
    return len(y)


WRONG_FUNCTIONS = {
    "loss: must be a function of output and targets": {"loss": "mse"},
    "loss: sum_rows must return one number with a gradient": {"loss": sum_rows},
    "loss: count_rows must return one number with a gradient": {"loss": count_rows},
    "loss: fail fails for an output of shape (4, 2) and targets of (4, 2) (KeyError": {
        "loss": fail
    },
    "metrics: must be a list of names or functions": {"metrics": "rmse"},
    "metrics: sum_rows must return one number, not a tensor of shape (4,)": {"metrics": [sum_rows]},
    "metrics: fail fails for an output": {"metrics": ["mae", fail]},
}


@pytest.mark.parametrize("words", WRONG_FUNCTIONS)
def test_a_function_that_cannot_be_used_is_said_before_anything_is_written(words, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(words)):
        run_task("fedavg", "regression", out=tmp_path / "run", **WRONG_FUNCTIONS[words])
    assert not (tmp_path / "run").exists()


# Targets ------------------------------------------------------------------------------------

X = np.zeros((4, 2), np.float32)
WRONG = {
    "task='regression'": ("classification", [0.5, 1.5, 2.0, 3.0]),
    "'multilabel' or 'sequence'": ("classification", np.eye(4, dtype=int)),
    "finite numbers": ("regression", [0.0, 1.0, np.nan, 2.0]),
    "a row of zeros and ones": ("multilabel", [[0, 2], [0, 1], [1, 1], [0, 0]]),
    "a row of whole numbers": ("sequence", [0, 1, 2, 3]),
    "a sequence must be of whole numbers": ("sequence", np.zeros((4, 2), int)),
}


@pytest.mark.parametrize("words", WRONG)
def test_targets_that_cannot_be_meant_are_refused(words):
    task, y = WRONG[words]
    with pytest.raises(DataError, match=re.escape(words)):
        wrap_arrays(X, np.asarray(y), task=task)


def test_classes_of_other_tasks():
    with pytest.raises(ConfigError, match="a regression has no classes"):
        hp.federate(make_arrays("regression"), task="regression", classes=3)
    with pytest.raises(ConfigError, match="2 labels, but the data have 3"):
        hp.federate(make_arrays("multilabel"), task="multilabel", classes=["a", "b"])
    larger = hp.federate(make_arrays("sequence"), task="sequence", clients=4, classes=20)
    assert larger.classes == 20
    with pytest.raises(ConfigError, match="digits is for classification"):
        hp.federate("digits", task="regression")


def test_partitions_by_label_use_groups_of_examples():
    y = np.arange(20, dtype=np.float32)[:, None]
    groups, count = group_examples(y[::-1], "regression")
    assert count == 10
    assert groups[::-1].tolist() == [i // 2 for i in range(20)]
    labels = np.array([[0, 1, 1], [0, 0, 0], [1, 0, 1]])
    assert group_examples(labels, "multilabel")[0].tolist() == [1, 3, 0]
    skewed = hp.federate(
        make_arrays("regression"), task="regression", clients=4, partition=hp.Dirichlet(0.05)
    )
    means = [float(skewed.y[skewed.train[c], 0].mean()) for c in skewed.clients]
    assert max(means) - min(means) > 1  # clients differ in their targets


def test_the_task_is_part_of_the_data():
    x, y = make_arrays("multilabel")
    pair = [hp.federate((x, y), task=t, clients=4, partition="iid") for t in OTHER_TASKS[:2]]
    assert pair[0].sha256 != pair[1].sha256
    assert repr(pair[1]).endswith("3 labels>")


# The command line -----------------------------------------------------------------------------


def command(*words: object) -> str:
    done = CliRunner().invoke(app, [str(w) for w in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_tasks_on_the_command_line(tmp_path):
    x, y = make_arrays("regression")
    np.savez(tmp_path / "table.npz", x=x, y=y)
    about = ["-c", f"data.name={tmp_path / 'table.npz'}", "-c", "task=regression"]
    about += ["-c", "clients=4", "-c", "rounds=2", "-c", "engine=serial"]
    shown = command("run", "fedavg", *about, "--out", tmp_path / "run")
    assert "R² in %" in shown
    assert re.search(r"RMSE +[\d.]+ +[\d.]+", shown)
    result = hp.load(tmp_path / "run")
    assert result.summary.task == "regression"
    assert result.personal(1)(torch.zeros(2, 6)).isfinite().all()
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(stored["metrics"]) == {"mae", "rmse"}
    chosen = command(
        "compare",
        "fedavg",
        "fedper",
        *about,
        "-c",
        "evaluation.metrics=['r2']",
        "--out",
        tmp_path / "two",
    )
    assert "R² within clients" in chosen
    page = build_page_data(load_runs([tmp_path / "two"]))
    assert page["score"] == "R²"
    assert page["metrics"]["titles"][1:] == ["G R² within clients", "P R² within clients"]
    assert [row["cells"][0] for row in page["metrics"]["rows"]] == ["FedAvg", "FedPer"]
    refused = CliRunner().invoke(app, ["run", "fedrod", *about])
    assert refused.exit_code == 3
    assert "FedRoD needs classes" in refused.output


def test_own_clients_with_own_targets():
    x, y = make_arrays("regression")
    own = hp.federate([(x[:60], y[:60]), (x[60:], y[60:])], task="regression")
    result = hp.run("fedper", own, rounds=1, training=SMALL, participation=1.0, progress=False)
    assert list(result.metrics) == ["mae", "rmse"]
    assert digits().task == "classification"
