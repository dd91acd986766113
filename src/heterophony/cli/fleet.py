"""The commands ``fleet``: prepare boards over SSH, start heterophony on them and watch it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ..boards.fleet.hosts import View
from ..core.files import clean_line
from ..core.status_line import STDERR
from ..results.table import ResultTable
from . import terminal
from .boards import open_broker
from .options import ConfigArgument, JsonOption, SettingsOption, read_settings

if TYPE_CHECKING:
    from ..boards.fleet.hosts import Board, Fleet, Outcome, Step
    from ..boards.fleet.run import Preparation
    from ..config.config import Config


MARKS = {"waiting": "·", "working": "[yellow]…[/]", "done": "[green]✓[/]", "failed": "[red]✗[/]"}


class TerminalView(View):
    """Shows the state of all boards while a step runs; failures are printed afterwards."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet  # do not mention boards without problems
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
    """The choices made before the command's name: fleet file, boards and folders."""

    fleet: Fleet
    boards: tuple[Board, ...]  # the boards that the command is for
    broker: Path
    wheels: Path


def make_group() -> typer.Typer:
    """Return the group ``fleet`` with the commands for single steps."""
    group = typer.Typer(no_args_is_help=True, subcommand_metavar="COMMAND [ARGS]...")
    group.callback()(choose_fleet)
    for command in (check, wheels, install, enrol, data, start, stop, status, logs, collect):
        group.command()(command)
    return group


def choose_fleet(
    context: typer.Context,
    hosts: Annotated[Path, typer.Argument(metavar="HOSTS.toml", help="The list of boards.")],
    only: Annotated[str, typer.Option(help="Only these boards, as in nano-1,nano-2.")] = "",
    broker: Annotated[Path, typer.Option(help="The folder of the broker.")] = Path("broker"),
    wheels: Annotated[
        Path, typer.Option(help="The folder in which `wheels` collects wheels.")
    ] = Path("wheels"),
) -> None:
    """Prepare, start and watch many boards over SSH; `run` does all of it."""
    from ..boards.fleet.hosts import read_fleet

    names = [n.strip() for n in only.split(",") if n.strip()]
    fleet = read_fleet(hosts)
    context.obj = Chosen(fleet, fleet.select(names), broker, wheels)


@contextmanager
def prepare(chosen: Chosen) -> Iterator[Preparation]:
    """Yield the preparation; its connections end with the command."""
    from ..boards.fleet.install import Installer
    from ..boards.fleet.run import Preparation
    from ..boards.fleet.ssh import SshRunner

    broker = open_broker(chosen.broker)
    with SshRunner(chosen.fleet.ssh_config) as ssh:
        yield Preparation(chosen.fleet, ssh, broker, Installer.create(chosen.wheels))


def do_step(title: str, boards: Sequence[Board], step: Step, quiet: bool = False) -> Outcome:
    """Do a step on these boards and show its progress; print one line for each board that fails."""
    from ..boards.fleet.hosts import do_on_boards

    outcome = do_on_boards(title, boards, step, TerminalView(quiet))
    for board, why in outcome.failed.items():
        terminal.print_error(f"{board}: {why}")
    return outcome


def end(outcome: Outcome) -> None:
    """Exit with code 1 if a board failed; its error has already been printed."""
    if outcome.failed:
        raise SystemExit(1)


def load_run(prepared: Preparation, config: Config) -> None:
    """Read and partition the data of a run, and assign its clients to the boards."""
    from ..boards.fleet.run import assign
    from ..boards.server import check_boards_can_run
    from ..data.folders import OWN_DATA
    from ..studies.spec import read_federation

    check_boards_can_run(config)
    prepared.trust = bool(config.own_code)
    if config.data.name != OWN_DATA:
        prepared.federation = read_federation(config)
    prepared.assignment = assign(prepared.fleet, config, prepared.federation)


def start_broker(prepared: Preparation) -> None:
    """Start the broker for the boards, unless it is already up."""
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
    with prepare(context.obj) as prepared:
        outcome = do_step("check", context.obj.boards, prepared.check, quiet=True)
        if json:
            boards = {name: asdict(facts) for name, facts in prepared.facts.items()}
            terminal.print_json({"boards": boards, "failed": outcome.failed})
        elif outcome.done:
            terminal.print_list(
                ResultTable.build(["board", "state"], sort_rows_by_file(prepared, outcome))
            )
    end(outcome)


