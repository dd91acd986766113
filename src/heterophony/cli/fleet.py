"""The command group ``fleet``: prepare boards over SSH, and start and monitor heterophony on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ..boards.fleet.hosts import View
from ..core.errors import ConfigError, DivergedError, HeterophonyError
from ..core.files import clean_line
from ..core.status_line import STDERR
from ..papers.table import TableScale
from ..results.table import ResultTable
from . import terminal
from .boards import open_broker
from .options import SAME_COMMAND, ConfigArgument, JsonOption, SettingsOption, read_settings
from .terminal import show_run

if TYPE_CHECKING:
    from ..boards.fleet.hosts import Board, Fleet, Outcome, Step
    from ..boards.fleet.run import Preparation
    from ..config.config import Config
    from ..runs.folder import RunFolder
    from ..runs.summary import Summary


MARKS = {"waiting": "·", "working": "[yellow]…[/]", "done": "[green]✓[/]", "failed": "[red]✗[/]"}


class TerminalView(View):
    """Shows the state of all boards in the terminal while a fleet step runs."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet  # print nothing about boards without problems
        self.title = ""
        self.rows: dict[str, tuple[str, str]] = {}
        self.lock = threading.Lock()
        self.live: Live | None = None

    def begin(self, title: str, boards: Sequence[str]) -> None:
        self.title, self.rows = title, dict.fromkeys(boards, ("waiting", ""))
        if STDERR.is_terminal:
            self.live = Live(self.draw(), console=STDERR, transient=True, refresh_per_second=8)
            self.live.start()

    def update(self, board: str, state: str, text: str) -> None:
        with self.lock:
            self.rows[board] = state, text
            if self.live:
                self.live.update(self.draw())

    def end(self) -> None:
        if self.live:
            self.live.stop()
            self.live = None
        if not self.quiet:
            for board, (state, text) in self.rows.items():
                if state == "done":
                    line = f"{board}: {self.title}: {text}"
                    STDERR.print(escape(clean_line(line)), soft_wrap=True, highlight=False)

    def draw(self) -> Table:
        """Return the table of all boards in their current state."""
        table = Table(title=self.title, box=None, show_header=False, title_justify="left")
        for board, (state, text) in self.rows.items():
            table.add_row(MARKS[state], escape(board), escape(clean_line(text)))
        return table


RunNameOption = Annotated[
    str,
    typer.Option("--run", help="The name of the run; default: the run that a server announces."),
]


@dataclass(frozen=True)
class Chosen:
    """The arguments and options of ``fleet`` before the command's name: boards and folders."""

    fleet: Fleet
    boards: tuple[Board, ...]  # the boards that the command is for
    broker: Path
    wheels: Path


def register(app: typer.Typer) -> None:
    """Add the command group ``fleet`` to the app."""
    group = typer.Typer(no_args_is_help=True, subcommand_metavar="COMMAND [ARGS]...")
    group.callback()(choose_fleet)
    steps = (check, wheels, install, enrol, data, start, stop, status, logs, collect)
    for command in (*steps, run, table):
        group.command()(command)
    app.add_typer(group, name="fleet")


def choose_fleet(
    context: typer.Context,
    hosts: Annotated[Path, typer.Argument(metavar="HOSTS.toml", help="The list of boards.")],
    only: Annotated[str, typer.Option(help="Only these boards, as in nano-1,nano-2.")] = "",
    broker: Annotated[Path, typer.Option(help="The folder of the broker.")] = Path("broker"),
    wheels: Annotated[
        Path, typer.Option(help="The folder in which `wheels` collects wheels.")
    ] = Path("wheels"),
) -> None:
    """Prepare, start and monitor many boards over SSH; `run` does all of this."""
    from ..boards.fleet.hosts import read_fleet

    names = [n.strip() for n in only.split(",") if n.strip()]
    fleet = read_fleet(hosts)
    context.obj = Chosen(fleet, fleet.select(names), broker, wheels)


@contextmanager
def open_preparation(chosen: Chosen) -> Iterator[Preparation]:
    """Yield the ``Preparation`` of a fleet; close its SSH connections afterwards."""
    from ..boards.fleet.install import Installer
    from ..boards.fleet.run import Preparation
    from ..boards.fleet.ssh import SshRunner

    broker = open_broker(chosen.broker)
    with SshRunner(chosen.fleet.ssh_config) as ssh:
        yield Preparation(chosen.fleet, ssh, broker, Installer.create(chosen.wheels))


