"""Runs on boards for tests: a real Mosquitto, and server and boards in threads or in processes.

Threads are quick, but share torch's generator, which real boards do not; so only one thread computes
at a time. Processes are forked from a server that has imported torch, run the code of the two
commands, and can be killed at moments that a test chooses.
"""

from __future__ import annotations

import json
import os
import pkgutil
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from heterophony.boards import board as board_module
from heterophony.boards import board as boards
from heterophony.boards import reply_checks
from heterophony.boards import server as server_module
from heterophony.boards.board import BoardRun
from heterophony.boards.broker import enrolment
from heterophony.boards.broker.broker import Broker
from heterophony.boards.broker.certificates import EnrolledClients
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.boards.broker.enrolment import read_enrolment as enrolled
from heterophony.boards.broker.process import find_mosquitto
from heterophony.boards.protocol import blobs
from heterophony.boards.protocol.server_session import ServerSession
from heterophony.boards.server import ServerHooks, serve
from heterophony.boards.transport import mqtt_transport
from heterophony.boards.transport.mqtt_transport import BackoffSettings, MqttTransport
from heterophony.boards.transport.queues import BrokerEndpoint, Will
from heterophony.config.config import Config
from heterophony.config.reading import read_config
from heterophony.config.sections import EngineSection
from heterophony.core.errors import ConfigError, HeterophonyError
from heterophony.data.federation import Federation
from heterophony.engines import child_processes
from heterophony.engines.base import Serial
from heterophony.population.attacks import Faults
from heterophony.runs import loop
from heterophony.runs.events import Event
from heterophony.runs.folder import RunFolder
from heterophony.runs.summary import Summary
from heterophony.studies.run import execute_plan

LONG = 120.0  # seconds after which a test fails


# Brokers --------------------------------------------------------------------------------------


def installed() -> None:
    """Skip a test if Mosquitto is not installed; fail it in CI."""
    try:
        find_mosquitto()
    except ConfigError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@contextmanager
def mosquitto(folder: Path, *names: str) -> Iterator[tuple[Broker, dict[str, Enrolment]]]:
    """Run a broker; yield it and the enrolments of the server and of these boards.

    Enrolments of boards are also files in the folder.
    """
    installed()
    made = Broker(folder / "broker")
    made.start(port=0)
    try:
        known = {name: made.enrol(name, folder / f"{name}.toml") for name in names}
        yield made, known | {"server": enrolled(made.server_enrolment_file)}
    finally:
        made.stop()


# Boards in threads ----------------------------------------------------------------------------

SMALL = {
    "rounds": 2,
    "data.clients": 4,
    "data.partition.alpha": 0.5,
    "model.name": "mlp",
    "training.steps": 2,
    "training.batch": 16,
    "participation.rate": 0.5,
    "evaluation.every": 2,
    "engine.name": "serial",
}
HELD = {"one": ["0", "2"], "two": ["1", "3"]}
ALONE = threading.Lock()
BOARD_ERRORS: list[
    Exception
] = []  # errors of boards, which are raised in the server so that it does not wait for them


def compute_one_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """Let only one board, or the server, compute or build a plan at a time.

    All share one federation and torch's generator; an error in a board's thread ends the server.
    """

    def alone(compute: Callable[..., Any]) -> Callable[..., Any]:
        def compute_alone(*args: Any) -> Any:
            with ALONE:
                return compute(*args)

        return compute_alone

    tick = ServerSession.tick

    def ticking(session: ServerSession, now: float) -> Any:
        if BOARD_ERRORS:
            raise BOARD_ERRORS.pop()
        return tick(session, now)

    patch.setattr(ServerSession, "tick", ticking)
    patch.setattr(boards, "work", alone(boards.work))
    for name in ("get_form", "list_measures"):
        drawn = getattr(reply_checks.ReplyValidator, name)
        patch.setattr(reply_checks.ReplyValidator, name, alone(drawn))
    patch.setattr(Config, "build_board_plan", alone(Config.build_board_plan))
    patch.setattr(loop, "merge_replies", alone(loop.merge_replies))
    patch.setattr(
        Config,
        "build_federation",
        lambda config: build_shared_federation(repr(config.data), config),
    )


