"""Boards as people see them: exact counts, few lines, one file, a table; nothing of it trusted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from helpers.live_browser import chromium, tab, until  # noqa: F401
from helpers.made_runs import FIRST, HOSTILE, data_of, parts, played, stored
from helpers.sessions import RUN, Simulation, jobs_of
from heterophony.boards.journal import StatusWriter, build_status
from heterophony.boards.protocol.board_stats import (
    MAX_BURST_LINES,
    MAX_REASON_LENGTH,
    MAX_UNADMITTED_BOARDS,
    SECONDS_PER_LINE,
    BoardStats,
    RateLimitedLog,
)
from heterophony.boards.protocol.messages import (
    BlobRef,
    Done,
    Status,
    Want,
    add_run,
    encode_message,
)
from heterophony.boards.protocol.topics import Publication, make_board_topic
from heterophony.core.errors import CodecError
from heterophony.report.page import html, page_data, views
from heterophony.report.page.server import Dashboard
from heterophony.results import boards, runs

BOARDS = {"pi-1": ["a", "b"], "pi-2": ["c"]}


class Counted(Simulation):
    """Reports to the server session what the network took, and counts it itself."""

    def __init__(self, *given: Any, **how: Any) -> None:
        self.bytes: Counter[tuple[str, str]] = Counter()
        super().__init__(*given, **how)

    def publish(self, sender: str, messages: list[Publication]) -> None:
        if not sender:
            self.server.record_sent(messages)
            for m in messages:
                if "/b/" in m.topic:
                    self.bytes["down", m.topic.split("/")[3]] += len(m.payload)
        super().publish(sender, messages)

    def arrive(self, to: str, topic: str, payload: bytes) -> None:
        if not to:
            self.bytes["up", topic.split("/")[3]] += len(payload)
        super().arrive(to, topic, payload)


def now(world: Simulation) -> dict[str, Any]:
    return build_status(world.server)["boards"]


def doing(world: Simulation, board: str = "pi-1") -> list[tuple[str, str, int]]:
    return [tuple(d.values()) for d in now(world)[board]["doing"]]


# Counters -----------------------------------------------------------------------------------


def test_bytes_jobs_and_seconds_of_every_board_are_exact(tmp_path):
    world = Counted(tmp_path, BOARDS)
    for t in range(2):
        world.play(jobs_of(t, "abc", size=100_000))
    for board, clients in BOARDS.items():
        told, jobs = now(world)[board], 2 * 2 * len(clients)
        assert (told["state"], told["clients"], told["doing"]) == ("here", clients, [])
        assert (told["jobs"], told["seconds"]) == (jobs, 0.5 * jobs)
        assert told["bytes_up"] == world.bytes["up", board] > 400_000
        assert told["bytes_down"] == world.bytes["down", board] > 400_000
        assert (told["refused"], told["wrong"], told["reconnects"], told["why"]) == (0, 0, 0, "")


def test_what_a_board_is_doing_follows_from_what_it_asks_for(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    world.until(lambda: "pi-1" in world.server.registry.boards)
    jobs = jobs_of(3, "a", size=200_000, tests=False)
    world.server.submit_jobs(jobs, world.now)
    (assigned,) = (o.assigned for o in world.server.assignments.open_jobs.values())
    seen = [doing(world)]
    for blob, chunks in (
        (assigned.tensors, (0,)),
        (assigned.tensors, (6,)),
        (assigned.average, (0,)),
    ):
        world.say("pi-1", Want(blob.sha256, chunks))
        seen.append(doing(world))
    world.say("pi-1", Done(assigned.id, 0, 3, BlobRef.from_bytes(b"reply"), 1.0))
    seen.append(doing(world))
    steps = ["asked", "pull", "pull", "train", "send"]
    assert seen == [[(what, "a", 3)] for what in steps]
    world.server.assignments.abandon_open_jobs()
    assert doing(world) == []


def test_who_comes_goes_and_comes_back_is_counted_and_told(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    board, log = world.boards["pi-1"], world.server.stats.log
    world.until(lambda: now(world).get("pi-1", {}).get("state") == "here")
    world.disconnect(board, 5.0)
    world.until(lambda: now(world)["pi-1"]["state"] == "gone")
    left = now(world)["pi-1"]["since"]
    world.until(lambda: now(world)["pi-1"]["state"] == "here")
    assert left < now(world)["pi-1"]["since"]
    board.start(world.now)
    board.online = True
    world.until(lambda: now(world)["pi-1"]["reconnects"] == 2)
    assert log.take_lines() == [
        "board pi-1 connected (clients a)",
        "board pi-1 disconnected",
        "board pi-1 reconnected",
        "board pi-1 reconnected (clients a)",
    ]


def test_after_a_restart_of_the_server_those_who_hold_clients_are_expected(tmp_path):
    stats = BoardStats(["pi-1", "pi-1", "pi-2"])
    assert {d: a.state for d, a in stats.counters.items()} == dict.fromkeys(BOARDS, "expected")
    stats.record_arrival("pi-1")
    stats.record_departure("pi-2")
    assert [a.state for a in stats.counters.values()] == ["arriving", "gone"]
    assert stats.log.take_lines() == []


def test_refused_work_and_wrong_messages_are_counted_apart_with_the_last_reason(tmp_path):
    def check(job, reply):
        if job.client == "c":
            raise CodecError("not finite")

    world = Simulation(tmp_path, BOARDS, check=check)
    world.publish("", world.server.submit_jobs(jobs_of(0, "abc", tests=False), world.now))
    world.until(lambda: len(world.server.assignments.lost_jobs) == 1)
    told = now(world)["pi-2"]
    assert (told["refused"], told["wrong"], told["jobs"]) == (3, 0, 0)
    assert told["why"] == "client c, round 0, train: not finite"
    world.say("pi-2", b"nonsense")
    world.server.receive("het/3/b/pi-2/up/else", b"", world.now)
    assert (now(world)["pi-2"]["refused"], now(world)["pi-2"]["wrong"]) == (3, 1)
    assert build_status(world.server)["foreign"] == 1
    assert now(world)["pi-1"]["jobs"] == 2


def test_a_flood_of_strangers_and_of_words_stays_small(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    world.until(lambda: "pi-1" in world.server.registry.boards)
    world.server.stats.log.take_lines()
    for n in range(500):
        world.say(f"evil-{n}", b"x" * 100)
        world.server.stats.record_invalid_message("pi-1", "\x1b[2J" + "word " * 10_000)
    stats = world.server.stats
    assert len(stats.counters) == MAX_UNADMITTED_BOARDS + 1
    assert stats.other_counters.wrong == 500 - MAX_UNADMITTED_BOARDS
    assert stats.other_counters.bytes_up == (100 + len(RUN) + 1) * (500 - MAX_UNADMITTED_BOARDS)
    assert len(stats.get_counters("pi-1").last_reason) == MAX_REASON_LENGTH
    assert stats.get_counters("pi-1").last_reason.isprintable()
    assert len(stats.log.buckets) == 2
    assert len(stats.log.take_lines()) == 2 * MAX_BURST_LINES - 1, (
        "one line had said that pi-1 connected"
    )
    late = Status("here", "s")
    world.server.receive(
        make_board_topic("evil-499", "status"), add_run(RUN, encode_message(late)), world.now
    )
    assert "evil-499" not in stats.counters
    stats.record_welcome("evil-499", ["z"], returned=False)
    assert stats.counters["evil-499"].state == "here"


def test_lines_come_back_with_the_time_and_say_what_was_left_out():
    log = RateLimitedLog()
    for n in range(MAX_BURST_LINES + 3):
        log.add_line("pi-1", f"line {n}", 0.0)
    log.add_line("pi-2", "another", 0.0)
    assert log.take_lines() == [*(f"line {n}" for n in range(MAX_BURST_LINES)), "another"]
    log.add_line("pi-1", "later", SECONDS_PER_LINE)
    log.add_line("pi-1", "too soon", SECONDS_PER_LINE)
    assert log.take_lines() == ["later (and 3 more, left out)"]


# The file -----------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_file_is_written_on_change_at_most_once_a_second_and_at_the_end(tmp_path):
    world, clock, said = Simulation(tmp_path, {"pi-1": ["a"]}), Clock(), []
    world.until(lambda: "pi-1" in world.server.registry.boards)
    path = tmp_path / "boards-now.json"

    def told() -> dict[str, Any] | None:
        found = json.loads(path.read_text()) if path.exists() else None
        path.unlink(missing_ok=True)
        return found

    with StatusWriter(world.server, tmp_path, said.append, clock) as status:
        status.update()
        assert told()["boards"]["pi-1"]["state"] == "here"
        assert said == ["board pi-1 connected (clients a)"]
        world.say("pi-1", b"nonsense")
        status.update()
        assert told() is None
        clock.now += 1
        status.update()
        assert told()["boards"]["pi-1"]["wrong"] == 1
        for _ in range(9):
            clock.now += 1
            status.update()
            assert told() is None
        clock.now += 1
        status.update()
        assert told()["state"] == "waiting", "the server lives"
    assert told()["state"] == "stopped"
    with StatusWriter(world.server, tmp_path, said.append, clock) as status:
        status.update()
        world.server.end_run()
    assert told()["state"] == "ended"
    with StatusWriter(world.server, tmp_path, said.append, clock):
        pass
    assert told() is None, "who had nothing to play leaves what was written"


def test_a_disk_that_refuses_the_file_does_not_end_the_run(tmp_path):
    world, clock, said = Simulation(tmp_path, {}), Clock(), []
    (tmp_path / "file").write_text("")
    with StatusWriter(world.server, tmp_path / "file", said.append, clock) as status:
        for _ in range(30):
            clock.now += 1
            status.update()
    assert len(said) == 1
    assert said[0].startswith("cannot write the status of the boards")


# The page -----------------------------------------------------------------------------------


def written(folder: Path, world: Simulation, state: str = "running", **more: Any) -> dict[str, Any]:
    """The file, as a server would write it, but for what is changed."""
    told = {**build_status(world.server, 1e9), "written": 1e9 + world.now, "state": state}
    for board, changes in more.items():
        told["boards"][board.replace("_", "-")] |= changes
    new = folder / "new"
    new.write_text(json.dumps(told))
    new.replace(folder / "boards-now.json")
    return told


@pytest.fixture
def world(tmp_path) -> Simulation:
    made = Counted(tmp_path / "world", BOARDS)
    made.play(jobs_of(0, "abc", tests=False))
    return made


def test_the_table_says_in_words_and_units_what_the_file_says(tmp_path, world):
    run = stored(tmp_path / "run", played(FIRST, finished=False))
    many = [str(n) for n in range(15)]
    work = [{"what": "train", "client": "a", "t": 3}, {"what": "send", "client": "b", "t": 3}]
    counts = {"bytes_down": 999, "bytes_up": 12_345_678, "seconds": 61.25, "doing": work}
    away = {"state": "gone", "clients": many, "refused": 2, "wrong": 1, "why": "too long"}
    written(run, world, pi_1=counts, pi_2={**away, "since": 1e9, "bytes_down": 2_000_000_000})
    (told,) = page_data.build_page_data(runs.load_runs([run]))["boards"]
    one, two = (row["cells"] for row in told["table"]["rows"])
    busy = "training client a, round 3; sending for client b, round 3"
    assert one[1:5] == ["here", "a, b", busy, "2"]
    assert one[5:] == ["61.2", "999 B", "12.3 MB", "0", "0", "–"]
    assert two[2] == ", ".join(many[:12]) + " and 3 more"
    assert two[1] == f"gone since {boards.format_time(1e9, 1e9)}"
    assert (two[6], two[-2:]) == ("2.0 GB", ["3", "too long"])
    assert told["summary"] == "2 boards: 1 here, 1 gone; 3 refused replies and messages."
    assert told["caption"].startswith("FedAvg, round 2 of 60, as of ")
    assert told["states"] == ("here", "gone")


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "[]", "null", "{}", '{"form": 2}', "[" * 100_000, "\x00\xff"),
        *(f'{{"form": 1, "written": {x}}}' for x in ("NaN", "1e999", "9" * 400, '"now"', "true")),
        '{"form":1,"written":1e300,"boards":{},"others":{"wrong":0,"refused":0},"foreign":0,"state":"x"}',
        '{"form":1,"written":1,"boards":{"a":{"state":"<b>"}}}',
        '{"form":1,"written":1,"boards":[]}',
    ],
)
def test_a_damaged_file_is_one_line_and_nothing_else_is_lost(tmp_path, text):
    run = stored(tmp_path / "run", played(FIRST))
    (run / "boards-now.json").write_text(text)
    view = views.ViewLoader(run).load_view()
    line = "The boards cannot be shown: boards-now.json is damaged, or of another version."
    assert [d["summary"] for d in parts(b"".join(view.message_parts))["boards"]] == [line]
    assert data_of(html.render_report(runs.load_runs([run])))["boards"][0]["table"]["rows"] == []
    assert view.note == ""


def test_only_the_boards_are_told_again_when_only_they_change(tmp_path, world):
    run = stored(tmp_path / "run", played(FIRST, finished=False))
    board = views.ViewLoader(run)
    assert set(parts(b"".join(board.load_view().message_parts))) == {"note", "message"}
    written(run, world)
    first = board.load_view()
    assert set(parts(b"".join(first.message_parts))) == {"note", "message", "boards"}
    written(run, world, pi_1={"jobs": 77})
    second = board.load_view()
    assert second.message_parts[0] is first.message_parts[0]
    assert parts(second.message_parts[1])["boards"][0]["table"]["rows"][0]["cells"][4] == "77"
    assert data_of(second.render_html())["boards"][0]["table"]["rows"][0]["cells"][4] == "77"
    assert board.load_view() is second
    (run / "boards-now.json").unlink()
    assert set(parts(b"".join(board.load_view().message_parts))) == {"note", "message"}


def test_a_silent_server_is_named_and_an_ended_run_is_not(tmp_path, world):
    run = stored(tmp_path / "run", played(FIRST))
    told = written(run, world)
    found = boards.read_board_status(run)
    at = told["written"]
    silent = "The server has stopped or not responded since"
    assert (
        silent
        not in boards.build_boards_section(found, "x", at + boards.SILENCE_SECONDS)["summary"]
    )
    assert (
        silent
        in boards.build_boards_section(found, "x", at + boards.SILENCE_SECONDS + 1)["summary"]
    )
    assert (
        silent in boards.build_boards_section(replace(found, server="stopped"), "x", at)["summary"]
    )
    ended = boards.build_boards_section(replace(found, server="ended"), "x", at + 1e6)
    assert ended["summary"] == "2 boards: 2 here. The run has finished."
    assert ended["caption"] == "x, at the end of the run"


def test_a_browser_shows_boards_live_before_and_in_a_run_and_only_as_text(
    tab,  # noqa: F811
    tmp_path,
    world,
):
    run = stored(tmp_path / "one", [])
    served = Dashboard(run, 0)
    Thread(target=served.serve_forever, args=(0.05,), daemon=True).start()
    try:
        tab.goto(served.url)
        written(run, world, "waiting", pi_2={"state": "expected"})
        until(tab, "not yet here", "#boards-tables")
        stored_events = [json.dumps(e) + "\n" for e in played(FIRST, finished=False)]
        (run / "events.jsonl").write_text("".join(stored_events))
        until(tab, "FedAvg, round 2 of 60", "#legend")
        region = tab.get_by_role("region", name="as of")
        region.focus()
        evil = {"state": "refused", "wrong": 3, "why": HOSTILE}
        written(run, world, pi_2=evil, pi_1={"doing": [{"what": "train", "client": "b", "t": 2}]})
        until(tab, "3 refused replies and messages", "#boards-summary")
        assert tab.evaluate("() => document.activeElement.getAttribute('role')") == "region"
        rows = tab.locator("#boards tbody tr")
        assert "training client b, round 2" in rows.nth(0).inner_text()
        assert HOSTILE in rows.nth(1).inner_text()
        assert tab.locator("#boards img, #boards script").count() == 0
        assert tab.locator("#boards [role=status], #boards [aria-live]").count() == 1
        assert "as of" in tab.locator("#boards caption").inner_text()
        assert tab.get_by_role("link", name="Boards").count() == 1
        (run / "boards-now.json").write_text("{")
        until(tab, "is damaged", "#boards-summary")
        assert tab.locator("#boards table").count() == 0
        assert tab.complaints == []
    finally:
        served.shutdown()
        served.server_close()