def run_step_on_boards(
    title: str, boards: Sequence[Board], step: Step, quiet: bool = False
) -> Outcome:
    """Run a fleet step on these boards and show its progress; print one line for each board that fails."""
    from ..boards.fleet.hosts import do_on_boards

    outcome = do_on_boards(title, boards, step, TerminalView(quiet))
    for board, why in outcome.failed.items():
        terminal.print_error(f"{board}: {why}")
    return outcome


def exit_if_failed(outcome: Outcome) -> None:
    """Exit with code 1 if a step failed on a board; its error has already been printed."""
    if outcome.failed:
        raise SystemExit(1)


def load_run_data(prepared: Preparation, config: Config) -> None:
    """Read and partition the data of a run, and assign its clients to the fleet's boards."""
    from ..boards.fleet.run import assign_clients_to_boards
    from ..boards.server import check_boards_can_run
    from ..data.folders import OWN_DATA
    from ..studies.spec import read_federation

    check_boards_can_run(config)
    prepared.trust = bool(config.own_code)
    if config.data.name != OWN_DATA:
        prepared.federation = read_federation(config)
    prepared.assignment = assign_clients_to_boards(prepared.fleet, config, prepared.federation)


def start_broker(prepared: Preparation) -> None:
    """Start the broker for the fleet, unless it is already up."""
    fleet = prepared.fleet
    listen, started = prepared.broker.start(fleet.lan, fleet.port)
    if started:
        folder = prepared.broker.folder
        terminal.print_note(
            f"the broker is up on port {listen.port}; to stop it: heterophony broker down {folder}"
        )


# Commands -----------------------------------------------------------------------------------
def check(context: typer.Context, json: JsonOption = False) -> None:
    """Check that boards can be reached, and their Python, memory, disk, clock and network."""
    with open_preparation(context.obj) as prepared:
        outcome = run_step_on_boards("check", context.obj.boards, prepared.check, quiet=True)
        if json:
            boards = {name: asdict(facts) for name, facts in prepared.facts.items()}
            terminal.print_json({"boards": boards, "failed": outcome.failed})
        elif outcome.done:
            terminal.print_list(
                ResultTable.build(["board", "state"], sort_rows_by_file(prepared, outcome))
            )
    exit_if_failed(outcome)


def wheels(context: typer.Context) -> None:
    """Collect the wheels for the boards' architectures in the folder --wheels."""
    from ..boards.fleet.install import Target, collect_wheels

    chosen: Chosen = context.obj
    with open_preparation(chosen) as prepared:
        outcome = run_step_on_boards("check", context.obj.boards, prepared.check, quiet=True)
        boards = [b for b in chosen.boards if b.name in prepared.facts]
        needed = {
            (Target.from_facts(prepared.facts[b.name]), b.torch)
            for b in boards
            if not prepared.facts[b.name].in_environment
        }
    for target, torch in sorted(needed, key=str):
        folder = chosen.wheels / target.folder_name
        count = collect_wheels(folder, target, torch, chosen.fleet.index_url)
        terminal.print_note(f"{folder}: {count} new wheels" if count else f"{folder}: unchanged")
    exit_if_failed(outcome)


def install(context: typer.Context) -> None:
    """Install heterophony and its packages from this machine; boards need no internet."""
    with open_preparation(context.obj) as prepared:
        exit_if_failed(run_step_on_boards("install", context.obj.boards, prepared.install))


def enrol(context: typer.Context) -> None:
    """Give each board an enrolment of this machine's broker, which is started if needed."""
    with open_preparation(context.obj) as prepared:
        start_broker(prepared)
        exit_if_failed(run_step_on_boards("enrol", context.obj.boards, prepared.enrol))


def data(context: typer.Context, file: ConfigArgument = None, pairs: SettingsOption = None) -> None:
    """Copy to each board its own clients' shares of the data set, and nothing else."""
    with open_preparation(context.obj) as prepared:
        load_run_data(prepared, read_settings(file, pairs))
        exit_if_failed(run_step_on_boards("data", context.obj.boards, prepared.copy_data))