def wheels(context: typer.Context) -> None:
    """Collect the wheels for the boards' architectures in the folder --wheels."""
    from ..boards.fleet.install import Target, collect_wheels

    chosen: Chosen = context.obj
    with prepare(chosen) as prepared:
        outcome = do_step("check", context.obj.boards, prepared.check, quiet=True)
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
    end(outcome)


def install(context: typer.Context) -> None:
    """Install heterophony and its packages from this machine; boards need no internet."""
    with prepare(context.obj) as prepared:
        end(do_step("install", context.obj.boards, prepared.install))


def enrol(context: typer.Context) -> None:
    """Give each board an enrolment of this machine's broker, which is started if needed."""
    with prepare(context.obj) as prepared:
        start_broker(prepared)
        end(do_step("enrol", context.obj.boards, prepared.enrol))


def data(context: typer.Context, file: ConfigArgument = None, pairs: SettingsOption = None) -> None:
    """Copy to each board its own clients' shares of the data set, and nothing else."""
    with prepare(context.obj) as prepared:
        load_run(prepared, read_settings(file, pairs))
        end(do_step("data", context.obj.boards, prepared.copy_data))


def start(
    context: typer.Context,
    file: ConfigArgument = None,
    pairs: SettingsOption = None,
    run_name: RunNameOption = "",
) -> None:
    """Start heterophony on each board, in the background."""
    with prepare(context.obj) as prepared:
        load_run(prepared, read_settings(file, pairs))
        prepared.run = run_name
        end(do_step("start", context.obj.boards, prepared.start))


def stop(context: typer.Context) -> None:
    """Stop heterophony on each board; after `start`, it continues."""
    from ..boards.fleet.steps import stop_process

    with prepare(context.obj) as prepared:
        end(do_step("stop", context.obj.boards, lambda board: stop_process(prepared.ssh, board)))


def status(context: typer.Context, json: JsonOption = False) -> None:
    """Show whether heterophony runs on each board."""
    from ..boards.fleet.steps import read_status

    with prepare(context.obj) as prepared:
        found: dict[str, object] = {}

        def step(board: Board) -> str:
            state = read_status(prepared.ssh, board)
            found[board.name] = asdict(state)
            return state.describe()

        outcome = do_step("status", context.obj.boards, step, quiet=True)
        if json:
            terminal.print_json({"boards": found, "failed": outcome.failed})
        elif outcome.done:
            terminal.print_list(
                ResultTable.build(["board", "state"], sort_rows_by_file(prepared, outcome))
            )
    end(outcome)


def logs(
    context: typer.Context,
    lines: Annotated[int, typer.Option(min=1, help="Lines to show of each board.")] = 20,
) -> None:
    """Print the last lines of each board's log."""
    from ..boards.fleet.steps import read_log
    from ..core.files import clean_line

    with prepare(context.obj) as prepared:
        texts: dict[str, str] = {}

        def step(board: Board) -> str:
            texts[board.name] = read_log(prepared.ssh, board)
            return ""

        outcome = do_step("logs", context.obj.boards, step, quiet=True)
    for board in context.obj.boards:
        for line in texts.get(board.name, "").splitlines()[-lines:]:
            print(f"{board.name}: {clean_line(line)}")
    end(outcome)


def collect(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("boards"),
) -> None:
    """Copy logs and facts of all boards to this machine; memories and data stay on the boards."""
    with prepare(context.obj) as prepared:
        outcome = do_step("check", context.obj.boards, prepared.check, quiet=True)
        collected = collect_all(prepared, context.obj.boards, out)
    end(outcome)
    end(collected)


def collect_all(prepared: Preparation, boards: Sequence[Board], out: Path) -> Outcome:
    """Write the log and facts of each board to a folder with the board's name."""
    from ..boards.fleet.steps import collect as collect_board

    return do_step(
        "collect",
        boards,
        lambda b: collect_board(prepared.ssh, b, out, prepared.facts.get(b.name)),
        quiet=True,
    )


def sort_rows_by_file(prepared: Preparation, outcome: Outcome) -> list[list[str]]:
    """Return a row for each board that answered, in the order of the file."""
    return [[b.name, outcome.done[b.name]] for b in prepared.fleet.boards if b.name in outcome.done]
