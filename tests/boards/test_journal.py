"""The journal of a run on boards: bounded, printable, and an altered or missing line is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heterophony.boards import journal
from heterophony.boards.journal import (
    JOURNAL_FILE,
    MAX_LINES_OF_BOARD,
    Journal,
    find_altered_lines,
    parse_journal_line,
    read_journal,
)
from heterophony.cli import app

HOSTILE = "\x1b[2J\x07\u202egnp\n2026 0000000000000000 joined evil {}"


def kinds(folder: Path) -> list[str]:
    return [parse_journal_line(line).kind for line in read_journal(folder)]


def written(folder: Path) -> list[str]:
    """A journal of two starts of a server; its lines."""
    with Journal(folder, [].append) as first:
        first.record("started", run="r")
        first.record("joined", "one", clients=["0", "1"])
    with Journal(folder, [].append) as second:
        second.record("resumed", run="r")
        second.record("refused", "two", why=HOSTILE)
    return read_journal(folder)


def test_a_second_start_continues_the_journal(tmp_path):
    lines = written(tmp_path)
    assert kinds(tmp_path) == ["started", "joined", "ended", "resumed", "refused", "ended"]
    assert list(find_altered_lines(lines)) == []
    fact = parse_journal_line(lines[1])
    assert (fact.board, fact.details, fact.time[-1]) == ("one", {"clients": ["0", "1"]}, "Z")


def test_every_altered_removed_or_moved_line_is_noticed(tmp_path):
    lines = written(tmp_path)
    for i in range(len(lines)):
        altered = [*lines[:i], lines[i].replace(" {", " { ", 1), *lines[i + 1 :]]
        assert [n for n, _ in find_altered_lines(altered)] == [i + 1]
        assert next(n for n, _ in find_altered_lines([*lines[:i], "?", *lines[i + 1 :]])) == i + 1
        if i + 1 < len(lines):  # the end can be cut off unnoticed
            assert [n for n, _ in find_altered_lines([*lines[:i], *lines[i + 1 :]])] == [i + 1]
            assert list(find_altered_lines([*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]))


def test_a_line_that_was_being_written_when_the_server_died_is_removed(tmp_path):
    lines = written(tmp_path)
    with open(tmp_path / JOURNAL_FILE, "ab") as file:
        file.write(b"2026-01-01T00:00:00Z 0123")
    with Journal(tmp_path, [].append):
        assert read_journal(tmp_path) == lines
    assert list(find_altered_lines(read_journal(tmp_path))) == []


def test_whatever_a_board_says_stays_on_one_line_of_plain_ascii(tmp_path):
    lines = written(tmp_path)
    content = (tmp_path / JOURNAL_FILE).read_text()
    assert content.isascii()
    assert content.replace("\n", "").isprintable()
    assert parse_journal_line(lines[4]).details == {"why": HOSTILE}
    with Journal(tmp_path, [].append) as more:
        more.record("refused", "two", why="y" * 100_000)
    assert max(map(len, read_journal(tmp_path))) <= journal.MAX_LINE_BYTES
    shown = CliRunner().invoke(app, ["journal", str(tmp_path)]).stdout
    assert shown.replace("\n", "").isprintable()
    assert len(shown.splitlines()) == 8


def test_equal_refusals_are_written_once_and_a_board_has_a_quota(tmp_path):
    with Journal(tmp_path, [].append) as made:
        for _ in range(5000):
            made.record("refused", "one", why="damaged")
        for n in range(5000):
            made.record("refused", "two", why=f"reason {n}")
            made.record("left", "two")
        made.record("refused", "three", why="damaged")
    facts = [parse_journal_line(line) for line in read_journal(tmp_path)]
    assert [f.board for f in facts].count("one") == 2
    assert [f.board for f in facts].count("two") == MAX_LINES_OF_BOARD + 1
    counted = {f.board: f.details["more"] for f in facts if f.kind == "counted"}
    assert counted == {"one": 4999, "two": 10_000 - MAX_LINES_OF_BOARD}
    assert [f.board for f in facts].count("three") == 1


def test_a_full_journal_says_so_in_its_last_line_and_stays_full(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MAX_FILE_BYTES", 3 * journal.MAX_LINE_BYTES)
    said: list[str] = []
    for _ in range(2):
        with Journal(tmp_path, said.append) as made:
            for n in range(100):
                made.record("sent", "one", bytes=n, sha256="0" * 16)
    assert kinds(tmp_path)[-1] == "full"
    assert kinds(tmp_path).count("full") == len(said) == 1
    assert (tmp_path / JOURNAL_FILE).stat().st_size <= journal.MAX_FILE_BYTES
    assert list(find_altered_lines(read_journal(tmp_path))) == []


@pytest.mark.parametrize("obstacle", ["link", "folder"])
def test_a_journal_that_cannot_be_written_is_told_and_ends_no_run(tmp_path, obstacle):
    (tmp_path / "other").write_text("mine")
    if obstacle == "link":
        (tmp_path / JOURNAL_FILE).symlink_to(tmp_path / "other")
    else:
        (tmp_path / JOURNAL_FILE).mkdir()
    said: list[str] = []
    with Journal(tmp_path, said.append) as made:
        made.record("started")
    assert [s.split(":")[0] for s in said] == ["the journal can no longer be written"]
    assert (tmp_path / "other").read_text() == "mine"


def test_the_command_prints_selects_and_checks(tmp_path):
    lines = written(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, ["journal", str(tmp_path), *words])
        return done.exit_code, done.stdout, done.stderr

    code, out, _ = call("--board", "one")
    assert (code, len(out.splitlines())) == (0, 1)
    assert out.split()[1:3] == ["joined", "one"]
    assert out.rstrip().endswith("clients 0, 1")
    found = json.loads(call("--kind", "refused", "--json")[1])
    assert [(f["board"], f["details"]["why"]) for f in found] == [("two", HOSTILE)]
    assert call("--check")[0] == 0
    (tmp_path / JOURNAL_FILE).write_text("\n".join(lines[:1] + lines[2:]) + "\n")
    code, out, told = call("--check")
    assert (code, out) == (3, "")
    assert "line 2: it was altered, or lines before it are missing" in told
    (tmp_path / JOURNAL_FILE).unlink()
    code, _, told = call()
    assert code == 3
    assert "does not exist; only the server of a run on boards writes a journal" in told
