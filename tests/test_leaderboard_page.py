"""The committed leaderboard: its entries can be read and compared, and its pages are written from them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.config.reading import resolve_config

ROOT = Path(__file__).parents[1]
BOARD = ROOT / "results" / "leaderboard"
REFERENCE, IMAGES = ROOT / "docs" / "reference", ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        from board_parts import figure, numbers, page, plan, runs

        yield SimpleNamespace(figure=figure, numbers=numbers, page=page, plan=plan, runs=runs)


@pytest.fixture(scope="module")
def board(parts):
    return parts.numbers.read_numbers(BOARD)


def test_the_pages_and_figures_are_written_from_the_entries(parts, board):
    pages = parts.page.write_pages(board)
    assert {path.stem for path in REFERENCE.glob("comparison*.md")} == set(pages)
    for name, text in pages.items():
        found = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
        assert found == text, "run scripts/leaderboard --page"
    figures = {
        f"comparison-{name}": parts.figure.draw_setting(t) for name, t in board.tables.items()
    }
    for name, text in {"ranks": parts.figure.draw_ranks(board), **figures}.items():
        found = (IMAGES / f"{name}.svg").read_text(encoding="utf-8")
        assert found == text, "run scripts/leaderboard --page"


def test_every_entry_has_all_seeds_with_the_data_of_the_others(parts, board):
    for table in board.tables.values():
        entries = list(table.entries.values())
        for seed in parts.plan.SEEDS:
            assert len({entry.seeds[seed].data_sha256 for entry in entries}) == 1
        assert all(table.values(name, parts.numbers.P) for name in table.names)
        assert set(table.names) <= set(table.setting.algorithms) <= set(ALGORITHM_CLASSES)


def test_entries_have_the_settings_that_the_search_chose(parts, board):
    for table in board.tables.values():
        for name, entry in table.entries.items():
            trials = table.trials[name]
            used = {k: parts.numbers.get_setting(entry.config, k) for k in trials[0][0]}
            scored = [settings for settings, _, score in trials if not isinstance(score, str)]
            assert used == scored[0] or (entry.remark and used in scored), entry.folder
            assert "validation_fraction" not in entry.config["data"]


def test_every_algorithm_has_as_many_trials_as_the_others_and_the_same_rates(parts):
    for name in parts.plan.ALGORITHMS:
        found = parts.plan.list_combinations(name, 60)
        assert len(found) == len({str(c) for c in found}) == parts.plan.TRIALS
        if name not in parts.plan.OWN_RATES:
            rates = Counter(c["training.lr"] for c in found)
            momenta = Counter(c["training.momentum"] for c in found)
            assert rates == dict.fromkeys(parts.plan.RATES, 2)
            assert momenta == dict.fromkeys(parts.plan.MOMENTA, parts.plan.TRIALS // 2)


def test_pairs_of_an_own_setting_and_another_are_tried_equally_often(parts):
    found = parts.plan.list_combinations("ditto", 60)
    pairs = Counter((c["algorithm.lam"], c["training.momentum"]) for c in found)
    assert set(pairs.values()) == {parts.plan.TRIALS // 4}


def test_no_setting_has_an_untrained_fedavg(parts, board):
    for table in board.tables.values():
        fedavg, pooled = (table.mean(n, parts.numbers.G) for n in ("fedavg", "centralized"))
        assert fedavg >= parts.page.LEAST_SHARE * pooled, table.setting.name


def test_a_group_has_all_that_are_not_significantly_below_its_first(board):
    for table in board.tables.values():
        numbers = [table.groups[name] for name in table.names]
        assert numbers[0] == 1
        assert set(numbers) == set(range(1, max(numbers) + 1))
        for name in table.names:
            first = next(n for n in table.names if table.groups[n] == table.groups[name])
            compared = table.compare(name, first)
            assert compared is None or compared.interval.high >= 0


def test_an_entry_can_be_run_as_it_is(board):
    for table in board.tables.values():
        resolve_config(dict(table.entries["fedavg"].config))


def test_a_search_continues_with_the_trials_that_it_lacks(parts, tmp_path, monkeypatch):
    runs, plan = parts.runs, parts.plan
    tried = list[tuple[float, float]]()

    def run_trial(setting, name, share, settings, folder):
        folder.mkdir(parents=True, exist_ok=True)
        tried.append((share, settings["training.lr"]))
        rounds = round(share * setting.rounds)
        return runs.Trial(settings, rounds, None if settings["training.lr"] == 0.3 else share)

    rates = [0.1, 0.2, 0.3]
    monkeypatch.setattr(runs, "run_trial", run_trial)
    monkeypatch.setattr(
        runs, "list_combinations", lambda name, rounds: [{"training.lr": lr} for lr in rates]
    )
    setting = plan.SETTINGS[0]
    first = runs.tune(setting, "fedavg", tmp_path)
    assert [share for share, _ in tried] == [0.25, 0.25, 0.25, 0.75, 0.75]
    assert [t.score for t in first] == [0.75, 0.75, 0.25, 0.25, None]
    assert runs.tune(setting, "fedavg", tmp_path) == first
    rates.append(0.4)
    runs.tune(setting, "fedavg", tmp_path)
    assert tried[5:] == [(0.25, 0.4), (0.75, 0.4)]
    assert [c["training.lr"] for c in runs.choose_order(first)] == [0.1, 0.2]


def test_ranks_are_over_data_sets(parts, board):
    names, found = board.rank(parts.numbers.P)
    assert found.blocks == len({table.setting.block for table in board.tables.values()})
    assert len(names) == len(found.average_ranks)
