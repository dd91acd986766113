"""A whole run on a fleet: the server here, devices on the boards, restarted where they die."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ...config.config import Config
from ...core.errors import EngineError, HeterophonyError
from ...core.files import read_json, write_json
from ...runs.events import Event
from ...runs.store import RunFolder
from ...runs.summary import Summary
from ..broker.enrolled_clients import EnrolledClients
from ..broker.enrolment import read_enrolment
from ..server import serve
from .hosts import Board
from .preparation import Preparation
from .ssh import ConnectionLostError
from .start import DeviceStatus, read_status

POLL_SECONDS = 5.0  # between two looks at all boards
WRONG_CONFIGURATION = 3  # the exit code after which starting again cannot help
FLEET_FILE = "fleet.json"
Say = Callable[[str], None]


def name_run(folder: RunFolder) -> str:
    """Return the run's name on the broker: new for a new folder, so that boards mix no two runs."""
    path = folder.path / FLEET_FILE
    if not path.exists():
        write_json(path, {"run": f"{folder.path.absolute().name[:50]}-{secrets.token_hex(3)}"})
    return str(read_json(path)["run"])


@dataclass
class Supervisor:
    """Looks after the boards in a thread while the server runs."""

    preparation: Preparation
    waiting: set[str]  # boards that are not ready yet
    say: Say
    can_lose_boards: bool  # the run has a deadline
    stopped: threading.Event = field(default_factory=threading.Event)
    unreachable: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)
    last_said: dict[str, str] = field(default_factory=dict)

    def watch(self) -> None:
        """Look at all boards again and again, until ``stopped`` is set."""
        while not self.stopped.wait(POLL_SECONDS):
            threads = [
                threading.Thread(target=self.look_at, args=(board,), daemon=True)
                for board in self.preparation.fleet.boards
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def look_at(self, board: Board) -> None:
        """Prepare a board that was not ready, and start a device that died."""
        try:
            if board.name in self.waiting:
                self.preparation.prepare(board)
                self.waiting.discard(board.name)
                self.say_once(board, "is ready now")
            else:
                self.restart_if_dead(board, read_status(self.preparation.ssh, board))
            if board.name in self.unreachable:
                self.unreachable.discard(board.name)
                self.say_once(board, "can be reached by ssh again")
        except ConnectionLostError as error:
            if board.name not in self.unreachable:
                self.unreachable.add(board.name)
                self.say_once(board, f"{error}; the run goes on, as devices do not need ssh")
        except HeterophonyError as error:
            self.say_once(board, str(error))

    def restart_if_dead(self, board: Board, status: DeviceStatus) -> None:
        if status.running or status.code == 0 or self.stopped.is_set():
            return
        if status.code == WRONG_CONFIGURATION and not self.can_lose_boards:
            self.failures[board.name] = status.last.removeprefix("error: ")
            return
        self.preparation.start(board)
        self.say(f"{board.name}: its device {status.describe()}; it is started again")

    def say_once(self, board: Board, text: str) -> None:
        if self.last_said.get(board.name) != text:
            self.last_said[board.name] = text
            self.say(f"{board.name}: {text}")

    def raise_failure(self) -> None:
        """End the run if a board's device has ended for a reason that will not go away."""
        for name, why in self.failures.items():
            raise EngineError(
                f"{name}: {why}; fix it and run the same command again: nothing is lost"
            )


def serve_run(
    config: Config,
    folder: RunFolder,
    preparation: Preparation,
    waiting: set[str],
    say: Say,
    on_event: Callable[[Event], None],
) -> Summary:
    """Serve the run while the boards are watched. The caller holds the folder's lock."""
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
            say,
            on_event,
            EnrolledClients(broker.folder),
            watch=supervisor.raise_failure,
        )
    finally:
        supervisor.stopped.set()
        if thread.ident is not None:
            thread.join()