def start(
    context: typer.Context,
    file: ConfigArgument = None,
    pairs: SettingsOption = None,
    run_name: RunNameOption = "",
) -> None:
    """Start heterophony on each board, in the background."""
    with open_preparation(context.obj) as prepared:
        load_run_data(prepared, read_settings(file, pairs))
        prepared.run = run_name
        exit_if_failed(run_step_on_boards("start", context.obj.boards, prepared.start))


def stop(context: typer.Context) -> None:
    """Stop heterophony on each board; after `start`, it continues."""
    from ..boards.fleet.steps import stop_process

    with open_preparation(context.obj) as prepared:
        exit_if_failed(
            run_step_on_boards(
                "stop", context.obj.boards, lambda board: stop_process(prepared.ssh, board)
            )
        )


def status(context: typer.Context, json: JsonOption = False) -> None:
    """Show whether heterophony is running on each board."""
    from ..boards.fleet.steps import read_status

    with open_preparation(context.obj) as prepared:
        found: dict[str, object] = {}

        def step(board: Board) -> str:
            state = read_status(prepared.ssh, board)
            found[board.name] = asdict(state)
            return state.describe()

        outcome = run_step_on_boards("status", context.obj.boards, step, quiet=True)
        if json:
            terminal.print_json({"boards": found, "failed": outcome.failed})
        elif outcome.done:
            terminal.print_list(
                ResultTable.build(["board", "state"], sort_rows_by_file(prepared, outcome))
            )
    exit_if_failed(outcome)


def logs(
    context: typer.Context,
    lines: Annotated[int, typer.Option(min=1, help="Number of lines to show per board.")] = 20,
) -> None:
    """Print the last lines of each board's log."""
    from ..boards.fleet.steps import read_log

    with open_preparation(context.obj) as prepared:
        texts: dict[str, str] = {}

        def step(board: Board) -> str:
            texts[board.name] = read_log(prepared.ssh, board)
            return ""

        outcome = run_step_on_boards("logs", context.obj.boards, step, quiet=True)
    for board in context.obj.boards:
        for line in texts.get(board.name, "").splitlines()[-lines:]:
            print(f"{board.name}: {clean_line(line)}")
    exit_if_failed(outcome)


def collect(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("boards"),
) -> None:
    """Copy logs and facts of all boards to this machine; memories and data stay on the boards."""
    with open_preparation(context.obj) as prepared:
        outcome = run_step_on_boards("check", context.obj.boards, prepared.check, quiet=True)
        collected = collect_all(prepared, context.obj.boards, out)
    exit_if_failed(outcome)
    exit_if_failed(collected)


def collect_all(prepared: Preparation, boards: Sequence[Board], out: Path) -> Outcome:
    """Copy the log and facts of each board into a folder with the board's name."""
    from ..boards.fleet.steps import collect_log

    return run_step_on_boards(
        "collect",
        boards,
        lambda b: collect_log(prepared.ssh, b, out, prepared.facts.get(b.name)),
        quiet=True,
    )


def sort_rows_by_file(prepared: Preparation, outcome: Outcome) -> list[list[str]]:
    """Return a table row for each board that answered, in the order of the fleet's file."""
    return [[b.name, outcome.done[b.name]] for b in prepared.fleet.boards if b.name in outcome.done]


LateOption = Annotated[
    bool,
    typer.Option("--late", help="Start without boards that fail; they join when they are ready."),
]


def run(
    context: typer.Context,
    file: ConfigArgument = None,
    pairs: SettingsOption = None,
    out: Annotated[Path, typer.Option(help="The run folder; an existing run is continued.")] = Path(
        "runs/fleet"
    ),
    late: LateOption = False,
    json: JsonOption = False,
) -> None:
    """Run all steps: check, install, enrol, copy data, start, serve the run, collect and report."""
    from ..runs.folder import RunFolder

    config, folder = read_settings(file, pairs), RunFolder(out)
    require_all_boards(context.obj)
    with open_preparation(context.obj) as prepared:
        summary = run_on_fleet(prepared, config, folder, late)
    show_run(summary, folder.path, json, trained=True)


