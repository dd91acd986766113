"""The settings of local training: defaults by optimiser and schedule, and the rate of every round."""

from __future__ import annotations

import pickle
from dataclasses import replace
from math import cos, pi

import pytest
import torch

from heterophony.core.errors import ConfigError
from heterophony.core.training import Training


def rates(rounds: int, **how) -> list[float]:
    return [Training(**how).compute_lr_factor(t, rounds) for t in range(rounds)]


# The rate of a round ------------------------------------------------------------------------


def test_a_constant_rate_has_a_factor_of_exactly_one():
    assert rates(5) == [1.0] * 5


def test_exponential():
    assert rates(4, schedule="exponential", decay_factor=0.5) == [1, 0.5, 0.25, 0.125]


def test_step():
    found = rates(7, schedule="step", decay_factor=0.1, decay_rounds=3)
    assert found == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01])


def test_cosine():
    found = rates(4, schedule="cosine", final_fraction=0.2)
    assert found == pytest.approx([0.2 + 0.8 * (1 + cos(pi * t / 4)) / 2 for t in range(4)])
    assert rates(2, schedule="cosine") == pytest.approx([1, 0.5])


@pytest.mark.parametrize(
    ("how", "make"),
    [
        (
            {"schedule": "exponential", "decay_factor": 0.9},
            lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ),
        (
            {"schedule": "step", "decay_factor": 0.3, "decay_rounds": 2},
            lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.3),
        ),
        (
            {"schedule": "cosine", "final_fraction": 0.1},
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 7, 0.1),
        ),
    ],
)
def test_schedules_are_those_of_torch(how, make):
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    theirs, expected = make(optimiser), []
    for _ in range(7):
        expected.append(theirs.get_last_lr()[0])
        optimiser.step()
        theirs.step()
    assert rates(7, **how) == pytest.approx(expected)


def test_the_schedule_begins_after_the_warm_up():
    assert rates(5, warmup=3) == [0.25, 0.5, 0.75, 1, 1]
    found = rates(5, warmup=1, schedule="exponential", decay_factor=0.5)
    assert found == [0.5, 1, 0.5, 0.25, 0.125]
    found = rates(6, warmup=2, schedule="cosine")
    assert found == pytest.approx([1 / 3, 2 / 3, *rates(4, schedule="cosine")])


def test_after_the_last_round_the_rate_stays():
    how = Training(schedule="cosine")
    last = how.compute_lr_factor(9, 10)
    assert last > 0
    assert [how.compute_lr_factor(t, 10) for t in (10, 11, 30)] == [last] * 3
    assert how.compute_lr_factor(0, 0) == 1  # a run without rounds


# Settings -----------------------------------------------------------------------------------


def test_defaults_are_those_of_the_optimiser():
    sgd, adam, adamw = (Training(optimizer=o) for o in ("sgd", "adam", "adamw"))
    assert sgd == Training() == Training(lr=0.01, momentum=0.9, weight_decay=0.0)
    assert (adam.lr, adam.momentum, adam.betas, adam.weight_decay) == (0.001, None, (0.9, 0.999), 0)
    assert adamw.weight_decay == 0.01
    assert replace(adamw, lr=0.1).betas == (0.9, 0.999)
    assert pickle.loads(pickle.dumps(adamw)) == adamw


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"optimizer": "adam", "momentum": 0.9},
            "momentum: only with optimizer = 'sgd', not with 'adam'; leave it out",
        ),
        (
            {"betas": [0.9, 0.99]},
            "betas: only with optimizer = 'adam' or 'adamw', not with 'sgd'; leave it out",
        ),
        ({"eps": 1e-6}, "eps: only with optimizer = 'adam' or 'adamw', not with 'sgd'"),
        (
            {"decay_factor": 0.5},
            "decay_factor: only with schedule = 'exponential' or 'step', not with 'constant'",
        ),
        ({"schedule": "cosine", "decay_rounds": 5}, "decay_rounds: only with schedule = 'step'"),
        (
            {"schedule": "step", "final_fraction": 0},
            "final_fraction: only with schedule = 'cosine'",
        ),
        ({"optimizer": "adma"}, "optimizer: must be one of sgd, adam, adamw, not 'adma'; did you"),
        (
            {"schedule": "cosin"},
            "schedule: must be one of constant, exponential, step, cosine, not",
        ),
        ({"optimizer": "adam", "betas": 0.9}, "betas: must be two numbers, at least 0 and below 1"),
        ({"optimizer": "adam", "betas": [0.9]}, "betas: must be two numbers"),
        ({"optimizer": "adam", "betas": [0.9, 1.0]}, "betas: must be two numbers"),
        ({"optimizer": "adam", "betas": [True, 0.9]}, "betas: must be two numbers"),
        ({"clip_norm": 0}, "clip_norm: must be above 0, not 0"),
        ({"warmup": -1}, "warmup: must be at least 0, not -1"),
    ],
)
def test_what_is_not_used_or_wrong_is_refused(how, said):
    with pytest.raises(ConfigError) as caught:
        Training(**how)
    assert str(caught.value).startswith(said)


def test_settings_for_a_file_are_those_of_before_at_the_defaults():
    before = ["epochs", "batch", "lr", "momentum", "weight_decay", "momentum_state", "drop_last"]
    assert list(Training().to_settings()) == before
    how = Training(optimizer="adam", schedule="cosine", warmup=2, clip_norm=1)
    assert how.to_settings()["betas"] == [0.9, 0.999]
    assert Training(**how.to_settings()) == how


def test_a_change_of_the_optimiser_leaves_out_what_it_does_not_use():
    given = Training(epochs=2, momentum=0.5, schedule="step", decay_rounds=2)
    adam = Training(**given.list_changed({"optimizer": "adam"}))
    assert adam == Training(
        epochs=2, optimizer="adam", schedule="step", decay_rounds=2
    )  # with Adam's own default of lr
    cosine = Training(**given.list_changed({"schedule": "cosine"}))
    assert cosine == Training(epochs=2, momentum=0.5, schedule="cosine")
    with pytest.raises(ConfigError, match="momentum: only with"):
        Training(**given.list_changed({"optimizer": "adam", "momentum": 0.1}))


def test_plain_sgd_keeps_only_the_length():
    how = Training(
        epochs=3, batch=7, drop_last=False, optimizer="adamw", schedule="cosine", clip_norm=1
    )
    expected = Training(epochs=3, batch=7, drop_last=False, lr=0.5, momentum=0.0)
    assert how.as_plain_sgd(0.5) == expected
