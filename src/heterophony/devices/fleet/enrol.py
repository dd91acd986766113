"""Enrol boards at the broker of this machine: the key is made here and copied with mode 0600."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..broker.broker import Broker
from ..broker.network import select_advertised_address
from .agent import call_board
from .hosts import Board, Fleet
from .ssh import SshRunner
from .transfer import PRIVATE, Content, push_files

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
