"""A proxy between one device and the broker, on the loopback, whose connections can be cut."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import connection
from pathlib import Path
from typing import Self

from ...core.errors import ConfigError, EngineError, FolderError, HeterophonyError, suggest_or_list
from ...core.files import open_to_append, read_json, translate_disk_errors, write_json
from ...core.randomness import make_generator
from ...data.source import check_names_on_devices
from ...engines.child_processes import FORK_SERVER_DIED, start_fork_server
from ...runs.events import Event
from ...runs.folder import RunFolder
from ..broker.enrolment import Enrolment
from .processes import PrivateBroker, ProcessMessage, TestbedProcess, run_device, run_server

BUFFER_BYTES = 64 << 10
# SO_LINGER of zero seconds: close with a reset, as when a router forgets a connection
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class CuttableProxy:
    """Listens on ``port`` and forwards all bytes to and from ``target_port``."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.sockets: list[socket.socket] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.accept_connections, daemon=True).start()

    def cut(self) -> None:
        """End all connections; new ones are let through."""
        with self.lock:
            ends, self.sockets = self.sockets, []
        for end in ends:
            with suppress(OSError):  # its thread has closed it already
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it

    def close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.listener.close()
        self.cut()

    def accept_connections(self) -> None:
        with suppress(OSError):  # closed
            while True:
                device, _ = self.listener.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self.target_port))
                except OSError:  # the broker is down
                    device.close()
                    continue
                with self.lock:
                    self.sockets += [device, broker]
                for ends in ((device, broker), (broker, device)):
                    threading.Thread(target=self.forward, args=ends, daemon=True).start()

    def forward(self, source: socket.socket, sink: socket.socket) -> None:
        """Forward one direction until it is closed."""
        with suppress(OSError):
            while data := source.recv(BUFFER_BYTES):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        with self.lock:
            if source in self.sockets:
                self.sockets.remove(source)
        source.close()


FAULT_KINDS = ("devices", "server", "broker", "network")


@dataclass(frozen=True)
class InjectedFault:
    """The kind of fault; ``device`` is the device or the link that is hit, if the kind has one."""

    kind: str
    device: int


def draw_fault(kinds: Sequence[str], seed: int, t: int, devices: int) -> InjectedFault | None:
    """Draw the fault after round ``t``; None if no kinds were requested."""
    if not kinds:
        return None
    draw = make_generator(seed, "testbed", t)
    return InjectedFault(kinds[int(draw.integers(len(kinds)))], int(draw.integers(devices)))


def parse_fault_kinds(words: Sequence[str]) -> tuple[str, ...]:
    """Parse the values of --faults, such as ``devices,broker`` or ``all``, in a fixed order."""
    named = {name.strip() for word in words for name in word.split(",")}
    for name in sorted(named - {*FAULT_KINDS, "all"}):
        raise ConfigError(
            f"--faults: there is no '{name}'{suggest_or_list(name, [*FAULT_KINDS, 'all'])}"
        )
    return FAULT_KINDS if "all" in named else tuple(k for k in FAULT_KINDS if k in named)


DEFAULT_DEVICES = 10  # or one per client, if there are fewer clients
EXIT_SECONDS = 10.0  # for devices to learn that the run has ended
PrintLine = Callable[[str], None]