FEDERATIONS: dict[str, Federation] = {}
BUILD_FEDERATION = Config.build_federation


def build_shared_federation(key: str, config: Config) -> Federation:
    """Return a federation that all threads share and none changes."""
    with ALONE:
        if key not in FEDERATIONS:
            FEDERATIONS[key] = BUILD_FEDERATION(config)
        return FEDERATIONS[key]


def small(algorithm: str, *, trust: bool = False, **settings: Any) -> Config:
    """Return the configuration of a run of about a second."""
    pairs = {"algorithm.name": algorithm, **SMALL, **settings}
    return read_config(None, [f"{key}={value}" for key, value in pairs.items()], trust=trust)


def simulated(
    config: Config, folder: Path, engine: type[Serial] = Serial
) -> tuple[Summary, list[Event]]:
    """Run the configuration as a simulation; return the summary and the events."""
    plan = config.build_plan(config.build_federation())
    return run_in_folder(
        config, folder, lambda out: execute_plan(plan, out, engine(plan, out.client_store))
    )


def run_in_folder(
    config: Config, folder: Path, play: Callable[[RunFolder], Summary]
) -> tuple[Summary, list[Event]]:
    out = RunFolder(folder)
    out.create(config.to_toml())
    try:
        summary = play(out)
        return summary, list(out.iterate_events())
    finally:
        out.close()


class BoardThreads:
    """Boards in threads, until their run has ended."""

    def __init__(self, known: dict[str, Enrolment], run: str, folder: Path) -> None:
        self.known, self.run, self.folder = known, run, folder
        self.said: list[str] = []
        self.threads: list[threading.Thread] = []
        self.boards: dict[str, BoardRun] = {}

    def join(self, name: str, clients: Sequence[str], kind: type[BoardRun] = BoardRun) -> BoardRun:
        made = kind(self.known[name], self.run, self.folder / name, clients, self.said.append)
        thread = threading.Thread(target=run_board, args=[made], name=f"board {name}", daemon=True)
        self.boards[name] = made
        self.threads.append(thread)
        thread.start()
        return made

    def end(self) -> None:
        for thread in self.threads:
            thread.join(LONG)
            assert not thread.is_alive()


def run_board(board: BoardRun) -> None:
    try:
        board.run()
    except Exception as error:
        BOARD_ERRORS.append(error)


def on_boards(
    config: Config,
    known: dict[str, Enrolment],
    folder: Path,
    held: Mapping[str, Sequence[str]] = HELD,
    kinds: Mapping[str, type[BoardRun]] | None = None,
    say: Callable[[str], None] = lambda words: None,
    on_event: Callable[[Event, BoardThreads], None] = lambda event, company: None,
    enrolled: EnrolledClients | None = None,
) -> tuple[Summary, list[Event]]:
    """Run on boards that each hold these clients; the run is named after ``folder``.

    With ``enrolled``, the broker's folder is known to the server.
    """
    run = folder.name
    company = BoardThreads(known, run, folder / "boards")
    for name, clients in held.items():
        company.join(name, clients, (kinds or {}).get(name, BoardRun))

    def play(out: RunFolder) -> Summary:
        def on_each(event: Event) -> None:
            on_event(event, company)

        return serve(config, out, known["server"], run, ServerHooks(say, on_each), enrolled)

    result = run_in_folder(config, folder / "run", play)
    company.end()
    return result


# Boards in processes --------------------------------------------------------------------------

PAUSE = 0.01
SLOW = [  # modules to import once, not in every process
    "heterophony.engines.pool",
    *("heterophony.boards.board", "heterophony.boards.server"),
    *(
        "heterophony.config.reading",
        "heterophony.boards.broker.broker",
        "kornia",
        "sklearn.datasets",
    ),
]
HOLDS = {"one": ["0", "2"], "two": ["1", "3"]}
SETTINGS = {
    "algorithm.name": "fedreg",  # every client has a personal head
    "rounds": "2",
    "data.clients": "4",
    "data.partition.alpha": "0.5",
    "model.name": "mlp",
    "training.epochs": "1",
    "participation.rate": "0.5",
}


