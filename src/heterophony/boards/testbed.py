"""The testbed: broker, server and boards of one run as local processes, with injected faults."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from ..config.reading import read_config
from ..core.errors import (
    BrokerError,
    BusyError,
    ConfigError,
    EngineError,
    FolderError,
    HeterophonyError,
    suggest_or_list,
)
from ..core.files import (
    open_to_append,
    read_json,
    remove_unfinished_files,
    translate_disk_errors,
    write_json,
)
from ..core.randomness import make_generator
from ..data.source import check_names_on_boards
from ..engines import child_processes
from ..runs.events import Event
from ..runs.folder import RunFolder
from .board import BoardOptions, take_part_in_run
from .broker import enrolment, process
from .broker.broker import Broker
from .broker.enrolment import Enrolment
from .server import ServerHooks, serve

START_ATTEMPTS = 5


class PrivateBroker:
    """The testbed's own broker in a folder, on a free port that only this machine can reach."""

    def __init__(self, folder: Path) -> None:
        """Start the broker; stop one first that a killed testbed left running in the folder."""
        process.stop_mosquitto(folder)
        with translate_disk_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
        self.broker = Broker(folder)
        self.cleanup_process = child_processes.CONTEXT.Process(
            target=stop_after_testbed, args=(folder,), daemon=True
        )
        self.cleanup_process.start()
        self.pidfd: int | None = None  # becomes readable when Mosquitto exits
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Start Mosquitto, on the same port every time; try again if it is killed meanwhile."""
        for attempt in range(1, START_ATTEMPTS + 1):
            port = None if self.broker.settings_file.exists() else 0
            try:
                self.port = self.broker.start(lan=False, port=port)[0].port
                self.pidfd = open_pidfd(self.broker.find_pid())
                return
            except BrokerError:
                if attempt == START_ATTEMPTS:
                    raise

    def restart(self) -> None:
        """Kill Mosquitto if it is still running, and start it again."""
        if self.pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            if not select.select([self.pidfd], [], [], process.TIMEOUT_SECONDS)[0]:
                raise BrokerError(
                    "Mosquitto is still running after SIGKILL; stop it yourself, then run the command again"
                )
            self.close_pidfd()
        self.start()

    def enrol_board(self, name: str) -> Enrolment:
        """Enrol a board at the broker of the testbed."""
        return self.broker.enrol(name, self.broker.folder / f"{name}.toml")

    def read_server_enrolment(self) -> Enrolment:
        """Read the enrolment of the testbed's server."""
        return enrolment.read_enrolment(self.broker.server_enrolment_file)

    def stop(self) -> None:
        """Stop Mosquitto and delete its folder, which holds private keys.

        If this fails, the clean-up process stops Mosquitto after this process has exited.
        """
        with suppress(HeterophonyError):
            process.stop_mosquitto(self.broker.folder)
            shutil.rmtree(self.broker.folder, ignore_errors=True)
            self.cleanup_process.kill()
            self.cleanup_process.join()
        self.close_pidfd()

    def close_pidfd(self) -> None:
        """Close the descriptor of the Mosquitto process."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def open_pidfd(pid: int | None) -> int:
    """Return a descriptor that becomes readable when Mosquitto exits; raise BrokerError if it has exited."""
    if pid is not None:
        with suppress(ProcessLookupError):
            return os.pidfd_open(pid)
    raise BrokerError("Mosquitto exited right after it started; see its log")


def stop_after_testbed(folder: Path) -> None:
    """Wait until the testbed's process has exited, then stop Mosquitto, which would outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child_processes.wait_for_parent_exit()
    deadline = time.monotonic() + process.TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            process.stop_mosquitto(folder)
            return
        except BusyError:  # the broker is being started
            time.sleep(process.POLL_SECONDS)


ProcessMessage = str | Event
SendMessage = Callable[[ProcessMessage], None]
RUN_NAME = "testbed"  # on the broker, which serves no other run


class TestbedProcess(child_processes.ChildProcess):
    """A process of the testbed, which runs the server or a board.

    It calls ``work(send, *args)``; ``send`` passes messages to the testbed.
    """

    __test__ = False  # tells pytest that this is not a test

    def __init__(self, name: str, work: Callable[..., None], *args: object) -> None:
        self.name = name
        super().__init__(run_and_report, work, *args)


# In the processes ---------------------------------------------------------------------------


def run_and_report(pipe: Connection, work: Callable[..., None], *args: object) -> None:
    """Run the testbed's server or a board in this process; report errors to the testbed."""
    with child_processes.send_errors(pipe):
        work(pipe.send, *args)


def run_server(send: SendMessage, folder: Path, enrolment: Enrolment) -> None:
    """Run the testbed's server; the testbed itself holds the lock of the run folder."""
    run = RunFolder(folder)
    remove_unfinished_files(folder, below=False)  # of a server that was killed
    remove_unfinished_files(run.commits_folder)
    config = read_config(folder / "config.toml", trust=True)  # the testbed wrote it
    serve(config, run, enrolment, RUN_NAME, ServerHooks(send, send))


