"""What each board did in a round: exact times on the server's clock, whatever the board's says."""

from __future__ import annotations

from heterophony.boards.engine import compare_metrics
from heterophony.boards.protocol.board_stats import RoundTimeline, measure_covered_time
from heterophony.boards.protocol.messages import Assigned, BlobRef, Done

BLOB = BlobRef("0" * 64, 1)


def make_assigned(number: int, job: str, client: str) -> Assigned:
    return Assigned(f"{number:064x}", client, job, 0, 0, True, BLOB, BLOB, 0)


def test_times_of_transfer_work_and_waiting_add_up_to_the_round():
    timeline = RoundTimeline()
    timeline.begin(100.0)
    train, test = make_assigned(1, "train", "7"), make_assigned(2, "evaluate", "8")
    for now in (101.0, 101.5, 102.0):
        timeline.record_want("a", now)
    timeline.record_done("a", train.id, 108.0)
    timeline.record_done("a", train.id, 109.0)  # a repeated announcement changes nothing
    timeline.record_taken("a", train, Done(train.id, 0, 0, BLOB, 5.0), 110.0)
    # a board that claims more seconds than the round has
    timeline.record_taken("a", test, Done(test.id, 0, 0, BLOB, 1000.0), 111.0)
    found = timeline.describe("a", 120.0, 11, 22, {"celsius": 50.0, "unknown": 1.0})
    assert found == {
        "train": 5.0,
        "evaluate": 1000.0,
        "transfer": 1.0 + 2.0,
        "wait": 20.0 - 11.0,
        "bytes_down": 11,
        "bytes_up": 22,
        "spans": [
            ["receive", "", 1.0, 2.0],
            ["train", "7", 3.0, 8.0],
            ["send", "7", 8.0, 10.0],
            ["evaluate", "8", 0.0, 11.0],
            ["send", "8", 11.0, 11.0],
        ],
        "celsius": 50.0,
    }
    assert timeline.describe("b", 120.0, 0, 0, {})["wait"] == 20.0
    timeline.begin(120.0)
    assert timeline.describe("a", 121.0, 0, 0, {})["spans"] == []


def test_intervals_that_overlap_count_once():
    assert measure_covered_time([(0, 2), (1, 3), (5, 6), (5.5, 5.7)]) == 4
    assert measure_covered_time([]) == 0


def test_counters_of_a_board_are_compared_with_its_last_report():
    before = {"seconds": 10.0, "cpu_seconds": 5.0, "joules": 100.0, "peak_bytes": 7.0}
    after = {"seconds": 20.0, "cpu_seconds": 12.0, "joules": 130.0, "peak_bytes": 9.0}
    assert compare_metrics(before, after) == {"peak_bytes": 9.0, "cpu_share": 0.7, "joules": 30.0}
    assert compare_metrics(before, before) == {}  # no report in this round
    again = {"seconds": 2.0, "cpu_seconds": 1.0, "joules": 4.0, "celsius": -1e300}
    assert compare_metrics(after, again) == {"cpu_share": 0.5, "joules": 4.0}
