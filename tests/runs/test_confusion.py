"""Confusions of classes: counted in every evaluation, by client and overall, on every engine."""

from __future__ import annotations

import numpy as np
import pytest

import heterophony as hp
from heterophony.core.errors import ConfigError, DataError
from heterophony.core.tasks import choose_metrics
from heterophony.report.page.page_data import build_page_data
from heterophony.results.runs import load_run


@pytest.fixture(scope="module")
def clients():
    return hp.federate("digits", clients=4, partition="iid", validation_fraction=0.1)


def run(clients, **how):
    how = {"rounds": 2, "model": "mlp", "progress": False, "metrics": ["confusion", "f1"], **how}
    return hp.run("fedper", clients, training=hp.Training(steps=3), **how)


def test_confusions_are_those_of_the_models_by_client_and_overall(clients, tmp_path):
    result = run(clients, out=tmp_path / "run")
    total = result.confusion()
    assert total.shape == (10, 10)
    assert total.sum() == sum(map(len, clients.test.values()))
    assert total.trace() / total.sum() == result.P.last
    assert result.confusion("G").trace() / total.sum() == result.G.last
    assert (sum(result.confusion("P", c) for c in clients.clients) == total).all()
    model, rows = result.personal("2"), clients.test["2"]
    expected = np.zeros((10, 10), int)
    predicted = model(clients.x[rows]).argmax(1)
    np.add.at(expected, (clients.y[rows].numpy(), predicted.numpy()), 1)
    assert (result.confusion("P", 2) == expected).all()
    assert result.confusion("P_valid").sum() == sum(map(len, clients.validation.values()))
    accuracies = result.class_accuracy("P", "2")
    examples = expected.sum(1)
    assert list(accuracies.values()) == [
        expected[i, i] / examples[i] if examples[i] else None for i in range(10)
    ]
    assert set(result.metrics) == {"f1"}  # a table is no number
    with pytest.raises(DataError, match="there is no client 'x'"):
        result.confusion("P", "x")


def test_confusions_do_not_depend_on_the_engine(clients):
    usual = run(clients)
    for how in ({"engine": "pool", "workers": 2}, {"fast": "off"}):
        other = run(clients, **how)
        assert other.model_sha256 == usual.model_sha256
        events = [[e.get("confusion") for e in r.events] for r in (usual, other)]
        assert events[0] == events[1]


def test_without_the_metric_there_are_none(clients):
    with pytest.raises(ConfigError, match="the run has no confusions of 'P'; run it with"):
        run(clients, rounds=1, metrics=[]).confusion()
    with pytest.raises(ConfigError, match="'confusion' does not apply to task 'regression'"):
        choose_metrics(["confusion"], "regression")


def test_the_page_has_the_confusions_of_each_series(clients, tmp_path):
    run(clients, out=tmp_path / "run")
    page = build_page_data([load_run(tmp_path / "run")])["confusion"]
    (series,) = page["series"]
    assert (series["name"], series["clients"]) == ("FedPer", list("0123"))
    assert set(series["cells"]) == {"P", "G"}
    total = sum(n for own in series["cells"]["P"] for _, _, n in own)
    assert total == sum(map(len, clients.test.values()))
