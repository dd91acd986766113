"""Clients that are not available, or never reply: the round continues without invented numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import pytest

from helpers.support import played
from heterophony.core.algorithm import Reply
from heterophony.engines import base
from heterophony.engines.base import Serial
from heterophony.jobs.plan import Job
from heterophony.runs.curves import compute_accuracy, compute_curves
from heterophony.runs.events import find_last_evaluation
from heterophony.runs.summary import summarise
from heterophony.trackers.points import PointBuilder


class Unsteady(Serial):
    """An engine where some clients are not available, and some jobs are lost."""

    away: ClassVar[dict[int, set[str]]] = {}  # by round
    lost: ClassVar[set[tuple[str, int, str]]] = set()  # (kind, round, client)
    t: ClassVar[int] = 0

    def available(self, clients: Sequence[str]) -> list[str]:
        here = [c for c in clients if c not in self.away.get(type(self).t, ())]
        type(self).t += 1
        return here

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        return super().run([j for j in jobs if (j.kind, j.t, j.client) not in self.lost])


@pytest.fixture
def unsteady(monkeypatch):
    monkeypatch.setattr(base, "Serial", Unsteady)
    monkeypatch.setattr(Unsteady, "t", 0)

    def play(lost=(), away=None, **how):
        monkeypatch.setattr(Unsteady, "lost", set(lost))
        monkeypatch.setattr(Unsteady, "away", away or {})
        return played("fedavg", participation=1.0, rounds=3, **how)

    return play


def rounds(result) -> list[dict]:
    return [e for e in result.events if e["event"] == "round"]


def evaluations(result) -> list[dict]:
    return [e for e in result.events if e["event"] == "evaluation"]


def test_whoever_is_away_is_not_asked(unsteady):
    result = unsteady(away={1: {"0", "2"}})
    asked = [e["clients"] for e in rounds(result)]
    everybody = list(result.clients)
    assert asked == [everybody, [c for c in everybody if c not in ("0", "2")], everybody]


def test_a_reply_that_never_comes_is_told_and_the_others_are_merged(unsteady):
    result = unsteady(lost={("train", 1, "1")})
    plain, short, _ = rounds(result)
    assert "dropped" not in plain
    assert short["dropped"] == ["1"]
    assert "1" not in short["clients"]
    assert short["void"] is False


def test_a_round_without_any_reply_is_void_and_changes_nothing(unsteady):
    everybody = list(played("fedavg", rounds=1).clients)
    result = unsteady(lost={("train", 1, c) for c in everybody})
    assert rounds(result)[1]["void"] is True
    before, after = (e["G"] for e in evaluations(result)[1:3])
    assert before == after


def test_who_was_not_measured_counts_in_no_mean_and_keeps_its_last_number(unsteady):
    result = unsteady(lost={("evaluate", 3, "1"), ("evaluate", 2, "1")})
    first, second, third, last = evaluations(result)
    assert None not in first["P"] + second["P"]
    assert third["P"][1] is last["P"][1] is None
    test = result.events[0]["test"]
    others = [i for i in range(len(test)) if i != 1]
    right = sum(last["P"][i] for i in others) / sum(test[i] for i in others)
    assert compute_curves(result.events)["P"][-1] == (3, right)
    assert result.summary.P.last == right
    assert result.clients["1"].correct == second["P"][1]
    assert find_last_evaluation(result.events)["P"][1] == second["P"][1]
    assert summarise(result.events) == result.summary


def test_trackers_take_what_was_measured(unsteady):
    result = unsteady(lost={("evaluate", 3, "1")})
    points = PointBuilder()
    told = [points.convert_event(e) for e in result.events]
    measured = [p for p in told if p and "accuracy/P" in p.values]
    assert measured[-1].values["accuracy/P"] == result.summary.P.last
    assert len(measured[-1].clients["P"]) == len(result.clients) - 1


def test_shares_leave_out_who_has_nothing():
    assert (
        compute_accuracy([1, None, 0], [2, 8, 0])
        == compute_accuracy([1, None, 0], [2, 8, 0], "mean")
        == 0.5
    )