class Testbed:
    """The processes of one run. The caller must hold the lock of the folder.

    After every round, one fault of a kind in ``faults`` is injected.
    """

    __test__ = False  # for pytest it is no test
    server_target = staticmethod(run_server)

    def __init__(
        self,
        folder: RunFolder,
        clients_by_device: Sequence[Sequence[str]],
        seed: int,
        faults: Sequence[str],
        say: PrintLine,
        on_event: Callable[[Event], None],
    ) -> None:
        self.run_folder, self.clients_by_device = folder.path.absolute(), clients_by_device
        self.seed, self.faults = seed, faults
        self.folder = get_testbed_folder(folder)
        self.say, self.on_event = say, on_event
        self.broker: PrivateBroker | None = None
        self.devices: list[TestbedProcess] = []
        self.processes: list[TestbedProcess] = []  # the server and devices that have not ended
        self.proxies: list[CuttableProxy] = []
        self.last_fault_round = -1  # the last round with a fault

    # Start and end --------------------------------------------------------------------------
    def __enter__(self) -> Self:
        start_testbed_fork_server()
        write_json(self.folder / "testbed.json", {"devices": len(self.clients_by_device)})
        try:
            self.broker = PrivateBroker(self.folder / "broker")
            self.server = TestbedProcess(
                "the server",
                self.server_target,
                self.run_folder,
                self.broker.read_server_enrolment(),
            )
            self.processes.append(self.server)
            for i, clients in enumerate(self.clients_by_device):
                folder = self.folder / "devices" / f"{i + 1}"
                enrolment = self.enrol_device(self.broker, f"device-{i + 1}")
                self.devices.append(
                    TestbedProcess(f"device {i + 1}", run_device, enrolment, folder, clients)
                )
                self.processes.append(self.devices[-1])
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def enrol_device(self, broker: PrivateBroker, name: str) -> Enrolment:
        """Enrol a device; if links are to be cut, it connects through a proxy that can be cut."""
        enrolment = broker.enrol_device(name)
        if "network" not in self.faults:
            return enrolment
        self.proxies.append(CuttableProxy(broker.port))
        return replace(enrolment, port=self.proxies[-1].port)

    def stop(self) -> None:
        """End everything that was started. Also called in a signal handler."""
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
        """Handle messages and restart what was killed, until the server has finished the run."""
        assert self.broker is not None
        while True:
            pipes = {part.pipe: part for part in self.processes}
            mosquitto = [] if self.broker.pidfd is None else [self.broker.pidfd]
            for ready in connection.wait([*pipes, *mosquitto]):
                if isinstance(ready, int):
                    self.broker.restart()
                    self.say("the broker was killed; it is started again")
                elif (part := pipes[ready]).pipe is ready and self.handle_message(part):  # type: ignore[index]
                    return self.wait_for_devices()
                break  # the handler may have changed the other processes

    def handle_message(self, part: TestbedProcess) -> bool:
        """Handle one message or the end of a process. Returns whether the run has ended."""
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
        else:  # of use only if something is wrong
            path = self.folder / "devices.log"
            with translate_disk_errors(path), open_to_append(path) as log:
                log.write(f"{part.name}: {message}\n".encode())
        return False

    def handle_exit(self, part: TestbedProcess) -> bool:
        """Restart a process that was killed, by hand or for memory. Returns whether the run has ended."""
        code = part.wait_for_exit()
        if code == 0:  # a device exits when it learns that the run has ended
            self.processes.remove(part)
            return part is self.server
        if code == FORK_SERVER_DIED:  # its children end with it
            self.say(f"{part.name} was killed with the fork server; it is started again")
            part.start()
            return False
        if code is None or code > 0:
            raise EngineError(f"{part.name} ended with exit code {code}, for the reason above")
        self.say(f"{part.name} was killed by signal {-code}; it is started again")
        part.start()
        return False

    def wait_for_devices(self) -> None:
        """Give devices time to learn that the run has ended; one just started may never do so."""
        deadline = time.monotonic() + EXIT_SECONDS
        for part in self.processes:
            part.wait_for_exit(max(0.0, deadline - time.monotonic()))

    def inject_fault(self, t: int) -> None:
        """Inject the fault of round ``t``, once: a restarted server may report the round again."""
        fault = draw_fault(self.faults, self.seed, t, len(self.devices))
        if fault is None or t <= self.last_fault_round:
            return
        self.last_fault_round, victim = t, self.devices[fault.device]
        if fault.kind == "network":
            self.proxies[fault.device].cut()
            self.say(f"round {t}: the link of {victim.name} cut")
        elif fault.kind == "broker":
            assert self.broker is not None
            self.broker.restart()
            self.say(f"round {t}: the broker killed, back")
        else:
            victim = self.server if fault.kind == "server" else victim
            if victim not in self.processes:  # a device that has exited, as the run has ended
                return
            victim.kill()
            victim.start()
            self.say(f"round {t}: {victim.name} killed, back")


def start_testbed_fork_server() -> None:
    """Start the fork server early; it imports torch while the data are read."""
    start_fork_server(f"{__package__}.preload")


def get_testbed_folder(folder: RunFolder) -> Path:
    """Return the folder of the devices and the broker, inside the run folder."""
    return folder.path.absolute() / "testbed"


def assign_clients(
    clients: Sequence[str], devices: int | None, folder: RunFolder
) -> list[list[str]]:
    """Assign clients to devices evenly, in order; a resumed run must have as many as before."""
    record = get_testbed_folder(folder) / "testbed.json"
    previous: int | None = read_json(record)["devices"] if record.exists() else None
    count = devices or previous or min(DEFAULT_DEVICES, len(clients))
    if previous and count != previous:
        raise FolderError(
            f"{folder.path} was started with {previous} devices: use --devices {previous},"
            " or choose another --out"
        )
    if count > len(clients):
        raise ConfigError(
            f"--devices {count}: there are only {len(clients)} clients;"
            f" use fewer devices, or -c data.clients={count}"
        )
    check_names_on_devices(clients)
    bounds = [len(clients) * i // count for i in range(count + 1)]
    return [list(clients[a:b]) for a, b in pairwise(bounds)]
