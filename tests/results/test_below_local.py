"""The share of clients that would be better off alone, given a run of Local with the same seed and data."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.made_runs import played, stored
from helpers.support import played as short
from heterophony.core.files import read_json
from heterophony.results.comparison import compare_runs
from heterophony.results.comparison_tables import build_comparison_table, build_overview_tables
from heterophony.results.runs import load_runs


def make_run(folder: Path, algorithm: str, seed: int, correct: list[int]) -> None:
    events = played({"G": [[0, 0], correct], "P": [[0, 0], correct]}, algorithm, seed)
    stored(folder / f"{algorithm}-{seed}", events)


def test_clients_are_compared_with_themselves_in_a_run_of_local(tmp_path):
    for seed, (own, alone) in enumerate([([3, 6], [4, 5]), ([4, 6], [4, 6]), ([1, 1], [4, 6])]):
        make_run(tmp_path, "fedavg", seed, own)
        make_run(tmp_path, "local", seed, alone)
    rows = {row.algorithm: row for row in compare_runs(load_runs([tmp_path]))}
    spread = rows["fedavg"].spreads["below_local"]
    assert spread.mean == pytest.approx((0.5 + 0.0 + 1.0) / 3)
    assert "below_local" not in rows["local"].spreads
    assert rows["fedavg"].to_dict()["below_local"] == spread.mean
    table = build_comparison_table(list(rows.values()))
    assert "below_local" in [column.name for column in table.columns]


def test_without_a_run_of_local_on_the_same_seed_there_is_no_such_number(tmp_path):
    make_run(tmp_path, "fedavg", 0, [3, 6])
    make_run(tmp_path, "local", 1, [4, 5])
    for row in compare_runs(load_runs([tmp_path])):
        assert "below_local" not in row.spreads
    (table,) = build_overview_tables(load_runs([tmp_path]))
    assert "below_local" not in [column.name for column in table.columns]


def test_runs_with_different_nets_are_one_series_and_have_a_table_by_net(tmp_path):
    for seed in (0, 1):
        correct = [4 - seed, 3 + seed]
        events = played({"G": None, "P": [[0, 0], correct]}, "local", seed)
        nets = ["mlp", "convnet"] if seed else ["convnet", "mlp"]
        events[0]["nets"] = nets
        groups = "".join(
            f'[[model.group]]\nname = "{name}"\nclients = ["{"ab"[nets.index(name)]}"]\n'
            for name in ("mlp", "convnet")
        )
        stored(tmp_path / str(seed), events, f"seed = {seed}\n{groups}")
    main, by_net = build_overview_tables(load_runs([tmp_path]))
    assert len(main.rows) == 1
    mlp = [3 / 6, 3 / 4]  # of client b with seed 0, of client a with seed 1
    cells = {column.name: cell for column, cell in zip(by_net.columns, by_net.rows[0], strict=True)}
    assert cells["mlp"].value == pytest.approx(sum(mlp) / 2)


@pytest.mark.parametrize("first", ["local", "fedper"])
def test_result_json_has_it_whichever_run_ends_first(tmp_path, first):
    later = {"local": "fedper", "fedper": "local"}[first]
    for name in (first, later, "fedavg"):
        short(name, out=tmp_path / name)
    short("fedper", seed=1, out=tmp_path / "another seed")
    compared = compare_runs(load_runs([tmp_path / n for n in (first, later, "fedavg")]))
    rows = {row.algorithm: row for row in compared}
    for name in ("fedper", "fedavg"):
        found = read_json(tmp_path / name / "result.json")["below_local"]
        assert found == rows[name].spreads["below_local"].mean
    for name in ("local", "another seed"):
        assert "below_local" not in read_json(tmp_path / name / "result.json")


def test_a_damaged_result_beside_changes_nothing(tmp_path):
    short("local", out=tmp_path / "local")
    for name, text in {"a": "{", "b": '{\n  "algorithm": "local"\n', "c": "{}"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(text)
    result = short("fedper", out=tmp_path / "fedper")
    assert "below_local" in read_json(tmp_path / "fedper" / "result.json")
    short("local", seed=1, out=tmp_path / "again")
    assert (tmp_path / "a" / "result.json").read_text() == "{"
    assert result.summary.algorithm == "fedper"
