"""The boards of a round on the page and as CSV: what boards report is not trusted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from heterophony.core.errors import ConfigError
from heterophony.results.boards import build_board_rounds_section, write_board_rounds

GOOD = {"train": 2.0, "evaluate": 0.5, "transfer": 1.0, "wait": 4.0, "bytes_down": 1000, "bytes_up": 500,
        "peak_bytes": 3e8, "cpu_share": 0.5, "spans": [["train", "3", 1.0, 3.0]]}  # fmt: skip
BAD = {
    "train": "many",
    "wait": float("nan"),
    "spans": [["fly", "3", 1, 2], ["train", "3", "a", 2], 7, None],
}


def make_run(*rounds):
    events = [{"event": "round", "t": t, "seconds": 9.5, "boards": d} for t, d in enumerate(rounds)]
    return SimpleNamespace(label="=FedReG", events=events)


def test_the_section_has_rounds_to_draw_and_averages():
    run = make_run({"pi-10": GOOD, "pi-9": BAD}, {"pi-10": {**GOOD, "train": 4.0}, "pi-9": []})
    section = build_board_rounds_section(run)
    assert [d["name"] for d in section["rounds"][0]["boards"]] == ["pi-9", "pi-10"]
    assert [d["spans"] for d in section["rounds"][0]["boards"]] == [[], [[1, "3", 1.0, 3.0]]]
    (row,) = section["table"]["rows"]
    assert row["cells"][1:] == [
        "3.00",
        "0.50",
        "1.00",
        "4.00",
        "1.0 kB",
        "500 B",
        "300.0 MB",
        "50 %",
        "–",
        "–",
        "–",
    ]
    assert len(build_board_rounds_section(make_run(*[{"a": GOOD}] * 100))["rounds"]) == 30
    assert build_board_rounds_section(make_run({}, 3)) is None


def test_the_csv_has_a_line_per_round_and_board(tmp_path):
    write_board_rounds([make_run({"a": GOOD}, {"a": GOOD, "b": BAD})], tmp_path / "x.csv")
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert lines[1] == "'=FedReG,0,9.5,a,2,0.5,1,4,1000,500,300000000,0.5,,,"
    assert lines[3] == "'=FedReG,1,9.5,b,,,,,,,,,,,"
    with pytest.raises(ConfigError, match=r"write a \.csv"):
        write_board_rounds([], tmp_path / "x.svg")