def table(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="A published table, as in `heterophony reproduce`."),
    ],
    rows: Annotated[str, typer.Option(help="Only these rows, as in 'Fed*'.")] = "*",
    scale: Annotated[
        TableScale,
        typer.Option(help="quick: minutes, on digits; medium: on small data; full: as printed."),
    ] = TableScale.quick,
    out: Annotated[
        Path | None, typer.Option(help="The folder of its runs; default: runs/TABLE-SCALE-fleet.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a published testbed table on the boards, row by row. Run again to continue."""
    from ..config.reading import read_config
    from ..papers.reproduce import TableSelection, build_result, create_run_folders, list_unfinished
    from ..papers.table import load_table
    from ..runs.folder import RunFolder
    from .reproduce import show_result

    require_all_boards(context.obj)
    # the table requires boards, which the fleet has
    published = replace(load_table(name), needs=None)
    selection = TableSelection(published, scale, rows, "*", tuple(published.measured.seeds)[:1])
    parent = out or Path("runs") / f"{name}-{scale}-fleet"
    create_run_folders(selection, parent)
    failed: dict[str, str] = {}
    with open_preparation(context.obj) as prepared:
        for cell_run in list_unfinished(selection, parent):
            folder = RunFolder(parent / cell_run.folder_name)
            terminal.print_note(f"{cell_run.cell.row}: {folder.path}")
            try:
                run_on_fleet(prepared, read_config(folder.config_file), folder, late=False)
            except DivergedError as error:
                failed[folder.path.name] = str(error)
    show_result(build_result(selection, parent, failed), parent, json)


def require_all_boards(chosen: Chosen) -> None:
    """Raise ConfigError if ``--only`` selects some of the fleet's boards, because a run needs all."""
    if len(chosen.boards) < len(chosen.fleet.boards):
        raise ConfigError(
            "--only: a run needs all boards in the file; list this run's boards in their own file"
        )


def run_on_fleet(prepared: Preparation, config: Config, folder: RunFolder, late: bool) -> Summary:
    """Run one configuration on the fleet, or continue it; collect logs and write the report page."""
    from ..algorithms import get_display_name
    from ..boards.fleet.run import name_run, serve_run
    from ..report.page.html import write_report
    from ..results.boards import write_board_rounds
    from ..results.runs import load_runs
    from ..studies.spec import RunSpec

    if config.engine.accelerator not in ("auto", "cpu"):
        raise ConfigError(
            "engine.accelerator: each board has its own (accelerator in the list of boards); leave it out"
        )
    load_run_data(prepared, config)
    if prepared.federation is not None:
        config.build_board_plan(prepared.federation)  # raises before anything is written
        config = config.fill_model_defaults(prepared.federation)
    RunSpec(config).open_folder(folder)
    try:
        start_broker(prepared)
        prepared.run = name_run(folder)
        waiting = set[str]() if folder.result_file.exists() else prepare_all_boards(prepared, late)
        with terminal.show_interruptible_progress(SAME_COMMAND, [folder, prepared.ssh]) as shown:
            status = shown.begin_run(get_display_name(config.algorithm_name), config.top.rounds)
            note = terminal.print_note
            summary = serve_run(config, folder, prepared, waiting, note, status)
    finally:
        folder.close()
    collect_all(prepared, prepared.fleet.boards, folder.path / "boards")
    page = folder.path / "report.html"
    runs = load_runs([folder.path])
    write_report(runs, page)
    write_board_rounds(runs, folder.path / "boards.csv")
    terminal.print_note(f"wrote {page} and boards.csv next to it")
    return summary


def prepare_all_boards(prepared: Preparation, late: bool) -> set[str]:
    """Run all fleet steps before a run; return the boards that failed, which ``late`` must allow."""
    boards, failed = prepared.fleet.boards, dict[str, str]()
    for title, step in (
        ("check", prepared.check),
        ("install", prepared.install),
        ("enrol", prepared.enrol),
        ("data", prepared.copy_data),
        ("start", prepared.start),
    ):
        ready = [b for b in boards if b.name not in failed]
        failed |= run_step_on_boards(title, ready, step, quiet=title == "check").failed
    if failed and not late:
        raise HeterophonyError(
            f"{len(failed)} of {len(boards)} boards failed; repair them and {SAME_COMMAND},"
            " or add --late"
        )
    return set(failed)
