"""Metrics equal scikit-learn's where these are defined, and pool over clients as they say."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn import metrics as reference

from heterophony.core.errors import ConfigError
from heterophony.core.scores import METRICS, get_metric_info
from heterophony.core.tasks import (
    COMPUTE,
    IGNORED_TOKEN,
    TASKS,
    choose_metrics,
    compute_target_variance,
)

DRAW = torch.Generator().manual_seed(0)
LOGITS = torch.randn(60, 4, generator=DRAW)
LABELS = torch.randint(0, 4, (60,), generator=DRAW)
MANY = (torch.rand(60, 4, generator=DRAW) < 0.4).float()
NUMBERS = torch.randn(60, 2, generator=DRAW)
GUESSES = NUMBERS + 0.3 * torch.randn(60, 2, generator=DRAW)
PREDICTED, PROBABILITIES = LOGITS.argmax(1), LOGITS.double().softmax(1)

CASES = {
    "balanced_accuracy": (
        (LOGITS, LABELS),
        reference.balanced_accuracy_score(LABELS, PREDICTED),
    ),
    "f1": ((LOGITS, LABELS), reference.f1_score(LABELS, PREDICTED, average="macro")),
    "auc": (
        (LOGITS.double(), LABELS),
        reference.roc_auc_score(LABELS, PROBABILITIES, multi_class="ovr", average="macro"),
    ),
    "mae": ((GUESSES, NUMBERS), reference.mean_absolute_error(NUMBERS, GUESSES)),
    "rmse": (
        (GUESSES, NUMBERS),
        math.sqrt(reference.mean_squared_error(NUMBERS, GUESSES)),
    ),
    "r2": ((GUESSES, NUMBERS), reference.r2_score(NUMBERS, GUESSES)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_metric_is_that_of_scikit_learn(name):
    given, expected = CASES[name]
    assert COMPUTE[name](*given) == pytest.approx(expected, rel=1e-6)


def test_several_labels_are_those_of_scikit_learn():
    predicted = (LOGITS > 0).int()
    expected = reference.f1_score(MANY.int(), predicted, average="macro")
    assert COMPUTE["f1"](LOGITS, MANY) == pytest.approx(expected)
    expected = reference.roc_auc_score(MANY.int(), LOGITS, average="macro")
    assert COMPUTE["auc"](LOGITS, MANY) == pytest.approx(expected)


def test_perplexity_is_that_of_a_uniform_guess():
    y = torch.tensor([[0, 1, IGNORED_TOKEN]])
    assert COMPUTE["perplexity"](torch.zeros(1, 3, 7), y) == pytest.approx(7.0)


def test_a_metric_is_not_finite_where_it_is_undefined():
    assert math.isnan(COMPUTE["auc"](LOGITS, torch.zeros(60, dtype=torch.int64)))
    assert math.isnan(COMPUTE["f1"](-torch.ones(3, 2), torch.zeros(3, 2)))
    assert not math.isfinite(COMPUTE["r2"](torch.ones(3, 1), torch.zeros(3, 1)))


def test_scores_of_examples():
    y = torch.tensor([[0, 1, IGNORED_TOKEN], [2, 2, 2]])
    logits = torch.nn.functional.one_hot(torch.tensor([[0, 0, 0], [2, 2, 1]]), 3).float()
    one = torch.ones(())
    assert TASKS["sequence"].score_examples(logits, y, one).tolist() == [0.5, 2 / 3]
    labels = TASKS["multilabel"].score_examples(torch.tensor([[1.0, -1.0]]), torch.ones(1, 2), one)
    assert labels.tolist() == [0.5]


def test_the_mean_score_of_numbers_is_r2():
    """For one target as a column too: a row of outputs must not be broadcast against it."""
    task = TASKS["regression"]
    score = task.score_examples(GUESSES, NUMBERS, compute_target_variance(NUMBERS))
    assert float(score.mean()) == pytest.approx(reference.r2_score(NUMBERS, GUESSES))
    column = NUMBERS[:, :1]
    assert task.loss(column[:, 0], column) == 0
    assert compute_target_variance(torch.zeros(3, 1)).item() == 1.0


def test_values_are_pooled_on_their_scale():
    halves = (GUESSES[:20], NUMBERS[:20]), (GUESSES[20:], NUMBERS[20:])
    for name in ("mae", "rmse"):
        parts = [COMPUTE[name](*half) for half in halves]
        whole = COMPUTE[name](GUESSES, NUMBERS)
        assert METRICS[name].pool([*parts, None], [20, 40, 9]) == pytest.approx(whole)
    assert METRICS["perplexity"].pool([2.0, 8.0], [1, 1]) == pytest.approx(4.0)
    assert METRICS["f1"].pool([None, None], [1, 1]) is None
    assert get_metric_info("mine").pool([0.0, 1.0], [1, 3]) == 0.75


def test_a_wrong_metric_is_refused():
    with pytest.raises(ConfigError, match="unknown metric 'f2'; did you mean 'f1'"):
        choose_metrics(["f2"], "classification")
    with pytest.raises(ConfigError, match="'rmse' does not apply to task 'classification'"):
        choose_metrics(["rmse"], "classification")
    with pytest.raises(ConfigError, match="listed twice"):
        choose_metrics(["f1", "F1"], "classification")
    with pytest.raises(ConfigError, match="define it with `def`"):
        choose_metrics([lambda output, y: 0.0], "classification")