def run_board(
    send: SendMessage, enrolment: Enrolment, folder: Path, clients: Sequence[str]
) -> None:
    """Run a board of the testbed; it trusts the configuration, which the testbed wrote."""
    take_part_in_run(enrolment, RUN_NAME, folder, clients, send, BoardOptions(trust=True))


# Network --------------------------------------------------------------------------------------

BUFFER_BYTES = 64 << 10
# SO_LINGER of zero seconds: close with a reset, as when a router forgets a connection
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class CuttableProxy:
    """A proxy between a board and the broker (``target_port``), whose connections can be cut."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.sockets: list[socket.socket] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.accept_connections, daemon=True).start()

    def cut(self) -> None:
        """Reset all connections between board and broker; accept new ones."""
        with self.lock:
            ends, self.sockets = self.sockets, []
        for end in ends:
            with suppress(OSError):  # the socket's thread has already closed it
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it

    def close(self) -> None:
        """Reset all connections between board and broker, and accept no more."""
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.listener.close()
        self.cut()

    def accept_connections(self) -> None:
        """Accept connections of the board, and open one to the broker for each, in a thread."""
        with suppress(OSError):  # closed
            while True:
                board, _ = self.listener.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self.target_port))
                except OSError:  # the broker does not answer
                    board.close()
                    continue
                with self.lock:
                    self.sockets += [board, broker]
                for ends in ((board, broker), (broker, board)):
                    threading.Thread(target=self.forward, args=ends, daemon=True).start()

    def forward(self, source: socket.socket, sink: socket.socket) -> None:
        """Forward bytes from one socket to the other until the first is closed."""
        with suppress(OSError):
            while data := source.recv(BUFFER_BYTES):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        with self.lock:
            if source in self.sockets:
                self.sockets.remove(source)
        source.close()


FAULT_KINDS = ("boards", "server", "broker", "network")


@dataclass(frozen=True)
class InjectedFault:
    """A fault in the testbed; ``board`` is the position of the affected board or link, if there is one."""

    kind: str
    board: int


def draw_fault(kinds: Sequence[str], seed: int, t: int, boards: int) -> InjectedFault | None:
    """Draw the fault to inject after round ``t``; None if no kind of fault was requested."""
    if not kinds:
        return None
    draw = make_generator(seed, "testbed", t)
    return InjectedFault(kinds[int(draw.integers(len(kinds)))], int(draw.integers(boards)))


def parse_fault_kinds(words: Sequence[str]) -> tuple[str, ...]:
    """Parse the values of --faults, such as ``boards,broker`` or ``all``, in a fixed order."""
    named = {name.strip() for word in words for name in word.split(",")}
    for name in sorted(named - {*FAULT_KINDS, "all"}):
        raise ConfigError(
            f"--faults: there is no '{name}'{suggest_or_list(name, [*FAULT_KINDS, 'all'])}"
        )
    return FAULT_KINDS if "all" in named else tuple(k for k in FAULT_KINDS if k in named)


DEFAULT_BOARDS = 10  # limited by the number of clients
EXIT_SECONDS = 10.0  # time for boards to learn that the run has finished
PrintLine = Callable[[str], None]


class Testbed:
    """The local server, broker and boards of one run. The caller must hold the lock of the run folder.

    After every round, a fault of one of the kinds in ``faults`` is injected.
    """

    __test__ = False  # tells pytest that this is not a test
    server_target = staticmethod(run_server)

    def __init__(
        self,
        folder: RunFolder,
        clients_by_board: Sequence[Sequence[str]],
        seed: int,
        faults: Sequence[str],
        say: PrintLine,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.run_folder, self.clients_by_board = folder.path.absolute(), clients_by_board
        self.seed, self.faults = seed, faults
        self.folder = get_testbed_folder(folder)
        self.say, self.on_event = say, on_event
        self.broker: PrivateBroker | None = None
        self.boards: list[TestbedProcess] = []
        self.processes: list[TestbedProcess] = []  # the server and boards that have not exited
        self.proxies: list[CuttableProxy] = []
        self.last_fault_round = -1  # the last round with a fault

    # Start and stop -------------------------------------------------------------------------
    def __enter__(self) -> Self:
        start_testbed_fork_server()
        write_json(self.folder / "testbed.json", {"boards": len(self.clients_by_board)})
        try:
            self.broker = PrivateBroker(self.folder / "broker")
            self.server = TestbedProcess(
                "the server",
                self.server_target,
                self.run_folder,
                self.broker.read_server_enrolment(),
            )
            self.processes.append(self.server)
            for i, clients in enumerate(self.clients_by_board):
                folder = self.folder / "boards" / f"{i + 1}"
                enrolment = self.enrol_board(self.broker, f"board-{i + 1}")
                self.boards.append(
                    TestbedProcess(f"board {i + 1}", run_board, enrolment, folder, clients)
                )
                self.processes.append(self.boards[-1])
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def enrol_board(self, broker: PrivateBroker, name: str) -> Enrolment:
        """Enrol a board of the testbed; if links are to be cut, the board connects through a proxy."""
        enrolment = broker.enrol_board(name)
        if "network" not in self.faults:
            return enrolment
        self.proxies.append(CuttableProxy(broker.port))
        return replace(enrolment, port=self.proxies[-1].port)

    def stop(self) -> None:
        """Stop all processes of the testbed; signal handlers may call this, too."""
        for part in self.processes:
            part.process.kill()
        for part in self.processes:
            part.wait_for_exit()
        for proxy in self.proxies:
            proxy.close()
        if self.broker:
            self.broker.stop()

    # While it runs --------------------------------------------------------------------------
    def supervise(self) -> None:
        """Handle messages of the testbed's processes and restart killed ones, until the run has finished."""
        assert self.broker is not None
        while True:
            pipes = {part.pipe: part for part in self.processes}
            mosquitto = [] if self.broker.pidfd is None else [self.broker.pidfd]
            for ready in connection.wait([*pipes, *mosquitto]):
                if isinstance(ready, int):
                    self.broker.restart()
                    self.say("the broker was killed; restarting it")
                elif (part := pipes[ready]).pipe is ready and self.handle_message(part):  # type: ignore[index]
                    return self.wait_for_boards()
                break  # the handler may have changed the other processes

    def handle_message(self, part: TestbedProcess) -> bool:
        """Handle a message or the exit of a testbed process; return True if the run has finished."""
        try:
            message: ProcessMessage = part.receive()
        except EOFError:
            return self.handle_exit(part)
        except HeterophonyError as error:
            if part is self.server:
                raise
            raise type(error)(f"{part.name}: {error}") from None
        if isinstance(message, dict):
            self.on_event(message)
            if message["event"] == "round":
                self.inject_fault(message["t"])
        elif part is self.server:
            self.say(message)
        else:  # only useful if something is wrong
            path = self.folder / "boards.log"
            with translate_disk_errors(path), open_to_append(path) as log:
                log.write(f"{part.name}: {message}\n".encode())
        return False

    def handle_exit(self, part: TestbedProcess) -> bool:
        """Restart a testbed process if it was killed; return True if the run has finished."""
        code = part.wait_for_exit()
        if code == 0:  # a board exits when it learns that the run has finished
            self.processes.remove(part)
            return part is self.server
        if code == child_processes.FORK_SERVER_DIED:  # children of the fork server exit with it
            self.say(f"{part.name} was killed with the fork server; restarting it")
            part.start()
            return False
        if code is None or code > 0:
            raise EngineError(f"{part.name} exited with code {code}; the reason is above")
        self.say(f"{part.name} was killed by signal {-code}; restarting it")
        part.start()
        return False

    def wait_for_boards(self) -> None:
        """Give boards a few seconds to learn that the run has finished and exit."""
        deadline = time.monotonic() + EXIT_SECONDS
        for part in self.processes:
            part.wait_for_exit(max(0.0, deadline - time.monotonic()))

    def inject_fault(self, t: int) -> None:
        """Inject the fault of round ``t``, unless a restarted server has reported the round again."""
        fault = draw_fault(self.faults, self.seed, t, len(self.boards))
        if fault is None or t <= self.last_fault_round:
            return
        self.last_fault_round, victim = t, self.boards[fault.board]
        if fault.kind == "network":
            self.proxies[fault.board].cut()
            self.say(f"round {t}: the link of {victim.name} was cut")
        elif fault.kind == "broker":
            assert self.broker is not None
            self.broker.restart()
            self.say(f"round {t}: the broker was killed and restarted")
        else:
            victim = self.server if fault.kind == "server" else victim
            if victim not in self.processes:  # a board that has exited, as the run has finished
                return
            victim.kill()
            victim.start()
            self.say(f"round {t}: {victim.name} was killed and restarted")


def start_testbed_fork_server() -> None:
    """Start the fork server of the testbed's processes, which imports torch while the data are read."""
    child_processes.start_fork_server(__name__)


def get_testbed_folder(folder: RunFolder) -> Path:
    """Return the folder of the testbed's boards and broker, inside the run folder."""
    return folder.path.absolute() / "testbed"


def assign_clients(
    clients: Sequence[str], boards: int | None, folder: RunFolder
) -> list[list[str]]:
    """Divide the clients evenly among the testbed's boards; a resumed run needs as many boards as before."""
    record = get_testbed_folder(folder) / "testbed.json"
    previous: int | None = read_json(record)["boards"] if record.exists() else None
    count = boards or previous or min(DEFAULT_BOARDS, len(clients))
    if previous and count != previous:
        raise FolderError(
            f"{folder.path} was started with {previous} boards: use --boards {previous},"
            " or choose another --out"
        )
    if count > len(clients):
        raise ConfigError(
            f"--boards {count}: there are only {len(clients)} clients;"
            f" use fewer boards, or -c data.clients={count}"
        )
    check_names_on_boards(clients)
    bounds = [len(clients) * i // count for i in range(count + 1)]
    return [list(clients[a:b]) for a, b in pairwise(bounds)]
