"""A run whose server and devices are real processes, killed at moments that a test chooses.

They are forked from a server that has imported torch, run the code of the two commands, and end by
SIGKILL. Only the waits and the chunks of the protocol are made smaller in them.
"""

from __future__ import annotations

import json
import os
import pkgutil
import random
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from heterophony.boards import board as device_module
from heterophony.boards import server as server_module
from heterophony.boards.broker import enrolment
from heterophony.boards.broker.broker import Broker
from heterophony.boards.protocol import blobs as chunks
from heterophony.boards.protocol import blobs as resend_timer
from heterophony.boards.transport import mqtt_transport
from heterophony.boards.transport.mqtt_transport import BackoffSettings, MqttTransport
from heterophony.boards.transport.queues import BrokerEndpoint, Will
from heterophony.config.config import Config
from heterophony.config.reading import read_config
from heterophony.config.sections import EngineSection
from heterophony.core.errors import HeterophonyError
from heterophony.engines import child_processes
from heterophony.population.faults import Faults
from heterophony.runs.folder import RunFolder
from heterophony.studies.run import execute_plan

LONG = 60.0  # seconds; longer means that a test fails
PAUSE = 0.01
SLOW = [  # to import: once, not in every process
    "heterophony.engines.preload",
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
    "algorithm.name": "fedreg",  # with a head of every client's own
    "rounds": "2",
    "data.clients": "4",
    "data.partition.alpha": "0.5",
    "model.name": "mlp",
    "training.epochs": "1",
    "participation.rate": "0.5",
}


def preload() -> None:
    """Start the fork server with all slow imports done."""
    forkserver._forkserver._stop()  # one that others started knows less
    child_processes.CONTEXT.set_forkserver_preload(SLOW)
    forkserver.ensure_running()


def configured(**more: str) -> Config:
    """Return the usual configuration with some settings changed (a double underscore is a dot)."""
    pairs = {**SETTINGS, **{k.replace("__", "."): v for k, v in more.items()}}
    return read_config(None, [f"{k}={v}" for k, v in pairs.items()])


def simulated(folder: Path, config: Config) -> dict[str, Any]:
    """Return the result of the same run without devices."""
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

    The function is written ``module:Class.function``. With ``topic``, only calls count whose first
    argument ends like this.
    """

    when: str
    what: str
    nth: int = 1
    topic: str = ""
    signal: int = signal.SIGKILL  # that the process then sends to itself

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
class Ways:
    """How a process is started: when it is killed, its network settings, and what it replays."""

    points: tuple[Point, ...] = ()
    port: int | None = None  # instead of the broker's own
    keepalive: int = 30
    will_delay: int = 15
    replays: Path | None = None  # file with all its publications, to be published again

    def settle(self) -> None:
        """Apply these settings in the new process."""
        child_processes.configure_torch()
        child_processes.set_parent_death_signal()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        chunks.CHUNK_BYTES = 4 << 10
        resend_timer.FIRST_WAIT = 0.2
        mqtt_transport.BackoffSettings = partial(
            BackoffSettings, first=0.05, longest=0.2, first_after_refusal=0.5
        )
        for module in (device_module, server_module):
            module.BrokerEndpoint = partial(BrokerEndpoint, keepalive=self.keepalive)
            module.Will = partial(Will, delay=self.will_delay)
        for point in self.points:
            point.install()
        if self.replays:
            Replaying(self.replays).install()


class Replaying:
    """Publishes every message again later, some out of order; also after a restart."""

    def __init__(self, path: Path) -> None:
        self.path, self.draw = path, random.Random(path.name)
        kept = path.read_text().splitlines() if path.exists() else []
        self.said = [(t, bytes.fromhex(p)) for t, p in (line.split() for line in kept)]
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
    run: str, enrolled: Path, folder: Path, clients: list[str] | None, ways: Ways, told: Path
) -> None:
    """Run a device with these clients, or the server if there are none."""

    def say(words: str) -> None:
        with open(told, "a") as file:
            file.write(words + "\n")

    ways.settle()
    known = enrolment.read_enrolment(enrolled)
    known = replace(known, port=ways.port or known.port)
    try:
        if clients is None:
            serve(known, folder, say)
        else:
            device_module.Device(known, run, folder, clients, say).run()
    except KeyboardInterrupt:
        say("stopped")
    except HeterophonyError as error:
        say(f"{type(error).__name__}: {error}")
        raise SystemExit(2) from None
    except BaseException:
        say(traceback.format_exc())
        raise


def serve(known: enrolment.Enrolment, path: Path, say: Callable[[str], None]) -> None:
    folder = RunFolder(path)
    folder.reopen()
    try:
        server_module.serve(read_config(folder.config_file), folder, known, path.name, say)
    finally:
        folder.close()


class Bench:
    """A folder with a run and its devices, and their processes; ``end`` kills all that still run."""

    def __init__(self, broker: Broker, enrolments: Path, folder: Path, config: Config) -> None:
        self.broker, self.enrolments, self.folder = broker, enrolments, folder
        self.run = RunFolder(folder / folder.name)
        self.run.create(config.to_toml())
        self.run.close()
        federation = config.build_federation()
        self.plan = replace(
            replace(config, faults=Faults()).build_plan(federation), clients_on_devices=True
        )
        self.processes: dict[str, Any] = {}

    # Processes ------------------------------------------------------------------------------
    def server(self, *points: Point, **ways: Any) -> Any:
        return self.start(
            "server", self.broker.server_enrolment_file, self.run.path, None, Ways(points, **ways)
        )

    def device(
        self, name: str, *points: Point, clients: list[str] | None = None, home: str = "", **ways
    ) -> Any:
        """Start a device of that name; ``home`` is another folder than its own."""
        enrolled, held = self.enrolments / f"{name}.toml", clients or HOLDS[name]
        folder = self.folder / (home or name)
        return self.start(home or name, enrolled, folder, held, Ways(points, **ways))

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

    def holders(self) -> Mapping[str, str]:
        path = self.run.path / "devices.json"
        return json.loads(path.read_text())["holders"] if path.exists() else {}

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
