"""``leaderboard``: show a folder of entries, add finished runs to it, and check entries by their hash."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import terminal
from .options import EngineOption, JsonOption, TrustOption, check_only_engine_settings

board_app = typer.Typer(no_args_is_help=True, help="A table of results that anyone can check.")
BoardArgument = Annotated[
    Path,
    typer.Argument(
        metavar="BOARD", help="A folder with a folder for each entry, or a .zip of one."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.add_typer(board_app, name="leaderboard")


@board_app.command()
def show(
    board: BoardArgument,
    page: Annotated[
        Path | None, typer.Option("-o", help="Write a self-contained HTML page.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the entries of each setting with intervals and ranks."""
    from ..papers.leaderboard import MEASURES, build_board, build_ranking_table, read_board

    rankings = build_board(read_board(board))
    if page is not None:
        from ..report.page.html import write_leaderboard_page

        write_leaderboard_page(rankings, page)
    if json:
        settings = [ranking.to_dict() for ranking in rankings]
        terminal.print_json({"measures": list(MEASURES), "settings": settings})
        return
    for ranking in rankings:
        terminal.print_table(build_ranking_table(ranking))
    if page is not None:
        terminal.print_note(f"page: {page}")


@board_app.command()
def add(
    board: BoardArgument,
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders of them.")
    ],
    code: Annotated[
        Path | None, typer.Option(help="The file of an algorithm that is not built in.")
    ] = None,
    remark: Annotated[str, typer.Option(help="A sentence beside the entry.")] = "",
) -> None:
    """Add finished runs: runs that differ only in their seed become one entry."""
    from ..papers.leaderboard import add_entries
    from ..results.runs import load_runs

    loaded = load_runs(runs, terminal.print_note)
    for folder, seeds in add_entries(board, loaded, code, remark).items():
        terminal.print_note(f"{folder}: {seeds} seed{'s' * (seeds > 1)}")


@board_app.command()
def check(
    board: BoardArgument,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="ENTRY…", help="Default: all entries.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed to repeat; default: the first of each entry.")
    ] = None,
    trust: TrustOption = False,
    pairs: EngineOption = None,
    json: JsonOption = False,
) -> None:
    """Repeat one seed of each entry, and compare its hash. Exit code 1 if one differs."""
    from ..papers.leaderboard import build_check_table, check_seed, choose_entries, open_board

    check_only_engine_settings(pairs)
    with open_board(board) as entries:
        chosen = choose_entries(entries, names or [], seed, trust, str(board))
        with terminal.show_interruptible_progress("nothing is kept of a check", []) as progress:
            found = [check_seed(entry, one, progress, pairs or []) for entry, one in chosen]
    if json:
        terminal.print_json([{**vars(c), "equal": c.equal} for c in found])
    else:
        terminal.print_table(build_check_table(found))
    if not all(c.equal for c in found):
        raise SystemExit(1)
