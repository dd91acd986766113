"""Enrol boards at the broker of this machine: the key is made here and copied with mode 0600."""

from __future__ import annotations

import shlex
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ..broker.broker import Broker
from ..broker.enrolment import select_advertised_address
from .hosts import Board, Fleet
from .ssh import PRIVATE, Content, SshRunner, call_board, push_files

ENROLMENT_FILE = "enrolment.toml"
RENEWAL = timedelta(days=30)  # before it expires, an enrolment is replaced


@dataclass
class Enroller:
    """Enrols boards one after the other: enrolling a revoked name again restarts the broker."""

    broker: Broker
    fleet: Fleet
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enrol(self, ssh: SshRunner, board: Board) -> str:
        """Give the board an enrolment that works; say what was done."""
        clients = self.fleet.clients_by_board.get(board.name, ())
        address, port = find_broker(self.fleet, self.broker)
        there = call_board(ssh, board, "enrolment")
        if not self.is_current(board.name, there["certificate"], clients):
            self.replace_enrolment(ssh, board, clients, address)
            return "enrolled"
        if (there["address"], there["port"]) != (address, port):
            call_board(ssh, board, "change-address", {"address": address, "port": port})
            return f"finds the broker at {address}:{port} now"
        return "unchanged"

    def is_current(self, name: str, certificate: str, clients: tuple[str, ...]) -> bool:
        """Tell whether the board has the certificate that the broker knows, for these clients."""
        store = self.broker.certificate_store
        known = {device.name: device for device in store.list_enrolled()}
        device = known.get(name)
        if device is None or device.until < datetime.now(UTC) + RENEWAL:
            return False
        stored = (store.enrolled_folder / f"{name}.pem").read_text()
        return stored == certificate and set(device.clients) == set(clients)

    def replace_enrolment(
        self, ssh: SshRunner, board: Board, clients: tuple[str, ...], address: str
    ) -> None:
        """Make a new key and copy it; the file exists here only meanwhile."""
        with self.lock, tempfile.TemporaryDirectory(dir=self.broker.folder) as folder:
            if board.name in {d.name for d in self.broker.certificate_store.list_enrolled()}:
                self.broker.revoke(board.name)
            issued = self.broker.enrol(board.name, Path(folder) / ENROLMENT_FILE, clients)
        text = replace(issued, address=address).to_toml()
        push_files(ssh, board, {ENROLMENT_FILE: Content(text, PRIVATE)})


def find_broker(fleet: Fleet, broker: Broker) -> tuple[str, int]:
    """Return the address and port under which boards find the broker."""
    listen = broker.read_listen_settings()
    return fleet.address or select_advertised_address(listen.lan), listen.port


SHARES_FOLDER = "shares"
UNIT = """\
[Unit]
Description=heterophony device {name}
StartLimitIntervalSec=0

[Service]
WorkingDirectory=@ROOT@
Environment=PYTHONPATH=@ROOT@/code PYTHONUNBUFFERED=1 NO_COLOR=1
ExecStart=@PYTHON@ -P -m heterophony {words}
StandardOutput=append:@ROOT@/device.log
StandardError=append:@ROOT@/device.log
Restart=on-failure
RestartSec=10
RestartPreventExitStatus=3
{limits}
[Install]
WantedBy=default.target
"""


@dataclass(frozen=True)
class DeviceStatus:
    """How the device on a board is."""

    running: bool
    started: bool
    code: int | None
    last: str  # the last line of its log

    def describe(self) -> str:
        if self.running:
            return f"running; {self.last}" if self.last else "running"
        if not self.started:
            return "never started"
        if self.code == 0:
            return "ended: its run has ended"
        return f"ended with exit code {'unknown' if self.code is None else self.code}; {self.last}"


def make_device_words(
    board: Board, clients: Sequence[str], run: str, trust: bool = False
) -> list[str]:
    """Return the words after ``heterophony`` that start the device on this board."""
    words = ["device", "--enrolment", ENROLMENT_FILE, "--folder", "device"]
    words += ["--clients", ",".join(clients)] if clients else []
    words += ["--data", board.data] if board.data else ["--shares", SHARES_FOLDER]
    words += ["--run", run] if run else []
    words += ["--memory-limit", str(board.memory_mb)] if board.memory_mb else []
    words += ["--trust"] if trust else []
    return [*words, "-c", f"engine.accelerator={board.device}"]


def make_unit(board: Board, words: Sequence[str]) -> str:
    """Return the text of the systemd unit; the board fills in its own paths."""
    limits = f"Nice={board.nice}\n" if board.nice else ""
    limits += f"MemoryMax={board.memory_mb}M\n" if board.memory_mb else ""
    limits += f"CPUQuota={board.cpu_percent}%\n" if board.cpu_percent else ""
    # % and $ are special to systemd
    quoted = " ".join(shlex.quote(w).replace("%", "%%").replace("$", "$$") for w in words)
    return UNIT.format(name=board.name, words=quoted, limits=limits)


def start_device(
    ssh: SshRunner, board: Board, clients: Sequence[str], run: str, trust: bool = False
) -> str:
    """Start the device in the background; do nothing if it runs with the same words.

    With ``trust``, it imports an algorithm from outside that the server names.
    """
    words = make_device_words(board, clients, run, trust)
    request: dict[str, Any] = {"words": words, "nice": board.nice}
    if board.systemd:
        request |= {"unit": name_unit(board), "text": make_unit(board, words)}
    answer = call_board(ssh, board, "start-unit" if board.systemd else "start", request)
    return "started" if answer["changed"] else "was running"


def stop_device(ssh: SshRunner, board: Board) -> str:
    action = "stop-unit" if board.systemd else "stop"
    answer = call_board(ssh, board, action, {"unit": name_unit(board)})
    return "stopped" if answer["changed"] else "was not running"


def read_status(ssh: SshRunner, board: Board) -> DeviceStatus:
    action = "unit-status" if board.systemd else "status"
    content = call_board(ssh, board, action, {"unit": name_unit(board)})
    return DeviceStatus(content["running"], content["started"], content["code"], content["last"])


def name_unit(board: Board) -> str:
    return f"heterophony-{board.name}"