def preload() -> None:
    """Start the fork server with all slow imports done."""
    forkserver._forkserver._stop()  # another test's server has fewer imports
    child_processes.CONTEXT.set_forkserver_preload(SLOW)
    forkserver.ensure_running()


def configured(**more: str) -> Config:
    """Return the usual configuration with some settings changed (a double underscore is a dot)."""
    pairs = {**SETTINGS, **{k.replace("__", "."): v for k, v in more.items()}}
    return read_config(None, [f"{k}={v}" for k, v in pairs.items()])


def simulated_result(folder: Path, config: Config) -> dict[str, Any]:
    """Run the configuration as a simulation; return the result."""
    made = RunFolder(folder)
    made.create(config.to_toml())
    try:
        return execute_plan(
            config.build_plan(config.build_federation()), made, EngineSection(name="serial")
        ).to_dict()
    finally:
        made.close()


@dataclass(frozen=True)
class Point:
    """A moment in a process's life: before or after the nth call of a function.

    The function is written ``module:Class.function``. With ``topic``, only calls whose first
    argument ends with it count.
    """

    when: str
    what: str
    nth: int = 1
    topic: str = ""
    signal: int = signal.SIGKILL  # the signal that the process sends to itself

    def install(self) -> None:
        module, _, path = self.what.partition(":")
        within, _, name = path.rpartition(".")
        home = pkgutil.resolve_name(f"{module}:{within}" if within else module)
        original, calls = getattr(home, name), 0

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            counts = not self.topic or args[1].endswith(self.topic)
            calls += counts
            now = counts and calls == self.nth
            if now and self.when == "before":
                os.kill(os.getpid(), self.signal)
            result = original(*args, **kwargs)
            if now and self.when == "after":
                os.kill(os.getpid(), self.signal)
            return result

        setattr(home, name, wrapped)


@dataclass(frozen=True)
class ProcessOptions:
    """Options of a process: when it is killed, its network settings, and the messages that it replays."""

    points: tuple[Point, ...] = ()
    port: int | None = None  # instead of the broker's own
    keepalive: int = 30
    will_delay: int = 15
    replays: Path | None = None  # file of its messages, which it publishes again

    def settle(self) -> None:
        """Apply these settings in the new process."""
        child_processes.configure_torch()
        child_processes.set_parent_death_signal()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        blobs.CHUNK_BYTES = 4 << 10
        blobs.FIRST_WAIT = 0.2
        mqtt_transport.BackoffSettings = partial(
            BackoffSettings, first=0.05, longest=0.2, first_after_refusal=0.5
        )
        enrolment.BrokerEndpoint = partial(BrokerEndpoint, keepalive=self.keepalive)
        for module in (board_module, server_module):
            module.Will = partial(Will, delay=self.will_delay)
        for point in self.points:
            point.install()
        if self.replays:
            Replayer(self.replays).install()


class Replayer:
    """Publishes every message again later, some out of order; also after a restart."""

    def __init__(self, path: Path) -> None:
        self.path, self.draw = path, random.Random(path.name)
        run_in_folder = path.read_text().splitlines() if path.exists() else []
        self.said = [(t, bytes.fromhex(p)) for t, p in (line.split() for line in run_in_folder)]
        self.held: list[tuple[str, bytes]] = []

    def install(self) -> None:
        publish = MqttTransport.publish

        def wrapped(to: MqttTransport, topic: str, payload: bytes, retain: bool = False) -> bool:
            self.keep(topic, payload)
            late, self.held = self.held, []
            if not retain and self.draw.random() < 0.1:
                self.held = [(topic, payload)]
                taken = True
            else:
                taken = publish(to, topic, payload, retain)
            for old in [*late, *self.draw.choices(self.said, k=1)]:
                publish(to, *old)
            return taken

        MqttTransport.publish = wrapped

    def keep(self, topic: str, payload: bytes) -> None:
        self.said.append((topic, payload))
        with open(self.path, "a") as file:
            file.write(f"{topic} {payload.hex()}\n")


