"""Evaluation: the generic model is built only where it is not the client's own."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import digits, identical, net_with_batch_norm, played
from heterophony.jobs import evaluation

HELD_OUT = hp.federate(
    (digits().x.numpy().transpose(0, 2, 3, 1), digits().y.numpy()),
    clients=4,
    partition=hp.IID(),
    validation_fraction=0.2,
)
CASES = {
    "fedavg": {},
    "fedprox": {"model": "digitsnet"},
    "fedper": {},
    "fedbabu": {},
    "scaffold": {"federation": HELD_OUT},
    "fedavgm": {"model": net_with_batch_norm},
    "fedadam": {"model": net_with_batch_norm, "buffers": "average"},
}


@pytest.mark.parametrize("name", CASES)
def test_g_is_the_same_whether_or_not_the_generic_model_is_built(name, monkeypatch):
    short = played(name, fast="off", **CASES[name])
    monkeypatch.setattr(evaluation, "is_generic_model", lambda *_: False)
    assert identical(short, played(name, fast="off", **CASES[name]))


def count_builds(monkeypatch, name: str, **how) -> int:
    built, build = list[str](), evaluation.build_generic_model

    def record(plan, job, *rest):
        built.append(job.client)
        return build(plan, job, *rest)

    monkeypatch.setattr(evaluation, "build_generic_model", record)
    played(name, fast="off", **how)
    return len(built)


def test_where_all_clients_have_one_model_it_is_not_built_twice(monkeypatch):
    assert count_builds(monkeypatch, "fedavg") == 0


def test_where_clients_have_their_own_parameters_it_is(monkeypatch):
    assert (
        count_builds(monkeypatch, "fedper", participation=1.0) == 18
    )  # not before the first round


def test_where_the_algorithm_predicts_in_its_own_way_it_always_is(monkeypatch):
    assert count_builds(monkeypatch, "pfedgate") == 24


def get_last_losses(result: hp.Result) -> dict[str, list[float | None]]:
    return [e for e in result.events if e["event"] == "evaluation"][-1]["loss"]


def test_the_test_loss_is_that_of_torch_on_each_clients_examples():
    federation, result = digits(), played("fedper", participation=1.0)
    found, total = get_last_losses(result), 0.0
    for number, client in enumerate(federation.test):
        test = federation.samples(client, "test")
        x, y = test.batch(torch.arange(len(test)))
        with torch.no_grad():
            loss = cross_entropy(result.personal(client).eval().net(x).double(), y).item()
        assert found["P"][number] == pytest.approx(loss, rel=1e-12)
        total += loss * len(y)
    examples = sum(map(len, federation.test.values()))
    assert result.loss["P"] == pytest.approx(total / examples, rel=1e-12)
    assert result.loss_curves["P"][-1] == (3, result.loss["P"])


def test_a_loss_that_is_not_finite_leaves_valid_json():
    """Training is by the task's loss; the loss of the user's own is infinite where nothing is trained."""

    def infinite_without_gradients(output, y):
        return cross_entropy(output, y) + (0 if torch.is_grad_enabled() else float("inf"))

    result = played("fedavg", rounds=1, loss=infinite_without_gradients)
    assert set(get_last_losses(result)["P"]) == {None}
    assert result.loss["P"] is None
    json.dumps(list(result.events), allow_nan=False)
