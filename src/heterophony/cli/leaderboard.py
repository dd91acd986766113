"""``leaderboard``: show a folder of entries, add finished runs to it, and check entries by their hash."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError, FolderError
from . import terminal
from .options import EngineOption, JsonOption, TrustOption, check_only_engine_settings

if TYPE_CHECKING:
    from ..papers.leaderboard import BoardRow, BoardTable, CheckedSeed, Entry
    from ..results.runs import Run


board_app = typer.Typer(no_args_is_help=True, help="A table of results that anyone can check.")
BoardArgument = Annotated[
    Path,
    typer.Argument(
        metavar="BOARD", help="A folder with a folder for each entry, or a .zip of one."
    ),
]

PLAIN_COLUMNS = {"MB_up": "MB up", "work": "work ×", "seconds": "s"}  # shown if some entry has them


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
    from ..papers.leaderboard import build_board, read_board

    tables = build_board(read_board(board))
    if page is not None:
        from ..report.page.html import write_leaderboard_page

        write_leaderboard_page(tables, page)
    if json:
        from ..report.page.html import build_leaderboard_data

        terminal.print_json(build_leaderboard_data(tables))
        return
    for table in tables:
        show_table(table)
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
    from ..papers.leaderboard import write_entry
    from ..results.runs import group_by_series, load_runs

    loaded = load_runs(runs, terminal.print_note)
    for run in loaded:
        if run.summary is None:
            raise FolderError(f"{run.folder} has not finished; resume it first")
    for group in group_by_series(loaded).values():
        config = prepare_config(group[0], code)
        name = name_entry(group[0])
        write_entry(board / name, config, {r.seed: describe_seed(r) for r in group}, code, remark)
        terminal.print_note(f"{board / name}: {len(group)} seed{'s' * (len(group) > 1)}")


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
    from ..papers.leaderboard import open_board

    check_only_engine_settings(pairs)
    with open_board(board) as every:
        entries = {entry.folder.name: entry for entry in every}
        chosen = [find_entry(entries, name, board) for name in names or entries]
        found = check_entries(chosen, seed, trust, pairs or [])
    if json:
        terminal.print_json([{**vars(c), "equal": c.equal} for c in found])
    else:
        lines = [
            [c.entry, str(c.seed), "equal" if c.equal else "differs", c.claimed[:12], c.found[:12]]
            for c in found
        ]
        columns = ["entry", "seed", "hash", "claimed", "found"]
        terminal.print_table("entries, each with one seed repeated", columns, lines, text=5)
    if not all(c.equal for c in found):
        terminal.print_note(
            "a hash depends on the kind of processor and on library versions: constraints.txt lists"
            " those of the board"
        )
        raise SystemExit(1)


# Entries ----------------------------------------------------------------------------------------


def check_entries(
    chosen: Sequence[Entry], seed: int | None, trust: bool, pairs: Sequence[str]
) -> list[CheckedSeed]:
    """Repeat one seed of each entry."""
    from ..papers.leaderboard import ALGORITHM_FILE, check_seed

    for entry in chosen:
        if entry.brings_code and not trust:
            raise ConfigError(
                f"{entry.folder} brings code of its own, {entry.folder / ALGORITHM_FILE}; read it, then"
                " add --trust"
            )
    found = []
    with terminal.show_interruptible_progress("nothing is kept of a check", []) as progress:
        for entry in chosen:
            one = choose_seed(entry, seed)
            claimed = entry.seeds[one].model_sha256
            code = entry.folder / ALGORITHM_FILE if entry.brings_code else None
            name, folder = entry.folder.name, entry.folder
            found.append(check_seed(name, folder, one, claimed, progress, pairs, code=code))
    return found


def name_entry(run: Run) -> str:
    """Name the folder of an entry: data, heterogeneity and algorithm."""
    data = run.config["data"]
    rule = data.get("partition", {})
    words = [data["name"], rule.get("kind", ""), rule.get("alpha", ""), data["clients"], run.series]
    text = "-".join(str(word) for word in words if word != "").lower()
    return re.sub(r"[^\w.+-]+", "-", text).strip("-")


def prepare_config(run: Run, code: Path | None) -> str:
    """Return the configuration of an entry; an algorithm that is not built in is in its own file."""
    from ..algorithms import is_own_code

    path = run.folder / "config.toml"
    if not path.is_file():
        raise FolderError(f"{run.folder} is packed; unpack its runs.zip first")
    text = path.read_text(encoding="utf-8")
    name = str(run.config["algorithm"]["name"])
    if not is_own_code(name):
        return text
    if code is None:
        raise ConfigError(f"{name} is not built in: give its file with --code FILE.py")
    return text.replace(f'"{name}"', f'"algorithm:{name.rpartition(":")[2]}"')


def describe_seed(run: Run) -> dict[str, Any]:
    """Return what an entry says of one seed."""
    from ..papers.leaderboard import MEASURES
    from ..results.tables import extract_measures

    assert run.summary is not None
    measures = extract_measures(run.summary)
    return {
        "model_sha256": run.summary.model_sha256,
        "data_sha256": run.summary.data_sha256,
        "measures": {k: v for k, v in measures.items() if k in MEASURES},
    }


def find_entry(entries: dict[str, Entry], name: str, board: Path) -> Entry:
    from ..core.errors import choose

    return choose(entries, name, str(board))


def choose_seed(entry: Entry, seed: int | None) -> int:
    if seed is None:
        return min(entry.seeds)
    if seed not in entry.seeds:
        told = ", ".join(map(str, entry.seeds))
        raise ConfigError(f"--seed {seed}: {entry.folder.name} has seeds {told}")
    return seed


# The table --------------------------------------------------------------------------------------


def show_table(table: BoardTable) -> None:
    """Print the entries of one setting, and which of them cannot be told apart."""
    plain = {
        k: title for k, title in PLAIN_COLUMNS.items() if any(k in r.means for r in table.rows)
    }
    columns = ["algorithm", "P %", "rank", "G %", "rank", "worst tenth %", *plain.values(), "seeds"]
    lines = [format_row(row, list(plain)) for row in table.rows]
    terminal.print_table(table.setting, columns, lines, text=1)
    terminal.print_note(describe_comparison(table))


def format_row(row: BoardRow, plain: Sequence[str]) -> list[str]:
    """Format an entry: mean and half the 95 % interval of accuracies, means of the others."""
    return [
        row.entry.algorithm,
        format_interval(row, "P.last10"),
        format_rank(row, "P.last10"),
        format_interval(row, "G.last10"),
        format_rank(row, "G.last10"),
        format_interval(row, "worst10"),
        *(format_plain(row, measure) for measure in plain),
        str(len(row.entry.seeds)),
    ]


def format_interval(row: BoardRow, measure: str) -> str:
    if measure not in row.means:
        return "–"
    mean, interval = row.means[measure], row.intervals[measure]
    half = f" ± {50 * (interval[1] - interval[0]):.2f}" if interval else ""
    return f"{100 * mean:.2f}{half}"


def format_rank(row: BoardRow, measure: str) -> str:
    rank = row.ranks[measure]
    return "–" if rank is None else f"{rank:.1f}"


def format_plain(row: BoardRow, measure: str) -> str:
    return f"{row.means[measure]:.1f}" if measure in row.means else "–"


def describe_comparison(table: BoardTable) -> str:
    """Say what the ranks can and cannot tell."""
    from ..papers.leaderboard import MIN_SEEDS

    comparison, seeds = table.comparisons["P.last10"], len(table.common_seeds)
    if comparison is None:
        return "± is half of the 95 % interval; ranks need two entries with two seeds in common"
    few = f"; a place needs {MIN_SEEDS} seeds" if seeds < MIN_SEEDS else ""
    return (
        f"± is half of the 95 % interval over seeds; ranks over {seeds} common seeds: average ranks of P"
        f" differ if they are {comparison.critical_difference:.1f} apart (Nemenyi, 5 %){few}"
    )
