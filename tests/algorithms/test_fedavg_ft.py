"""FedAvg-FT: FedAvg's training, and fine-tuning that is measured and not kept."""

from __future__ import annotations

from helpers.support import model, played, same
from heterophony.algorithms.fedavg_ft import FedAvgFT


def list_counts(result, measure: str) -> list[list[int]]:
    return [e[measure] for e in result.events if e["event"] == "evaluation" and e[measure]]


def test_the_common_model_and_its_g_are_those_of_fedavg():
    tuned, plain = played("fedavg_ft"), played("fedavg")
    assert same(model(tuned), model(plain))
    assert list_counts(tuned, "G") == list_counts(plain, "G")
    assert list_counts(tuned, "P") != list_counts(plain, "P")


def test_without_an_epoch_of_fine_tuning_p_is_that_of_fedavg():
    none, plain = played(FedAvgFT(tune_epochs=0)), played("fedavg")
    assert list_counts(none, "P") == list_counts(plain, "P")


def test_p_is_measured_as_often_as_asked_and_does_not_change_the_run():
    often, seldom = played("fedavg_ft", rounds=4), played(FedAvgFT(tune_every=2), rounds=4)
    assert same(model(often), model(seldom))
    assert list_counts(seldom, "P") == list_counts(often, "P")[::2]
