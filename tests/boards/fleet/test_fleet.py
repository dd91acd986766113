"""A fleet of three boards, which are real OpenSSH servers: the bits of a simulation, whatever dies."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.boards import installed
from helpers.commands import call
from helpers.ssh_boards import SshBoards, make_key
from heterophony.boards.broker.broker import Broker
from heterophony.boards.fleet import run as fleet_run
from heterophony.core.errors import StoppedError

QUICK = ("rounds=2", "data.clients=3", "data.partition.alpha=0.5", "training.epochs=1")
SETTINGS = [w for s in (*QUICK, "model.name=mlp", "participation.rate=1.0") for w in ("-c", s)]


@pytest.fixture
def boards(tmp_path, monkeypatch):
    """Three boards, in an empty folder; their boards and the broker end with the test."""
    installed()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    # test_supervision.py has the looks at boards; on a slow machine they would be many
    monkeypatch.setattr(fleet_run, "POLL_SECONDS", 600.0)
    with SshBoards(tmp_path, 3) as boards:
        boards.write_hosts(tmp_path / "hosts.toml", clients="1")
        yield boards
        call("fleet", "hosts.toml", "stop")
        if Path("broker/broker.toml").exists():
            Broker(Path("broker")).stop()


def kill_everything(boards: SshBoards, monkeypatch) -> None:
    """After the first round, kill a board's SSH server, the board of another, and the command."""
    serve = fleet_run.serve

    def serve_and_die(config, folder, enrolment, run, hooks, enrolled):
        def die(event):
            hooks.on_event(event)
            if event["event"] == "round":
                boards.boards[0].kill()
                record = boards.boards[1].home / "heterophony/board.pid"
                os.killpg(json.loads(record.read_text())["pid"], signal.SIGKILL)
                raise StoppedError("killed by the test")

        return serve(config, folder, enrolment, run, replace(hooks, on_event=die), enrolled)

    monkeypatch.setattr(fleet_run, "serve", serve_and_die)


def test_a_whole_run_survives_dead_servers_boards_and_commands_with_the_same_bits(
    boards, monkeypatch
):
    words = ["fleet", "hosts.toml", "run", "fedreg", *SETTINGS, "--out", "runs/three"]
    with monkeypatch.context() as patched:
        kill_everything(boards, patched)
        first = call(*words)
    assert first.exit_code == StoppedError.exit_code, first.stderr
    assert first.stderr.count(": install: installed heterophony ") == 3
    failed = call("fleet", "hosts.toml", "status")
    assert failed.exit_code == 1
    (line,) = failed.stderr.splitlines()
    assert line.startswith("error: board-1: no SSH server answers (")
    states = dict(line.split(None, 1) for line in failed.stdout.splitlines()[2:])
    assert states["board-2"].startswith("exited with code ")
    assert states["board-3"].startswith("running")

    boards.boards[0].start()
    second = call(*words, "--json")
    assert second.exit_code == 0, second.stderr
    assert second.stderr.count(": install: unchanged") == 3
    assert second.stderr.count(": enrol: unchanged") == 3
    assert second.stderr.count(": data: unchanged") == 3
    assert [s in second.stderr for s in ("board-1: start: was running", "board-2: start: started")] == [True] * 2  # fmt: skip
    result = json.loads(second.stdout)
    alone = call("run", "fedreg", *SETTINGS, "-c", "engine.name=serial", "--json")
    assert result["model_sha256"] == json.loads(alone.stdout)["model_sha256"]
    check_what_boards_hold(boards)
    check_what_is_reported(Path("runs/three"))


def check_what_boards_hold(boards: SshBoards) -> None:
    """Each board has its own client's share and key, which nobody else can read."""
    for i, board in enumerate(boards.boards):
        root = board.home / "heterophony"
        assert [p.name for p in (root / "shares").iterdir()] == [f"{i}.npz"]
        assert (root / "enrolment.toml").stat().st_mode & 0o777 == 0o600
    assert not [p for p in Path("broker").rglob("*") if p.name == "enrolment.toml"]


def check_what_is_reported(folder: Path) -> None:
    """Events, page and CSV have each board and round; logs are here, memories are not."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    rounds = [e for e in events if e["event"] == "round"]
    for event in rounds:
        assert list(event["boards"]) == ["board-1", "board-2", "board-3"]
        for i, board in enumerate(event["boards"].values()):
            trained = [span for span in board["spans"] if span[0] == "train"]
            assert [span[1] for span in trained] == [str(i)]
            assert board["train"] > 0 < board["bytes_up"]
    assert {"cpu_share", "peak_bytes", "clients_possible"} <= set(rounds[1]["boards"]["board-3"])
    lines = (folder / "boards.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 3
    assert (
        '"board_rounds":[{"run":"FedReG","rounds":[{"t":0,' in (folder / "report.html").read_text()
    )
    assert sorted(p.name for p in (folder / "boards/board-1").iterdir()) == [
        "board.json",
        "board.log",
    ]
    assert "the run has finished" in (folder / "boards/board-1/board.log").read_text()


def test_a_wrong_key_or_host_key_is_one_line_that_names_the_board(boards, tmp_path):
    make_key(tmp_path / "other")
    text = boards.config.read_text().split("Host board-2")
    boards.config.write_text(
        text[0].replace(f"{tmp_path / 'key'}\n", f"{tmp_path / 'other'}\n")
        + "Host board-2"
        + text[1]
    )
    known = (tmp_path / "known_hosts").read_text().splitlines()
    other = (tmp_path / "other.pub").read_text()
    known[1] = f"[127.0.0.1]:{boards.boards[1].port} {other}"
    (tmp_path / "known_hosts").write_text("\n".join(known) + "\n")
    boards.boards[2].kill()
    lines = sorted(call("fleet", "hosts.toml", "check").stderr.splitlines())
    assert len(lines) == 3
    assert lines[0].startswith(
        "error: board-1: ssh is refused: the board does not accept your key ("
    )
    assert lines[0].endswith("; try by hand: ssh board-1")
    assert lines[1].startswith(
        "error: board-2: ssh does not know the board's host key, or it has changed ("
    )
    assert lines[2].startswith("error: board-3: no SSH server answers (")
    stopped = call("fleet", "hosts.toml", "run", *SETTINGS)
    assert stopped.exit_code == 1
    assert stopped.stderr.splitlines()[-1] == (
        "error: 3 of 3 boards failed; repair them and run the same command again to continue, or add"
        " --late"
    )
