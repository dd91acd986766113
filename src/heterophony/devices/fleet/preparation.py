"""The steps that make a board ready for a run: check, install, enrol, data, start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...config.config import Config
from ...core.errors import ConfigError
from ...data.client_folders import OWN_DATA
from ...data.client_names import check_names_on_devices
from ...data.federation import Federation
from ..broker.broker import Broker
from ..shares import encode_share
from .checks import BoardFacts, check_board, read_facts
from .enrol import Enroller, find_broker
from .hosts import Board, Fleet, assign_clients
from .install import Installer
from .ssh import SshRunner
from .start import SHARES_FOLDER, start_device
from .transfer import PRIVATE, Content, push_files


@dataclass
class Preparation:
    """Makes boards ready, each in a thread of its own; every step can be repeated."""

    fleet: Fleet
    ssh: SshRunner
    broker: Broker
    installer: Installer
    federation: Federation | None = None  # None: the clients' own data
    assignment: Mapping[str, Sequence[str]] = field(default_factory=dict)
    run: str = ""  # its name on the broker
    trust: bool = False  # the run has an algorithm from outside, which its boards import
    facts: dict[str, BoardFacts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.enroller = Enroller(self.broker, self.fleet)

    def check(self, board: Board) -> str:
        """Check the board, and that it reaches the broker if that is up."""
        address, port = ("", 0)
        if self.broker.settings_file.exists() and self.broker.find_pid() is not None:
            address, port = find_broker(self.fleet, self.broker)
        facts = read_facts(self.ssh, board, address, port)
        note = check_board(board, facts, address, port)
        self.facts[board.name] = facts
        return f"{facts.describe()}; {note}" if note else facts.describe()

    def install(self, board: Board) -> str:
        if board.name not in self.facts:
            self.check(board)
        return self.installer.install(self.ssh, board, self.facts[board.name])

    def enrol(self, board: Board) -> str:
        return self.enroller.enrol(self.ssh, board)

    def copy_data(self, board: Board) -> str:
        """Copy the shares of the board's own clients, and delete those of others."""
        if self.federation is None:
            return f"has its own, in {board.data}"
        clients = self.assignment[board.name]
        contents = {
            f"{SHARES_FOLDER}/{client}.npz": Content(encode_share(self.federation, client), PRIVATE)
            for client in clients
        }
        copied = push_files(self.ssh, board, contents, only=[SHARES_FOLDER])
        size = sum(content.size for content in contents.values())
        if not copied:
            return "unchanged"
        return f"{len(clients)} shares of {size / 1e6:.1f} MB"

    def start(self, board: Board) -> str:
        clients = self.assignment.get(board.name, ())
        return start_device(self.ssh, board, clients, self.run, self.trust)

    def prepare(self, board: Board) -> str:
        """Do all steps on one board; the broker must be up."""
        for step in (self.check, self.install, self.enrol, self.copy_data):
            step(board)
        return self.start(board)


def assign(
    fleet: Fleet, config: Config, federation: Federation | None
) -> dict[str, tuple[str, ...]]:
    """Return which board holds which clients of a run; check that the boards fit its data."""
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
    check_names_on_devices(federation.clients)
    return assign_clients(fleet, federation.clients)
