"""A run on a fleet: prepare its boards, serve the run, and restart processes that exit."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...config.config import Config
from ...core.errors import ConfigError, EngineError, HeterophonyError
from ...core.files import read_json, write_json
from ...data.federation import Federation
from ...data.folders import OWN_DATA
from ...data.source import check_names_on_boards
from ...runs.events import Event
from ...runs.folder import RunFolder
from ...runs.summary import Summary
from ..board_data import encode_share
from ..broker.broker import Broker
from ..broker.certificates import EnrolledClients
from ..broker.enrolment import read_enrolment
from ..server import ServerHooks, serve
from . import steps
from .hosts import Board, Fleet, assign_clients
from .install import Installer
from .ssh import PRIVATE, ConnectionLostError, Content, SshRunner, push_files


@dataclass
class Preparation:
    """The steps that prepare the boards of a fleet for a run; each step can be repeated."""

    fleet: Fleet
    ssh: SshRunner
    broker: Broker
    installer: Installer
    federation: Federation | None = None  # None: the clients' own data
    assignment: Mapping[str, Sequence[str]] = field(default_factory=dict)
    run: str = ""  # the run's name on the broker
    trust: bool = False  # boards may import an external algorithm that the run names
    facts: dict[str, steps.BoardFacts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.enroller = steps.Enroller(self.broker, self.fleet)

    def check(self, board: Board) -> str:
        """Check that the board can take part and, if the broker is running, that it can reach it."""
        address, port = ("", 0)
        if self.broker.settings_file.exists() and self.broker.find_pid() is not None:
            address, port = steps.find_broker(self.fleet, self.broker)
        facts = steps.read_facts(self.ssh, board, address, port)
        note = steps.check_board(board, facts, address, port)
        self.facts[board.name] = facts
        return f"{facts.describe()}; {note}" if note else facts.describe()

    def install(self, board: Board) -> str:
        """Install heterophony on the board, after checking the board if needed; return what was done."""
        if board.name not in self.facts:
            self.check(board)
        return self.installer.install(self.ssh, board, self.facts[board.name])

    def enrol(self, board: Board) -> str:
        """Enrol the board at the broker; return what was done."""
        return self.enroller.enrol(self.ssh, board)

    def copy_data(self, board: Board) -> str:
        """Copy to the board the shares of its clients, and delete other clients' shares; return what was done."""
        if self.federation is None:
            return f"has its own, in {board.data}"
        clients = self.assignment[board.name]
        contents = {
            f"{steps.SHARES_FOLDER}/{client}.npz": Content(
                encode_share(self.federation, client), PRIVATE
            )
            for client in clients
        }
        copied = push_files(self.ssh, board, contents, only=[steps.SHARES_FOLDER])
        size = sum(content.size for content in contents.values())
        if not copied:
            return "unchanged"
        return f"{len(clients)} shares of {size / 1e6:.1f} MB"

    def start(self, board: Board) -> str:
        """Start heterophony on the board with its clients; return what was done."""
        clients = self.assignment.get(board.name, ())
        return steps.start_process(self.ssh, board, clients, self.run, self.trust)

    def prepare(self, board: Board) -> str:
        """Run all steps of the preparation on one board; the broker must be up."""
        for step in (self.check, self.install, self.enrol, self.copy_data):
            step(board)
        return self.start(board)


def assign_clients_to_boards(
    fleet: Fleet, config: Config, federation: Federation | None
) -> dict[str, tuple[str, ...]]:
    """Return each board's clients; raise ConfigError if a board's ``data`` contradicts the run's."""
    for board in fleet.boards:
        if bool(board.data) != (config.data.name == OWN_DATA):
            raise ConfigError(
                f"{fleet.path}: boards.{board.name}.data: missing; the run uses the clients' own data"
                if not board.data
                else f"{fleet.path}: boards.{board.name}.data: the run uses the data set"
                f" {config.data.name}; leave data out"
            )
    if federation is None:
        return {b.name: b.clients if isinstance(b.clients, tuple) else () for b in fleet.boards}
    check_names_on_boards(federation.clients)
    return assign_clients(fleet, federation.clients)


