"""The events of a run: what is recorded is what their module, and the page made from it, say."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import heterophony as hp
from helpers import made_runs
from helpers.support import played
from heterophony.core.errors import FolderError
from heterophony.data.sources import read_source
from heterophony.runs.curves import compute_curves
from heterophony.runs.events import (
    EVENT_TYPES,
    find_last_evaluation,
    get_end,
    get_new_clients,
    get_start,
    is_event,
    select_evaluations,
    select_rounds,
)
from heterophony.runs.run_index import read_events, read_last_event
from heterophony.runs.summary import summarise

ROOT = Path(__file__).parents[2]
KINDS = {get_args(get_type_hints(kind)["event"])[0]: kind for kind in EVENT_TYPES}


@pytest.fixture(scope="module")
def events(tmp_path_factory) -> list[dict[str, Any]]:
    """A run with every kind of event, and with every key that a simulation can record."""
    speeds = tmp_path_factory.mktemp("speeds") / "speeds.csv"
    speeds.write_text("client,sample_seconds,bytes_per_second\n1,0.1,1000\n")
    whole = read_source("digits")
    federation = hp.federate(
        (whole.x[:420] * 15, whole.y[:420]),
        clients=6,
        partition=hp.Dirichlet(0.3, min_size=12),
        new_clients=0.2,
        validation_fraction=0.2,
        seed=1,
    )
    return played(
        "fedper",
        federation,
        participation=1.0,
        faults=hp.Faults(dropout=0.3),
        devices=hp.Devices(sample_seconds=0.01, file=str(speeds)),
    ).events


def test_the_page_of_events_is_up_to_date():
    page = runpy.run_path(str(ROOT / "scripts" / "generated" / "events.py"))["page"]
    assert (ROOT / "docs" / "reference" / "events.md").read_text() == page(), "run scripts/generate"


def test_every_kind_is_recorded_with_the_documented_keys_in_the_documented_order(events):
    assert {e["event"] for e in events} == set(KINDS)
    for event in events:
        kind = KINDS[event["event"]]
        documented = list(get_type_hints(kind))
        assert list(event) == [k for k in documented if k in event]
        assert set(event) <= set(documented)


def test_keys_that_are_always_there_are_there(events):
    page = runpy.run_path(str(ROOT / "scripts" / "generated" / "events.py"))
    for event in events:
        hints = get_type_hints(KINDS[event["event"]], include_extras=True)
        rows = {k: page["write_row"](k, hint) for k, hint in hints.items()}
        assert {k for k, row in rows.items() if "| yes |" in row} <= set(event)


def test_readers_select_by_kind(events):
    assert get_start(events) is events[0]
    assert get_end(events) is events[-1]
    assert [e["t"] for e in select_rounds(events)] == [0, 1, 2]
    assert [e["t"] for e in select_evaluations(events)] == [0, 1, 2, 3]
    assert get_new_clients(events) is events[-2]
    assert get_end(events[:-1]) is get_end([]) is get_new_clients(events[:-2]) is None


@pytest.mark.parametrize("lines", [[], [{"event": "round"}], [3], ["start"]])
def test_events_without_a_start_are_refused(lines):
    with pytest.raises(FolderError, match="does not begin with the start of a run"):
        get_start(lines)


def test_what_another_version_records_more_changes_nothing(events, tmp_path):
    later = [{"event": "weather", "t": 1}, *({**e, "mood": "sunny"} for e in events[1:-1])]
    newer = [{**events[0], "mood": "sunny"}, *later, events[-1]]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(e) + "\n" for e in newer))
    read = list(read_events(path))
    assert read == newer
    assert read_last_event(path) == events[-1]
    assert all(map(is_event, read))
    assert summarise(read) == summarise(events)
    assert compute_curves(read) == compute_curves(events)


def test_what_an_older_version_did_not_record_is_not_missed(events):
    late = {"start_sha256", "files", "personal_bytes"}
    older = [{k: v for k, v in e.items() if k not in late} for e in events]
    assert summarise(older) == summarise(events)


def evaluations(*counts: list[int | None] | None) -> Iterator[dict[str, Any]]:
    for t, right in enumerate(counts):
        yield {"event": "evaluation", "t": t, "G": None, "P": right}


def test_the_last_evaluation_takes_missing_counts_from_earlier_ones():
    found = find_last_evaluation(evaluations([1, 1, None], [2, None, None], [None, 3, None], None))
    assert found == {"event": "evaluation", "t": 2, "G": None, "P": [2, 3, None]}
    assert find_last_evaluation(evaluations(None)) is None


@pytest.mark.parametrize("line", ["[]", "7", "null", '"end"', "{}", '{"event": 7}'])
def test_a_line_that_is_no_event_is_damage(tmp_path, line):
    path = tmp_path / "events.jsonl"
    path.write_text(f"{line}\n")
    for read in (lambda: list(read_events(path)), lambda: read_last_event(path)):
        with pytest.raises(FolderError, match=r"events\.jsonl is damaged: a line is not"):
            read()


@pytest.mark.parametrize("key", ["test", "train", "clients"])
def test_a_summary_of_absurd_events_is_refused(events, key):
    nobody = {"test": [0 for _ in events[0]["test"]], "train": 7, "clients": None}
    with pytest.raises(FolderError, match=r"events\.jsonl is damaged"):
        summarise([{**events[0], key: nobody[key]}, *events[1:]])


def test_p_is_also_the_mean_over_clients():
    """The first client has 4 test examples, the second 6."""
    found = summarise(made_runs.played({"G": None, "P": [[0, 0], [4, 3], [2, 6]]}))
    assert (found.P.best, found.P.last, found.P.best_round) == (0.8, 0.8, 2)
    assert (found.P_mean.best, found.P_mean.last, found.P_mean.best_round) == (0.75, 0.75, 1)
    assert found.to_dict()["P_mean"]["last10"]["mean"] == 0.75