def live(
    run: str,
    enrolled: Path,
    folder: Path,
    clients: list[str] | None,
    ways: ProcessOptions,
    told: Path,
) -> None:
    """Run a board with these clients, or the server if there are none."""

    def say(words: str) -> None:
        with open(told, "a") as file:
            file.write(words + "\n")

    ways.settle()
    known = enrolment.read_enrolment(enrolled)
    known = replace(known, port=ways.port or known.port)
    try:
        if clients is None:
            serve_folder(known, folder, say)
        else:
            board_module.BoardRun(known, run, folder, clients, say).run()
    except KeyboardInterrupt:
        say("stopped")
    except HeterophonyError as error:
        say(f"{type(error).__name__}: {error}")
        raise SystemExit(2) from None
    except BaseException:
        say(traceback.format_exc())
        raise


def serve_folder(known: enrolment.Enrolment, path: Path, say: Callable[[str], None]) -> None:
    folder = RunFolder(path)
    folder.reopen()
    try:
        hooks = server_module.ServerHooks(say)
        server_module.serve(read_config(folder.config_file), folder, known, path.name, hooks)
    finally:
        folder.close()


class BoardProcesses:
    """A folder with a run and its boards, and their processes; ``end`` kills those that still run."""

    def __init__(self, broker: Broker, enrolments: Path, folder: Path, config: Config) -> None:
        self.broker, self.enrolments, self.folder = broker, enrolments, folder
        self.run = RunFolder(folder / folder.name)
        self.run.create(config.to_toml())
        self.run.close()
        federation = config.build_federation()
        self.plan = replace(
            replace(config, faults=Faults()).build_plan(federation), clients_on_boards=True
        )
        self.processes: dict[str, Any] = {}

    # Processes ------------------------------------------------------------------------------
    def server(self, *points: Point, **ways: Any) -> Any:
        return self.start(
            "server",
            self.broker.server_enrolment_file,
            self.run.path,
            None,
            ProcessOptions(points, **ways),
        )

    def board(
        self, name: str, *points: Point, clients: list[str] | None = None, home: str = "", **ways
    ) -> Any:
        """Start a board; ``home`` names a folder to use in place of its own."""
        enrolled, held = self.enrolments / f"{name}.toml", clients or HOLDS[name]
        folder = self.folder / (home or name)
        return self.start(home or name, enrolled, folder, held, ProcessOptions(points, **ways))

    def start(self, name: str, *how: Any) -> Any:
        process = child_processes.CONTEXT.Process(
            target=live, args=(self.run.path.name, *how, self.folder / f"{name}.said")
        )
        process.start()
        self.processes[name] = process
        return process

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()

    # Watching -------------------------------------------------------------------------------
    def said(self, name: str) -> str:
        path = self.folder / f"{name}.said"
        return path.read_text() if path.exists() else ""

    def events(self) -> list[dict[str, Any]]:
        return list(self.run.iterate_events())

    def rounds(self) -> int:
        return sum(e["event"] == "round" for e in self.events())

    def board_of_client(self) -> Mapping[str, str]:
        path = self.run.path / "boards.json"
        return json.loads(path.read_text())["board_of_client"] if path.exists() else {}

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; no process may fail meanwhile."""
        end = time.monotonic() + LONG
        while not condition():
            assert time.monotonic() < end, {n: self.said(n)[-2000:] for n in self.processes}
            for name, process in self.processes.items():
                assert process.exitcode in (None, 0, -signal.SIGKILL), self.said(name)
            time.sleep(PAUSE)

    def dead(self, name: str) -> None:
        """Wait until a process has killed itself."""
        self.until(lambda: self.processes[name].exitcode is not None)
        assert self.processes[name].exitcode == -signal.SIGKILL, self.said(name)

    def refused(self, name: str) -> str:
        """Wait until a process has ended with an error; return its output."""
        process = self.processes.pop(name)
        process.join(LONG)
        assert process.exitcode == 2, process.exitcode
        return self.said(name)

    def stopped(self, name: str) -> None:
        """Wait until a process is stopped by a signal."""
        stat = Path(f"/proc/{self.processes[name].pid}/stat")
        self.until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def finished(self) -> dict[str, Any]:
        """Wait until all processes have ended; return the run's result."""
        self.until(lambda: all(p.exitcode is not None for p in self.processes.values()))
        assert {n: p.exitcode for n, p in self.processes.items() if p.exitcode} == {}
        return json.loads(self.run.result_file.read_text())