POLL_SECONDS = 5.0  # seconds between two checks of all boards
WRONG_CONFIGURATION = 3  # exit code after which a restart cannot help
FLEET_FILE = "fleet.json"
Say = Callable[[str], None]


def name_run(folder: RunFolder) -> str:
    """Return the run's name on the broker; each run folder has a different name, so boards never mix up runs."""
    path = folder.path / FLEET_FILE
    if not path.exists():
        write_json(path, {"run": f"{folder.path.absolute().name[:50]}-{secrets.token_hex(3)}"})
    return str(read_json(path)["run"])


@dataclass
class Supervisor:
    """Watches the boards of a fleet in a thread while the server runs."""

    preparation: Preparation
    waiting: set[str]  # boards that are not ready yet
    say: Say
    can_lose_boards: bool  # the run has a deadline
    stopped: threading.Event = field(default_factory=threading.Event)
    unreachable: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)
    last_said: dict[str, str] = field(default_factory=dict)

    def watch(self) -> None:
        """Check all boards repeatedly until ``stopped`` is set."""
        while not self.stopped.wait(POLL_SECONDS):
            threads = [
                threading.Thread(target=self.supervise_board, args=(board,), daemon=True)
                for board in self.preparation.fleet.boards
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def supervise_board(self, board: Board) -> None:
        """Prepare a board that is not ready, or restart heterophony there if it has died."""
        try:
            if board.name in self.waiting:
                self.preparation.prepare(board)
                self.waiting.discard(board.name)
                self.say_once(board, "is now ready")
            else:
                self.restart_if_dead(board, steps.read_status(self.preparation.ssh, board))
            if board.name in self.unreachable:
                self.unreachable.discard(board.name)
                self.say_once(board, "can be reached by ssh again")
        except ConnectionLostError as error:
            if board.name not in self.unreachable:
                self.unreachable.add(board.name)
                self.say_once(board, f"{error}; the run continues, because it does not need ssh")
        except HeterophonyError as error:
            self.say_once(board, str(error))

    def restart_if_dead(self, board: Board, status: steps.ProcessStatus) -> None:
        """Start heterophony again if it has exited on a board before the run finished."""
        if status.running or status.code == 0 or self.stopped.is_set():
            return
        if status.code == WRONG_CONFIGURATION and not self.can_lose_boards:
            self.failures[board.name] = status.last.removeprefix("error: ")
            return
        self.preparation.start(board)
        self.say(f"{board.name}: heterophony {status.describe()}; restarting it")

    def say_once(self, board: Board, text: str) -> None:
        """Print a line about a board, unless it is the same as the last line about this board."""
        if self.last_said.get(board.name) != text:
            self.last_said[board.name] = text
            self.say(f"{board.name}: {text}")

    def raise_failure(self) -> None:
        """Raise EngineError if a board has stopped for a reason that a restart cannot fix."""
        for name, why in self.failures.items():
            raise EngineError(
                f"{name}: {why}; fix this and run the same command again: nothing is lost"
            )


def serve_run(
    config: Config,
    folder: RunFolder,
    preparation: Preparation,
    waiting: set[str],
    say: Say,
    on_event: Callable[[Event], None],
) -> Summary:
    """Serve a run on a fleet, and watch its boards. The caller must hold the lock of the run folder."""
    broker = preparation.broker
    supervisor = Supervisor(preparation, waiting, say, config.faults.deadline is not None)
    thread = threading.Thread(target=supervisor.watch, daemon=True)
    if not folder.result_file.exists():
        thread.start()
    try:
        return serve(
            config,
            folder,
            read_enrolment(broker.server_enrolment_file),
            preparation.run,
            ServerHooks(say, on_event, supervisor.raise_failure),
            EnrolledClients(broker.folder),
        )
    finally:
        supervisor.stopped.set()
        if thread.ident is not None:
            thread.join()
