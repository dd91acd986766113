"""Leaderboards: entries from runs, a table with intervals and ranks, and checks by hash."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from helpers.commands import call, refused
from heterophony.papers.leaderboard import build_ranking_table, build_rankings, read_leaderboard
from heterophony.results.table import render_markdown

SMALL = ("rounds=2", "data.clients=3", "training.steps=2", "model.name=mlp", "engine.name=serial")
OWN = '''"""FedAvg by another name."""
from dataclasses import dataclass
import heterophony as hp

@dataclass(frozen=True)
class Mine(hp.Algorithm):
    """FedAvg."""
'''


def words(*settings: str) -> list[str]:
    return [word for s in settings for word in ("-c", s)]


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    folder = tmp_path_factory.mktemp("board")
    runs = folder / "runs"
    call("compare", "fedavg", "fedper", "local", *words(*SMALL), "--seeds", "0-2", "--out", runs)
    assert call("leaderboard", "add", folder / "board", runs).exit_code == 0
    return folder / "board"


def test_an_entry_is_a_configuration_with_a_hash_per_seed(board):
    names = sorted(p.name for p in board.iterdir())
    assert names == [f"digits-dirichlet-0.1-3-{name}" for name in ("fedavg", "fedper", "local")]
    entry = json.loads((board / names[0] / "entry.json").read_text())
    assert list(entry["seeds"]) == ["0", "1", "2"]
    for seed, result in entry["seeds"].items():
        run = board.parent / "runs" / f"fedavg-{seed}" / "result.json"
        assert result["model_sha256"] == json.loads(run.read_text())["model_sha256"]


def test_an_entry_has_the_clients_and_curves_that_shares_below_local_come_from(board):
    entries = {entry.algorithm_name: entry for entry in read_leaderboard(board)}
    seed, local = (entries[name].seeds[0] for name in ("fedper", "local"))
    assert seed.clients.keys() == local.clients.keys() == {"0", "1", "2"}
    assert [t for t, _ in seed.curves["P"]] == [0, 1, 2]
    (ranking,) = build_rankings(list(entries.values()))
    means = {row.entry.algorithm_name: row.means for row in ranking.rows}
    below = [
        sum(mine.clients[c] < theirs.clients[c] for c in mine.clients) / 3
        for mine, theirs in zip(
            entries["fedper"].seeds.values(), entries["local"].seeds.values(), strict=True
        )
    ]
    assert means["fedper"]["below_local"] == pytest.approx(sum(below) / 3)
    assert "below_local" not in means["local"]


def test_the_table_has_means_intervals_and_ranks_within_each_setting(board, tmp_path):
    page = tmp_path / "board.html"
    (setting,) = json.loads(call("leaderboard", "show", board, "--json").stdout)["settings"]
    assert setting["setting"] == "digits, dirichlet 0.1, 3 clients, mlp"
    assert setting["common_seeds"] == [0, 1, 2]
    by_name = {e["algorithm"]: e for e in setting["entries"]}
    assert [e["means"]["P.last10"] for e in setting["entries"]] == sorted(
        (e["means"]["P.last10"] for e in setting["entries"]), reverse=True
    )
    assert sum(e["ranks"]["P.last10"] for e in setting["entries"]) == pytest.approx(6)
    low, high = by_name["FedAvg"]["intervals"]["P.last10"]
    assert low < by_name["FedAvg"]["means"]["P.last10"] < high
    assert by_name["Local"]["ranks"]["G.last10"] is None
    shown = call("leaderboard", "show", board, "-o", page)
    assert shown.exit_code == 0
    assert "a rank needs 5 seeds" in shown.stderr
    assert "http" not in page.read_text().split('id="data"')[0].replace("http-equiv", "")


def test_intervals_end_at_what_is_possible_and_their_halves_do_not(board, tmp_path):
    shutil.copytree(board, tmp_path / "board")
    for path in (tmp_path / "board").glob("*/entry.json"):
        entry = json.loads(path.read_text())
        for i, result in enumerate(entry["seeds"].values()):
            result["measures"] |= {"P.last10": float(i == 0), "seconds": float(i == 0)}
        path.write_text(json.dumps(entry))
    (ranking,) = build_rankings(read_leaderboard(tmp_path / "board"))
    for row in ranking.rows:
        low, high = row.intervals["P.last10"]  # of 1, 0, 0
        assert (low, high) == pytest.approx((1 / 3 - 1.4342, 1 / 3 + 1.4342), abs=1e-4)
        assert row.to_dict()["intervals"]["P.last10"] == (0.0, 1.0)
        assert row.to_dict()["intervals"]["seconds"] == (0.0, high)
    assert "33.33 ± 143.42" in render_markdown(build_ranking_table(ranking))


def test_a_column_that_no_entry_has_is_left_out(board, tmp_path):
    shutil.copytree(board, tmp_path / "board")
    assert call("leaderboard", "show", tmp_path / "board").stdout.split("seeds")[0].split()[
        -2:
    ] == ["×", "s"]
    for path in (tmp_path / "board").glob("*/entry.json"):
        entry = json.loads(path.read_text())
        for result in entry["seeds"].values():
            del result["measures"]["seconds"]
        path.write_text(json.dumps(entry))
    assert (
        call("leaderboard", "show", tmp_path / "board").stdout.split("seeds")[0].split()[-1] == "×"
    )


def test_check_repeats_a_seed_and_notices_another_hash(board):
    found = json.loads(call("leaderboard", "check", board, "--seed", "1", "--json").stdout)
    assert [c["equal"] for c in found] == [True] * 3
    path = board / "digits-dirichlet-0.1-3-fedper" / "entry.json"
    before = path.read_text()
    entry = json.loads(before)
    entry["seeds"]["0"]["model_sha256"] = "0" * 64
    path.write_text(json.dumps(entry))
    try:
        done = call("leaderboard", "check", board, "digits-dirichlet-0.1-3-fedper")
        assert done.exit_code == 1
        assert "differs" in done.stdout
    finally:
        path.write_text(before)


def test_an_entry_with_code_of_its_own_runs_only_if_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("mine_for_the_board.py").write_text(OWN)
    name = "mine_for_the_board:Mine"
    call("run", name, *words(*SMALL), "--out", "run")
    assert "--code" in refused(3, "leaderboard", "add", "b", "run")
    assert call("leaderboard", "add", "b", "run", "--code", "mine_for_the_board.py").exit_code == 0
    Path("mine_for_the_board.py").unlink()
    assert "--trust" in refused(3, "leaderboard", "check", "b")
    for engine in ((), words("engine.name=pool", "engine.workers=2")):  # workers get its text
        done = call("leaderboard", "check", "b", "--trust", *engine, "--json")
        assert (done.exit_code, [c["equal"] for c in json.loads(done.stdout)]) == (0, [True])


@pytest.mark.parametrize("room", [0, 1, 3, 8, 16])  # of 17 calls of fsync for three entries
def test_a_full_disk_adds_nothing_and_the_same_command_works_later(
    board, tmp_path, monkeypatch, room
):
    calls = iter(range(100))

    def sync(fd: int) -> None:
        if next(calls) >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    other, runs = tmp_path / "other", board.parent / "runs"
    with monkeypatch.context() as patch:
        patch.setattr("heterophony.core.files.os.fsync", sync)
        said = refused(74, "leaderboard", "add", other, runs)
    assert said.startswith(f"cannot write {other}/digits-dirichlet-0.1-3-")
    assert said.endswith(
        "No space left on device; nothing was added (make room or fix the permissions, then try"
        " again)"
    )
    assert not any(other.glob("*"))
    assert call("leaderboard", "add", other, runs).exit_code == 0


def test_what_a_killed_add_left_is_no_entry_and_is_replaced(board, tmp_path):
    other, name = tmp_path / "other", "digits-dirichlet-0.1-3-fedavg"
    shutil.copytree(board / name, other / f".{name}.new")
    assert "is not a leaderboard" in refused(3, "leaderboard", "show", other)
    assert call("leaderboard", "add", other, board.parent / "runs" / "fedavg-0").exit_code == 0
    assert [p.name for p in other.iterdir()] == [name]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "digits"\n', "", "does not name an algorithm, data and clients"),
        ('name = "fedavg"\n', "", "does not name an algorithm, data and clients"),
        ("[data]\n", "[other]\n", "does not name an algorithm, data and clients"),
        ("[data]\n", f"[data]\n{'.'.join('a' * 5000)} = 1\n", "sections are nested too deep"),
    ],
)
def test_a_run_without_data_or_with_5000_dots_is_refused_in_one_line(
    board, tmp_path, old, new, said
):
    run = shutil.copytree(board.parent / "runs" / "fedavg-0", tmp_path / "run")
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))
    line = refused(3, "leaderboard", "add", tmp_path / "b", run)
    assert line.startswith(f"{run}/config.toml is damaged: ")
    assert said in line


def test_what_is_no_board_is_one_line(board, tmp_path):
    assert "is not a leaderboard" in refused(3, "leaderboard", "show", tmp_path)
    assert "has seeds 0, 1, 2" in refused(3, "leaderboard", "check", board, "--seed", "7")
    assert "did you mean" in refused(
        3, "leaderboard", "check", board, "digits-dirichlet-0.1-3-fedav"
    )
    assert "already exists" in call("leaderboard", "add", board, board.parent / "runs").stderr
    broken = tmp_path / "b" / "one"
    broken.mkdir(parents=True)
    (broken / "entry.json").write_text('{"seeds": {"0": {}}}')
    (broken / "config.toml").write_text("seed = 0")
    assert "is damaged" in refused(3, "leaderboard", "show", tmp_path / "b")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e308", "1" + "0" * 400])
def test_an_entry_with_an_absurd_measure_is_damaged_in_one_line(board, tmp_path, value):
    shutil.copytree(board, tmp_path / "board")
    path = tmp_path / "board" / "digits-dirichlet-0.1-3-fedper" / "entry.json"
    entry = json.loads(path.read_text())
    entry["seeds"]["0"]["measures"]["P.last10"] = "HERE"
    path.write_text(json.dumps(entry).replace('"HERE"', value))
    done = call("leaderboard", "show", tmp_path / "board")
    assert "is damaged" in done.stderr
    assert done.exit_code == 3
