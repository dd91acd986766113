"""The dashboard's server: what it shows of a folder, to whom, and what it refuses."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from helpers.commands import refused
from helpers.made_runs import FIRST, HOSTILE, SECOND, Reader, data_of, parts, played, stored
from heterophony.core.errors import BusyError, ConfigError
from heterophony.core.files import lock_folder
from heterophony.report.page import page_data, server, views
from heterophony.report.page.server import Dashboard, open_dashboard
from heterophony.results import overview as progress
from heterophony.results import overview as run_overview
from heterophony.results import runs
from heterophony.runs.summary import summarise


def finished(folder: Path, events: list[dict[str, Any]]) -> Path:
    """A run folder with its result, as a run leaves it."""
    stored(folder, events)
    (folder / "result.json").write_text(json.dumps(summarise(events).to_dict()))
    return folder


def rewrite(run: Path, events: list[dict[str, Any]]) -> None:
    (run / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))


# What there is to show ----------------------------------------------------------------------


def test_a_run_is_shown_as_its_report_shows_it(tmp_path: Path) -> None:
    run = stored(tmp_path / "run", played(FIRST))
    view = views.ViewLoader(run).load_view()
    expected = json.loads(json.dumps(page_data.build_page_data(runs.load_runs([run]))))
    assert parts(b"".join(view.message_parts)) == {"note": "", "message": expected}
    assert data_of(view.render_html()) == expected


def test_a_comparison_is_shown_side_by_side_in_the_order_asked_for(tmp_path: Path) -> None:
    for name in ("fedper", "fedavg"):
        stored(tmp_path / f"{name}-0", played(FIRST, name))
    (tmp_path / "compare.json").write_text('{"runs": ["fedper-0", "fedavg-0"]}')
    view = views.ViewLoader(tmp_path).load_view()
    assert [r.label for r in view.runs] == ["FedPer", "FedAvg"]


def test_a_folder_of_folders_is_a_list_with_the_newest_first(tmp_path: Path) -> None:
    alone = finished(tmp_path / "alone", played(FIRST))
    going = stored(tmp_path / "mine" / "fedper-1", played(SECOND, "fedper", finished=False))
    waiting = stored(tmp_path / "mine" / "fedper-2", [])
    torn = stored(tmp_path / "torn", [{"event": "round"}])
    for age, run in enumerate((going, alone, waiting, torn)):
        for file in run.iterdir():
            os.utime(file, ns=(0, 10**18 - age))
    rows = parts(views.ViewLoader(tmp_path).load_view().message_parts[0])["run_list"]
    last10 = [summarise(played(FIRST)).to_dict()[k]["last10"]["mean"] for k in "GP"]
    so_far = runs.load_run(going).current_summary.to_dict()
    keys = ("name", "address", "nested", "algorithm", "state", "activity", "G", "P")
    assert [[row[key] for key in keys] for row in rows] == [
        ["mine", "?of=mine", False, "FedPer", "0 of 2 runs finished", "stopped", None, None],
        ["mine/fedper-1", "?of=mine/fedper-1", True, "FedPer", "round 2 of 60", "stopped"]
        + [so_far[k]["last10"]["mean"] for k in "GP"],
        ["mine/fedper-2", "?of=mine/fedper-2", True, "–", "not started", "not started", None, None],
        ["alone", "?of=alone", False, "FedAvg", "finished", "finished", *last10],
        ["torn", "?of=torn", False, "–", "damaged", "damaged", None, None],
    ]
    assert [row["runs"] for row in rows] == [2, 1, 1, 1, 1]
    assert rows[3]["curves"]["P"] == [[0, 0.2], [1, 1.0], [2, 0.7]]
    assert rows[4]["curves"] == {}
    assert {row["changed"] for row in rows} == {10**12 - 1, 10**12}


def test_a_run_is_running_while_a_process_holds_it_or_events_come(tmp_path: Path) -> None:
    run = stored(tmp_path / "run", played(FIRST, finished=False))
    stored(tmp_path / "waiting", [])
    os.utime(run / "events.jsonl", (0, 0))
    loader = views.ViewLoader(tmp_path)
    shown = {row["name"]: row for row in loader.load_view().rows}
    assert (shown["run"]["activity"], shown["run"]["left"]) == ("stopped", None)
    locks = [lock_folder(tmp_path / name) for name in shown]
    held = {row["name"]: row for row in loader.load_view().rows}
    assert [row["activity"] for row in held.values()] == ["running", "running"]
    assert (held["run"]["done"], held["run"]["rounds"], held["run"]["left"]) == (2, 60, "1:27")
    for lock in locks:
        os.close(lock)
    assert [row["activity"] for row in loader.load_view().rows] == [
        row["activity"] for row in shown.values()
    ]
    overview = run_overview.read_run_overview(run)  # on another machine, only events are seen
    assert run_overview.is_running(run, overview, set(), now=59.0)
    assert not run_overview.is_running(run, overview, set(), now=61.0)
    assert run_overview.read_held_locks(tmp_path / "no such file") == set()


def test_small_curves_have_few_points_of_each_measure_and_the_last(tmp_path: Path) -> None:
    right = {
        "G": [[i % 5, 3] for i in range(91)],
        "P": [None if i % 7 else [4, 6] for i in range(92)],
    }
    events = played({**right, "G": [*right["G"], [4, 6]]}, finished=False)
    run = stored(tmp_path / "run", [])
    lines = (json.dumps(e, separators=(",", ":")) for e in events)  # as a run writes them
    (run / "events.jsonl").write_text("".join(f"{line}\n" for line in lines) + '{"event":"eval')
    curves = run_overview.read_run_overview(run).curves
    assert [t for t, _ in curves["P"]] == list(range(0, 92, 7))
    assert len(curves["G"]) <= run_overview.MAX_POINTS
    assert curves["G"][-1] == [91, 1.0]


@pytest.mark.parametrize("seconds", ["NaN", "[]", "1e999"])
def test_a_strange_number_in_a_run_hides_no_other_run(tmp_path: Path, seconds: str) -> None:
    stored(tmp_path / "good", played(FIRST))
    bad = stored(tmp_path / "bad", played(FIRST, finished=False)) / "events.jsonl"
    bad.write_text(bad.read_text().replace('"seconds": 1.5', f'"seconds": {seconds}'))
    view = views.ViewLoader(tmp_path).load_view()
    assert {row["name"]: row["done"] for row in view.rows} == {"good": 2, "bad": 0}


def test_chosen_runs_are_compared_on_one_page(tmp_path: Path) -> None:
    stored(tmp_path / "one", played(FIRST))
    for seed in (0, 1):
        stored(tmp_path / "mine" / f"fedper-{seed}", played(FIRST, "fedper", seed=seed))
    loader = views.ViewLoader(tmp_path)
    view = loader.load_view("one", "mine/fedper-1")
    assert [r.label for r in view.runs] == ["FedAvg", "FedPer"]
    assert loader.load_view("one", "mine/fedper-1") is view
    whole = loader.load_view("mine/fedper-1", "mine", "one")  # the folder adds its other run
    assert [(r.algorithm, r.seed) for r in whole.runs] == [
        ("fedper", 1),
        ("fedper", 0),
        ("fedavg", 0),
    ]
    assert loader.load_view("one", "../one") is None
    shutil.rmtree(tmp_path / "one")
    left = loader.load_view("one", "mine/fedper-1")
    assert ([r.label for r in left.runs], left.note) == (["FedPer"], "one has not started yet.")


def test_a_name_leads_only_to_what_was_found(tmp_path: Path) -> None:
    stored(tmp_path / "outside", played(FIRST))
    for seed in (0, 1):
        stored(tmp_path / "runs" / "mine" / f"fedavg-{seed}", played(FIRST, seed=seed))
    loader = views.ViewLoader(tmp_path / "runs")
    both = [r.label for r in loader.load_view("mine").runs]
    assert both == ["FedAvg, seed 0", "FedAvg, seed 1"]
    assert [r.label for r in loader.load_view("mine/fedavg-0").runs] == ["FedAvg"]
    inside = str(tmp_path / "runs" / "mine")
    for name in ("../outside", "mine/../mine", "mine/", "./mine", inside, "nothing", "\0", "."):
        assert loader.load_view(name) is None


def test_a_finished_run_in_the_list_costs_only_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(tmp_path / "run", played(FIRST))
    monkeypatch.delattr(progress, "load_run")
    assert views.read_listed_run(tmp_path / "run").progress.state == "finished"


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compare.json").write_text('{"runs": []}')
    for name in ("a", "b"):
        stored(tmp_path / name, played(FIRST, name, finished=False))
    read: list[str] = []
    monkeypatch.setattr(views, "load_run", lambda f: (read.append(f.name), runs.load_run(f))[1])
    loader = views.ViewLoader(tmp_path)
    first = loader.load_view()
    assert loader.load_view() is first
    assert read == ["a", "b"]
    rewrite(tmp_path / "b", played(FIRST, "b"))
    assert [r.state for r in loader.load_view().runs] == ["round 2 of 60", "finished"]
    assert read == ["a", "b", "b"]


def test_an_empty_folder_and_none_say_so_and_fill_themselves(tmp_path: Path) -> None:
    loader = views.ViewLoader(tmp_path / "runs")
    assert "does not exist yet" in loader.load_view().note
    (tmp_path / "runs").mkdir()
    assert "There is no run in" in loader.load_view().note
    assert "There is no run in" in loader.load_view().render_html()
    stored(tmp_path / "runs" / "one", [])
    view = loader.load_view()
    assert (view.note, [row["state"] for row in view.rows]) == ("", ["not started"])
    assert loader.load_view("one").note == "one has not started yet."


def test_a_list_that_becomes_a_comparison_is_shown_as_one(tmp_path: Path) -> None:
    stored(tmp_path / "a", played(FIRST))
    loader = views.ViewLoader(tmp_path)
    assert loader.load_view().rows
    (tmp_path / "compare.json").write_text('{"runs": ["a"]}')
    assert [r.label for r in loader.load_view().runs] == ["FedAvg"]
    (tmp_path / "compare.json").unlink()
    assert loader.load_view().rows


@pytest.mark.parametrize(
    "harm",
    [
        lambda run: (run / "events.jsonl").write_text('{"event": "start"}\n'),
        lambda run: (run / "events.jsonl").write_text("nonsense\n"),
        lambda run: (run / "events.jsonl").write_text(json.dumps(played(FIRST)[0]) + "\n[]\n"),
        lambda run: (run / "events.jsonl").write_text(""),
        lambda run: (run / "events.jsonl").unlink(),
        lambda run: (run / "config.toml").write_text("a ="),
        lambda run: shutil.rmtree(run),
    ],
    ids=["fields missing", "no JSON", "no event", "cut", "no events", "no TOML", "deleted"],
)
def test_a_run_that_breaks_while_shown_is_named_and_comes_back(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    stored(tmp_path / "mine" / "good", played(FIRST, "fedper"))
    bad = stored(tmp_path / "mine" / "bad", played(FIRST))
    loader = views.ViewLoader(tmp_path)
    before, both = loader.load_view("mine/bad"), loader.load_view("mine")
    assert (len(before.runs), len(both.runs), both.note) == (1, 2, "")
    harm(bad)
    alone = loader.load_view("mine/bad")
    assert (alone.runs, alone.rows) == ((), None), "the page keeps what it has"
    assert "bad" in alone.note
    assert [r.algorithm for r in loader.load_view("mine").runs] == ["fedper"]
    assert isinstance(loader.load_view().rows, list)
    shutil.rmtree(bad, ignore_errors=True)
    stored(bad, played(FIRST))
    assert loader.load_view("mine/bad").message_parts == before.message_parts
    assert loader.load_view("mine").message_parts == both.message_parts


def test_a_damaged_list_of_a_comparison_is_said_and_ends_nothing(tmp_path: Path) -> None:
    stored(tmp_path / "a", played(FIRST))
    (tmp_path / "compare.json").write_text("[")
    loader = views.ViewLoader(tmp_path)
    assert "compare.json is damaged" in loader.load_view().note
    (tmp_path / "compare.json").write_text('{"runs": ["a"]}')
    assert len(loader.load_view().runs) == 1


def test_hostile_names_are_inert_in_the_list_too(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    stored(tmp_path / name, played(FIRST))
    strange = tmp_path / os.fsdecode(b"\xff")
    stored(strange, played(FIRST))
    loader = views.ViewLoader(tmp_path)
    read = Reader(loader.load_view().render_html().encode().decode())
    assert [tag for tag, _ in read.tags].count("script") == 2
    assert {row["name"] for row in json.loads(read.scripts[0])} == {name, "�"}
    assert len(loader.load_view(name).runs) == len(loader.load_view(strange.name).runs) == 1


# Over HTTP ----------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Dashboard]:
    """A dashboard over a folder with one run in it, and an empty one."""
    stored(tmp_path / "runs" / "one", played(FIRST))
    (tmp_path / "secret").write_text("secret")
    with open_dashboard(tmp_path / "runs", 0) as dashboard:
        thread = Thread(target=dashboard.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield dashboard
        dashboard.shutdown()
        thread.join()


def ask(
    to: Dashboard, target: str, method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", to.server_port, timeout=30)
    own = {"Host": f"127.0.0.1:{to.server_port}"}
    sent = own | {k.replace("_", "-"): v for k, v in headers.items()}
    connection.request(method, target, headers=sent)
    answer = connection.getresponse()
    connection.close()  # what was received can still be read
    return answer


def message(stream: http.client.HTTPResponse) -> list[bytes]:
    """The next lines of a stream, up to an empty one."""
    return list(iter(stream.readline, b"\n"))


def test_the_page_has_every_safe_header_and_lets_nobody_else_read(served: Dashboard) -> None:
    for target in ("/", "/?of=one", "/nothing"):
        answer = ask(served, target)
        told = dict(answer.getheaders())
        assert told.items() >= server.HEADERS.items()
        assert not [name for name in told if name.lower().startswith("access-control")]
        assert told["Server"].strip() == "heterophony"
    (policy,) = (
        a["content"]
        for _, a in Reader(ask(served, "/?of=one").read().decode()).tags
        if a.get("http-equiv")
    )
    assert policy.startswith("default-src 'none'; ")
    assert policy.endswith("; connect-src 'self'")


def test_it_listens_on_loopback_alone(served: Dashboard) -> None:
    assert served.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_its_own_names_are_answered(served: Dashboard, host: str) -> None:
    assert ask(served, "/", Host=f"{host}:{served.server_port}").status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{}", ""]
)
def test_a_foreign_name_is_refused_whatever_is_asked(served: Dashboard, host: str) -> None:
    for target in ("/", "/events", "/nothing"):
        assert ask(served, target, Host=host.format(served.server_port)).status == 403


@pytest.mark.parametrize("hosts", [0, 2])
def test_no_name_and_two_names_are_refused(served: Dashboard, hosts: int) -> None:
    line = f"Host: 127.0.0.1:{served.server_port}\r\n"
    with socket.create_connection(served.server_address, timeout=30) as own:
        own.sendall(f"GET / HTTP/1.1\r\n{line * hosts}\r\n".encode())
        assert own.recv(100).startswith(b"HTTP/1.0 403 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO"])
def test_nothing_but_reading_is_allowed(served: Dashboard, method: str) -> None:
    answer = ask(served, "/", method)
    assert (answer.status, answer.getheader("Allow")) == (405, "GET, HEAD")
    assert dict(answer.getheaders()).items() >= server.HEADERS.items()


@pytest.mark.parametrize("target", ["/", "/events"])
def test_a_head_has_no_body(served: Dashboard, target: str) -> None:
    answer = ask(served, target, "HEAD")
    assert (answer.status, answer.read()) == (200, b"")


@pytest.mark.parametrize(
    "target",
    [
        "/secret",
        "/../secret",
        "/%2e%2e/secret",
        "/one/config.toml",
        "/events/",
        "/events/../secret",
        "/?of=../secret",
        "/?of=..%2Fsecret",
        "/?of=/etc/passwd",
        "/?of=one/..",
        "/?of=one%00",
        "/?of=nothing",
        "/events?of=nothing",
        "/?file=one",
        "/?of=one&of=one",
        "/?of=one&of=nothing",
        "/?of=one&file=two",
        "/?" + "&".join(["of=one"] * 5000),
        "http://127.0.0.1/",
        "/favicon.ico",
    ],
)
def test_there_is_nothing_else(served: Dashboard, target: str) -> None:
    answer = ask(served, target)
    assert answer.status == 404
    assert answer.read() == f"not found; open {served.url}\n".encode()


def test_the_stream_begins_with_what_is_and_tells_what_comes(
    served: Dashboard, tmp_path: Path
) -> None:
    stream = ask(served, "/events?of=one")
    assert stream.getheader("Content-Type") == "text/event-stream"
    assert message(stream) == [b"retry: 1000\n"]
    assert message(stream) == [b"event: note\n", b'data: ""\n']
    (line,) = message(stream)
    assert json.loads(line.removeprefix(b"data: "))["title"] == "FedAvg on digits"
    rewrite(tmp_path / "runs" / "one", played(FIRST, "fedper"))
    message(stream)
    (line,) = message(stream)
    assert json.loads(line.removeprefix(b"data: "))["title"] == "FedPer on digits"
    shutil.rmtree(tmp_path / "runs" / "one")
    assert b"one does not exist yet" in message(stream)[1]
    stream.close()


def test_another_site_cannot_open_a_stream(served: Dashboard) -> None:
    for site in ("cross-site", "same-site"):
        assert ask(served, "/events", Sec_Fetch_Site=site).status == 403
    with ask(served, "/events", Sec_Fetch_Site="same-origin") as stream:
        assert stream.status == 200


def test_streams_are_bounded_and_come_back(
    served: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.watcher, "limit", 3)
    streams = [ask(served, "/events") for _ in range(3)]
    assert [s.status for s in streams] == [200] * 3
    assert ask(served, "/events").status == 503
    assert ask(served, "/").status == 200, "pages are still there"
    served.watcher.unsubscribe(())
    with ask(served, "/events") as again:
        assert again.status == 200
    for stream in streams:
        stream.close()


def test_a_quiet_stream_says_that_it_is_alive(
    served: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterophony.report.page.server.HEARTBEAT_SECONDS", 0.01)
    with ask(served, "/events?of=one") as stream:
        for _ in range(3):
            message(stream)
        assert message(stream) == [b": alive\n"]


def test_looking_changes_nothing_in_the_folder(served: Dashboard, tmp_path: Path) -> None:
    def state() -> list[tuple[Path, int, bytes]]:
        return [(p, p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"")
                for p in sorted(tmp_path.rglob("*"))]  # fmt: skip

    before = state()
    for target in ("/", "/?of=one"):
        ask(served, target)
    with ask(served, "/events") as stream:
        message(stream)
    assert state() == before


# The command --------------------------------------------------------------------------------


def test_a_taken_port_is_said_and_the_next_free_one_found(tmp_path: Path) -> None:
    with (
        open_dashboard(tmp_path, 0) as first,
        pytest.raises(BusyError, match=r"port \d+ is in use"),
    ):
        open_dashboard(tmp_path, first.server_port)
    with open_dashboard(tmp_path, None) as one, open_dashboard(tmp_path, None) as two:
        assert one.server_port != two.server_port
        assert min(one.server_port, two.server_port) >= server.DEFAULT_PORT


def test_a_port_that_may_not_be_had_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Dashboard, "server_bind", refuse)
    with pytest.raises(ConfigError, match="--port 80 cannot be used: Permission denied"):
        open_dashboard(tmp_path, 80)


def command(*words: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "heterophony", "dashboard", *words]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(tmp_path: Path, number: signal.Signals) -> None:
    words = command(str(tmp_path), "--port", "0")
    with subprocess.Popen(words, stdout=-1, stderr=-1, text=True) as process:
        url = process.stdout.readline()
        port = int(url.removeprefix("http://127.0.0.1:").removesuffix("/\n"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/events")
        stream = connection.getresponse()  # an open stream does not keep it
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", "press Ctrl-C to stop\n")
        stream.close()
        connection.close()
    assert process.returncode == 0


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused(3, "dashboard", tmp_path / "file")
    with open_dashboard(tmp_path, 0) as taken:
        told = refused(1, "dashboard", tmp_path, "--port", str(taken.server_port))
    assert told.startswith(f"port {taken.server_port} is in use by another process; ")
