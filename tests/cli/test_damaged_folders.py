"""One damaged folder among others is one line in its place: in `list runs`, `report` and the dashboard."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.commands import call, refused
from helpers.made_runs import FIRST, played, stored
from heterophony.report.page.views import ViewLoader
from heterophony.runs.summary import summarise

Damage = Callable[[Path], None]
EVENTS, RESULT, CONFIG = "events.jsonl", "result.json", "config.toml"
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


def make_run(folder: Path, algorithm: str = "fedavg", name: str = "a") -> Path:
    """Make a finished run."""
    events: list[Any] = played(FIRST, algorithm, clients=(name, "b"))
    stored(folder, events)
    (folder / RESULT).write_text(json.dumps(summarise(events).to_dict()))
    return folder


def replace(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content) and None


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def become_folder(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def become_pipe(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def become_link(name: str, target: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return damage


def forbid(name: str) -> Damage:
    return lambda folder: (folder / name).chmod(0)


def grow(name: str) -> Damage:
    """Make a file of 20 GB that occupies no disk."""
    return lambda folder: os.truncate(folder / name, 20 << 30)


def change_events(change: Callable[[list[Any]], object], finished: bool = True) -> Damage:
    """Change the events; without ``finished``, of a run that has not ended."""

    def damage(folder: Path) -> None:
        events = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
        if not finished:
            del events[-1]
        change(events)
        (folder / EVENTS).write_text("".join(json.dumps(e) + "\n" for e in events))
        (folder / RESULT).unlink()

    return damage


def set_key(at: int, key: str, value: Any, finished: bool = False) -> Damage:
    return change_events(lambda events: events[at].update({key: value}), finished)


def set_result(**values: Any) -> Damage:
    def damage(folder: Path) -> None:
        content = json.loads((folder / RESULT).read_text())
        (folder / RESULT).write_text(json.dumps({**content, **values}))

    return damage


ACCURACY = {"best": 0.5, "best_round": 1, "last": 0.5, "last10": {"mean": 0.5, "std": 0.0}}
DAMAGES: dict[str, Damage] = {
    "no events": remove(EVENTS),
    **{f"empty {f}": replace(f, b"") for f in (EVENTS, RESULT, CONFIG)},
    **{f"garbage in {f}": replace(f, b"\xff\x00\x1b[2J\n" * 9) for f in (EVENTS, RESULT, CONFIG)},
    **{f"zeros in {f}": replace(f, bytes(5000)) for f in (EVENTS, RESULT, CONFIG)},
    **{f"{f} is a folder": become_folder(f) for f in (EVENTS, RESULT)},
    **{f"{f} is a pipe": become_pipe(f) for f in (EVENTS, RESULT, CONFIG)},
    **{f"{f} links to a device": become_link(f, "/dev/zero") for f in (EVENTS, RESULT, CONFIG)},
    **{f"{f} links to itself": become_link(f, f) for f in (EVENTS, RESULT, CONFIG)},
    **{f"{f} links to nothing": become_link(f, "nothing") for f in (EVENTS, RESULT, CONFIG)},
    **{f"{f} is forbidden": forbid(f) for f in (EVENTS, RESULT, CONFIG)},
    **{f"{f} has 20 GB": grow(f) for f in (RESULT, CONFIG)},
    **{
        f"{text[:8]!r} in {f}": replace(f, text)
        for f in (EVENTS, RESULT)
        for text in (b"[]\n", b"null\n", b"7\n", b'"end"\n', b"{}\n", b"[" * 99_999 + b"\n")
    },
    "deep settings": replace(CONFIG, b"a = " + b"[" * 99_999),
    "a number of 9999 digits": replace(EVENTS, b"9" * 9999 + b"\n"),
    "5000 dots in the settings": replace(CONFIG, ".".join("a" * 5000).encode() + b" = 1"),
    **{
        f"labels are {value!r}": set_key(0, "labels", value)
        for value in ([[float("-inf"), 1], [1, 1]], [[float("inf"), float("-inf")]] * 2)
    },
    "events swapped": change_events(list.reverse),
    "no start": change_events(lambda events: events.pop(0)),
    "only an end": change_events(lambda events: events.__delitem__(slice(0, -1))),
    "an event is a list": change_events(lambda events: events.insert(1, [])),
    "an event is of no kind": change_events(lambda events: events.insert(1, {"event": []})),
    "a key is missing": change_events(lambda events: events[1].pop("P")),
    **{
        f"{key} of the start is {value!r}"[:60]: set_key(0, key, value)
        for key in ("algorithm", "rounds", "clients", "test", "train", "labels", "seed", "classes")
        for value in (None, "x", -1, [], {}, [[]], float("nan"), 10**400)
    },
    **{
        f"{key} of an evaluation is {value!r}"[:60]: set_key(1, key, value)
        for key in ("t", "G", "P")
        for value in ("x", {}, [1], [1, 2, 3], ["a", "b"], [float("nan"), 1], [10**400, 1])
    },
    **{
        f"{key} of a round is {value!r}"[:60]: set_key(2, key, value)
        for key in ("clients", "bytes_up", "loss", "measures", "P_local", "work", "seconds")
        for value in (None, "x", [[1]], {"a": "b"}, float("inf"), 10**400)
    },
    "no accuracies in the result": replace(RESULT, b'{"algorithm": "fedavg"}'),
    "a result with NaN": set_result(G={**ACCURACY, "best": float("nan")}),
    "a result with text": set_result(G={**ACCURACY, "best": "high"}),
    "a result with lists": set_result(algorithm=["a"], P=[1, 2]),
    "a result with infinity": set_result(P={**ACCURACY, "last10": {"mean": 1e999, "std": 0}}),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_folder_hides_no_other(kind):
    make_run(Path("runs/good"))
    DAMAGES[kind](make_run(Path("runs/bad")))
    listed = {r["name"]: r for r in json.loads(call("list", "runs", "--json").stdout)}
    assert listed["runs/good"]["state"] == "finished"
    assert "runs/bad" in listed
    assert len(call("list", "runs").stdout.splitlines()) == 4
    view = ViewLoader(Path("runs")).load_view()
    assert view is not None
    assert not view.note
    assert {row["name"] for row in view.rows or []} == {"good", "bad"}
    assert b"NaN" not in b"".join(view.message_parts)
    assert b"Infinity" not in b"".join(view.message_parts)
    assert call("report", "runs", "-o", "table.csv").exit_code == 0
    with open("table.csv") as file:
        assert "FedAvg" in [row["name"].split(",")[0] for row in csv.DictReader(file)]


@pytest.mark.parametrize("kind", [k for k in DAMAGES if EVENTS in k and "forbidden" not in k])
def test_the_report_of_a_damaged_folder_is_refused_in_one_line(kind):
    DAMAGES[kind](make_run(Path("bad")))
    done = call("report", "bad")
    assert done.exit_code in (3, 74)
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_report_says_what_it_leaves_out():
    make_run(Path("runs/good"))
    replace(EVENTS, b"[]\n")(make_run(Path("runs/bad")))
    done = call("report", "runs", "-o", "page.html")
    left_out, wrote = done.stderr.splitlines()
    assert left_out.startswith("left out: ")
    assert "runs/bad/events.jsonl is damaged" in left_out
    assert wrote == "wrote page.html"


def test_a_damaged_comparison_or_sweep_is_one_line():
    make_run(Path("runs/good"))
    for content in ("[]", "{}", '{"runs": 7}', '{"runs": [[]]}', "null", "x"):
        Path("runs/compare.json").write_text(content)
        assert "compare.json is damaged" in refused(3, "report", "runs")
    Path("runs/compare.json").unlink()
    run = {"settings": {}, "seed": 0}
    for runs in (7, {"good": 7}, {"../mine": run}, {"/etc": run}, {"..": run}):
        content = {"runs": runs, "failed": {}, "settings": []}
        Path("runs/sweep.json").write_text(json.dumps(content))
        assert "sweep.json is damaged" in refused(3, "resume", "runs")


def test_no_escape_sequence_reaches_the_terminal():
    names = [f"m:Evil{ESCAPE}", f"{ESCAPE}\r\nerror: all is well"]
    for i, name in enumerate(names):
        make_run(Path(f"runs/{ESCAPE}{i}"), name, name)
    Path(os.fsdecode(b"runs/\xff")).mkdir()
    Path(os.fsdecode(b"runs/\xff/config.toml")).write_text("")
    for words in (
        ["list", "runs"],
        ["resume", f"runs/{ESCAPE}0"],
        ["report", f"no{ESCAPE}"],
        ["report", f"runs/{ESCAPE}0"],
        ["run", f"{ESCAPE}"],
        ["run", "-c", f"data.name={ESCAPE}"],
    ):
        done = call(*words)
        said = done.stdout + done.stderr
        assert said
        assert not set(said) & set("\x1b\x9b\x07\r\u202e")


def test_no_cell_of_a_table_begins_a_formula():
    signs = "=+-@"
    for i, sign in enumerate(signs):
        make_run(Path(f"runs/{i}"), f"{sign}cmd|' /C calc'!A0")
    assert call("report", "runs", "-o", "table.csv").exit_code == 0
    with open("table.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(signs)
    assert all(row[key].startswith("'") for row in rows for key in ("algorithm", "name"))
    assert float(rows[0]["P.last10 mean %"]) == 85.0
