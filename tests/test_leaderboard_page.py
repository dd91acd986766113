"""The committed leaderboard: its entries can be read and compared, and its page is written from them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.config.reading import resolve_config

ROOT = Path(__file__).parents[1]
BOARD = ROOT / "results" / "leaderboard"


@pytest.fixture(scope="module")
def parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        from board_parts import figure, numbers, page, plan

        yield SimpleNamespace(figure=figure, numbers=numbers, page=page, plan=plan)


@pytest.fixture(scope="module")
def board(parts):
    return parts.numbers.read_numbers(BOARD)


def name(row) -> str:
    return row.entry.config["algorithm"]["name"]


def test_the_page_and_its_figure_are_written_from_the_entries(parts, board):
    page = (ROOT / "docs" / "reference" / "comparison.md").read_text(encoding="utf-8")
    figure = (ROOT / "docs" / "images" / "ranks.svg").read_text(encoding="utf-8")
    assert page == parts.page.write_page(board), "run scripts/leaderboard --page"
    assert figure == parts.figure.draw_ranks(board), "run scripts/leaderboard --page"


def test_the_page_says_how_cfl_splits_and_that_apples_momentum_is_searched(parts, board):
    page = parts.page.write_page(board)
    assert (
        "with half\nof the clients in a round (digits) or a quarter (Fashion-MNIST) most of these are of earlier rounds"
        in page
    )
    assert "for APPLE, three rates with and without momentum" in page
    for data, searches in board.tuning.items():
        momenta = {settings["training.momentum"] for settings, _, _ in searches["apple"]["trials"]}
        assert momenta == {0.0, 0.9}, data


def test_every_entry_has_the_same_seeds_and_data_as_the_others_of_its_setting(parts, board):
    known = [(data.name, alpha) for data in parts.plan.DATA for alpha in parts.plan.ALPHAS]
    assert set(board.tables) <= set(known)
    for table in board.tables.values():
        assert table.common_seeds == list(parts.plan.SEEDS)
        assert {name(row) for row in table.rows} <= set(ALGORITHM_CLASSES)
        assert all(row.means["P.last10"] > 0.1 for row in table.rows)  # chance


def test_entries_have_the_settings_that_the_search_chose(parts, board):
    for (data, _), table in board.tables.items():
        tuned = board.tuning[data]
        for row in table.rows:
            sections, found = row.entry.config, tuned[name(row)]
            used = {key: parts.page.get_setting(sections, key) for key in found["chosen"]}
            finished = [settings for settings, state, _ in found["trials"] if state == "finished"]
            assert finished[0] == found["chosen"]
            assert used == found["chosen"] or (row.entry.remark and used in finished[1:]), row.entry
            assert "validation_fraction" not in sections["data"]
            assert len(found["trials"]) == parts.plan.TRIALS


def test_every_algorithm_is_searched_once_and_with_as_many_trials_as_the_others(parts):
    for data in parts.plan.DATA:
        searches = parts.plan.list_searches(data).values()
        assert sorted(n for names, _ in searches for n in names) == sorted(ALGORITHM_CLASSES)


def test_an_entry_can_be_run_as_it_is(board):
    for table in board.tables.values():
        resolve_config(dict(table.rows[0].entry.config))


def test_the_curves_are_those_of_the_board(parts, board):
    curves = json.loads((ROOT / "docs" / "reference" / "curves.json").read_text())
    of_digits = {name(row) for row in board.tables["digits", "0.1"].rows}
    assert set(curves) == of_digits
    assert all(len(found["P"]) == len(parts.plan.SEEDS) for found in curves.values())


def test_the_page_says_which_settings_can_tell_methods_apart(parts, board):
    told = parts.page.write_rule(board)
    assert "1 of these 4 does: Digits 0.5." in told
    assert "| Fashion-MNIST 0.1 | 15.5 | 84.7 | 81.8 | 0.18 | +2.9 | no |" in told


def test_blocks_of_ranks_are_settings_not_seeds(parts, board):
    names, found = parts.numbers.rank_over_settings(board, parts.numbers.P)
    assert found.blocks == len(board.tables) == 4
    assert len(names) == len(found.average_ranks)
