"""The steps on one board: check it, enrol it, start and stop heterophony, read its log."""

from __future__ import annotations

import shlex
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ...core.files import write_atomically, write_json
from ..broker.broker import Broker
from ..broker.certificates import CLOCK_TOLERANCE
from ..broker.enrolment import select_advertised_address
from .hosts import Board, Fleet
from .ssh import PRIVATE, BoardError, Content, SshRunner, call_board, push_files

MACHINES = ("x86_64", "aarch64")  # PyTorch publishes wheels for these
OLDEST_GLIBC = (2, 28)
MIN_MEMORY = 600 << 20  # heterophony with a small net needs about 330 MB
MIN_DISK = 200 << 20
CLOCK_SECONDS = 60.0  # a clock that is off by more than this is reported


@dataclass(frozen=True)
class BoardFacts:
    """The facts that a board reports, and the offset of its clock from this machine's."""

    machine: str
    python: tuple[int, int, int]
    in_environment: bool
    libc: tuple[str, str]
    cores: int
    memory: int
    memory_free: int
    disk_free: int
    clock_offset: float  # seconds by which its clock is ahead
    temperature: float | None
    cuda: bool
    reaches: bool | None  # whether the broker's port can be reached; None: not tried
    writable: bool

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The board's version of glibc; None if it has another C library."""
        name, version = self.libc
        parts = version.split(".")
        return (int(parts[0]), int(parts[1])) if name == "glibc" and len(parts) > 1 else None

    def describe(self) -> str:
        """Describe the board's hardware and software in one line."""
        heat = "" if self.temperature is None else f", {self.temperature:.0f} °C"
        python = ".".join(map(str, self.python))
        libc = " ".join(self.libc).strip() or "another libc"
        return (
            f"{self.machine}, Python {python}, {libc}, {self.cores} cores,"
            f" {self.memory_free / 1e9:.1f} of {self.memory / 1e9:.1f} GB memory and"
            f" {self.disk_free / 1e9:.1f} GB disk free{heat}"
        )


def read_facts(ssh: SshRunner, board: Board, address: str = "", port: int = 0) -> BoardFacts:
    """Read a board's facts; with a port, also whether the board can reach the broker there."""
    begun = time.time()
    content = call_board(ssh, board, "facts", {"address": address, "port": port})
    return parse_facts(content, (begun + time.time()) / 2, (time.time() - begun) / 2)


def parse_facts(content: Mapping[str, Any], now: float, uncertainty: float) -> BoardFacts:
    """Convert a board's answer to its facts; a clock offset within the uncertainty counts as 0."""
    offset = content["clock"] - now
    return BoardFacts(
        machine=str(content["machine"]),
        python=tuple(content["python"]),
        in_environment=bool(content["in_environment"]),
        libc=tuple(content["libc"]),
        cores=int(content["cores"]),
        memory=int(content["memory"]),
        memory_free=int(content["memory_free"]),
        disk_free=int(content["disk_free"]),
        clock_offset=0.0 if abs(offset) <= uncertainty else offset,
        temperature=content["temperature"],
        cuda=bool(content["cuda"]),
        reaches=content["reaches"],
        writable=bool(content["writable"]),
    )


def check_board(board: Board, facts: BoardFacts, address: str = "", port: int = 0) -> str:
    """Raise BoardError if a board cannot take part; return a warning, or an empty string."""
    if facts.machine not in MACHINES:
        raise BoardError(
            f"its architecture is {facts.machine}; PyTorch has wheels for {' and '.join(MACHINES)} only:"
            " use a 64-bit system"
        )
    if facts.glibc is None or facts.glibc < OLDEST_GLIBC:
        raise BoardError(
            f"its C library is {' '.join(facts.libc).strip() or 'unknown'}; today's PyTorch needs glibc"
            " 2.28 or newer: use a newer system, or a container (docs/how-to/fleet.md)"
        )
    if not facts.writable:
        raise BoardError(f"its folder {board.folder} is not writable")
    if facts.disk_free < MIN_DISK:
        raise BoardError(f"not enough disk space: only {facts.disk_free / 1e6:.0f} MB free")
    check_memory(board, facts)
    if board.accelerator.startswith("cuda") and not facts.cuda:
        raise BoardError(
            f"accelerator = {board.accelerator!r}, but it has no NVIDIA GPU; use accelerator = 'cpu'"
        )
    if facts.reaches is False:
        raise BoardError(
            f"it cannot reach the broker at {address}:{port}; open that port in this machine's firewall,"
            " or set address to one that boards can reach"
        )
    return check_clock(facts)


def check_memory(board: Board, facts: BoardFacts) -> None:
    """Raise BoardError if the board has too little free memory for heterophony."""
    least = board.memory_mb * 1_000_000 if board.memory_mb else MIN_MEMORY
    if facts.memory_free < min(least, MIN_MEMORY):
        raise BoardError(
            f"only {facts.memory_free / 1e6:.0f} MB of memory are free; heterophony needs about"
            f" {MIN_MEMORY / 1e6:.0f} MB: stop other programs, or add swap"
        )


def check_clock(facts: BoardFacts) -> str:
    """Raise BoardError if a board's clock makes certificates invalid; return a warning if it is inaccurate."""
    offset = facts.clock_offset
    if abs(offset) < CLOCK_SECONDS:
        return ""
    said = f"its clock is {format_offset(abs(offset))} {'ahead' if offset > 0 else 'behind'}"
    fix = "set it: sudo timedatectl set-ntp true"
    if offset < -CLOCK_TOLERANCE.total_seconds():
        raise BoardError(f"{said}, so certificates made today are not yet valid there; {fix}")
    if offset > 30 * 86400:
        raise BoardError(f"{said}, so certificates expire too early there; {fix}")
    return f"{said}; {fix}"


def format_offset(seconds: float) -> str:
    """Format the offset of a board's clock, as in ``3 hours``."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"


LOG = "board.log"
MAX_LOG_BYTES = 4 << 20


def read_log(ssh: SshRunner, board: Board, limit: int = MAX_LOG_BYTES) -> str:
    """Return the end of a board's log; an empty string if there is none."""
    answer = call_board(ssh, board, "read", {"files": [LOG], "limit": limit})
    return str(answer["files"].get(LOG, ""))


def collect_log(ssh: SshRunner, board: Board, folder: Path, facts: BoardFacts | None) -> str:
    """Copy a board's log to a folder named after the board, with its facts; return what was done."""
    text = read_log(ssh, board)
    write_atomically(folder / board.name / LOG, text.encode(), durable=False)
    if facts is not None:
        write_json(folder / board.name / "board.json", asdict(facts))
    return f"{len(text.encode()) / 1e3:.1f} kB of its log"


# Enrol and start ------------------------------------------------------------------------------

ENROLMENT_FILE = "enrolment.toml"
RENEWAL = timedelta(days=30)  # before it expires, an enrolment is replaced


@dataclass
class Enroller:
    """Enrols boards at the broker one at a time, because that may restart the broker."""

    broker: Broker
    fleet: Fleet
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enrol(self, ssh: SshRunner, board: Board) -> str:
        """Enrol a board, or update the broker's address in its enrolment; return what was done."""
        clients = self.fleet.clients_by_board.get(board.name, ())
        address, port = find_broker(self.fleet, self.broker)
        there = call_board(ssh, board, "enrolment")
        if not self.is_current(board.name, there["certificate"], clients):
            self.replace_enrolment(ssh, board, clients, address)
            return "enrolled"
        if (there["address"], there["port"]) != (address, port):
            call_board(ssh, board, "change-address", {"address": address, "port": port})
            return f"now uses the broker at {address}:{port}"
        return "unchanged"

    def is_current(self, name: str, certificate: str, clients: tuple[str, ...]) -> bool:
        """Return True if a board's certificate is the stored one, for these clients, and not about to expire."""
        store = self.broker.certificate_store
        known = {enrolled.name: enrolled for enrolled in store.list_enrolled()}
        enrolled = known.get(name)
        if enrolled is None or enrolled.until < datetime.now(UTC) + RENEWAL:
            return False
        stored = (store.enrolled_folder / f"{name}.pem").read_text()
        return stored == certificate and set(enrolled.clients) == set(clients)

    def replace_enrolment(
        self, ssh: SshRunner, board: Board, clients: tuple[str, ...], address: str
    ) -> None:
        """Make a new enrolment for a board and copy it to the board; no copy remains on this machine."""
        with self.lock, tempfile.TemporaryDirectory(dir=self.broker.folder) as folder:
            if board.name in {d.name for d in self.broker.certificate_store.list_enrolled()}:
                self.broker.revoke(board.name)
            issued = self.broker.enrol(board.name, Path(folder) / ENROLMENT_FILE, clients)
        text = replace(issued, address=address).encode()
        push_files(ssh, board, {ENROLMENT_FILE: Content(text, PRIVATE)})


def find_broker(fleet: Fleet, broker: Broker) -> tuple[str, int]:
    """Return the address and port at which the boards of a fleet reach the broker."""
    listen = broker.read_listen_settings()
    return fleet.address or select_advertised_address(listen.lan), listen.port


SHARES_FOLDER = "shares"
UNIT = """\
[Unit]
Description=heterophony board {name}
StartLimitIntervalSec=0

[Service]
WorkingDirectory=@ROOT@
Environment=PYTHONPATH=@ROOT@/code PYTHONUNBUFFERED=1 NO_COLOR=1
ExecStart=@PYTHON@ -P -m heterophony {words}
StandardOutput=append:@ROOT@/board.log
StandardError=append:@ROOT@/board.log
Restart=on-failure
RestartSec=10
RestartPreventExitStatus=3
{limits}
[Install]
WantedBy=default.target
"""


@dataclass(frozen=True)
class ProcessStatus:
    """The state of heterophony's process on a board."""

    running: bool
    started: bool
    code: int | None
    last: str  # the last line of its log

    def describe(self) -> str:
        """Describe the state of heterophony's process in one line."""
        if self.running:
            return f"running; {self.last}" if self.last else "running"
        if not self.started:
            return "never started"
        if self.code == 0:
            return "stopped, because its run has finished"
        return f"exited with code {'unknown' if self.code is None else self.code}; {self.last}"


def make_board_words(
    board: Board, clients: Sequence[str], run: str, trust: bool = False
) -> list[str]:
    """Return the arguments of ``heterophony`` with which a board takes part in a run."""
    words = ["board", "--enrolment", ENROLMENT_FILE, "--folder", "board"]
    words += ["--clients", ",".join(clients)] if clients else []
    words += ["--data", board.data] if board.data else ["--shares", SHARES_FOLDER]
    words += ["--run", run] if run else []
    words += ["--memory-limit", str(board.memory_mb)] if board.memory_mb else []
    words += ["--trust"] if trust else []
    return [*words, "-c", f"engine.accelerator={board.accelerator}"]


def format_unit(board: Board, words: Sequence[str]) -> str:
    """Return the text of a board's systemd unit, in which the board replaces @PYTHON@ and @ROOT@."""
    limits = f"Nice={board.nice}\n" if board.nice else ""
    limits += f"MemoryMax={board.memory_mb}M\n" if board.memory_mb else ""
    limits += f"CPUQuota={board.cpu_percent}%\n" if board.cpu_percent else ""
    # % and $ are special to systemd
    quoted = " ".join(shlex.quote(w).replace("%", "%%").replace("$", "$$") for w in words)
    return UNIT.format(name=board.name, words=quoted, limits=limits)


def start_process(
    ssh: SshRunner, board: Board, clients: Sequence[str], run: str, trust: bool = False
) -> str:
    """Start heterophony on a board, unless it is running with the same arguments; return what was done.

    With ``trust``, the board imports an external algorithm that the server names.
    """
    words = make_board_words(board, clients, run, trust)
    request: dict[str, Any] = {"words": words, "nice": board.nice}
    if board.systemd:
        request |= {"unit": get_unit_name(board), "text": format_unit(board, words)}
    answer = call_board(ssh, board, "start-unit" if board.systemd else "start", request)
    return "started" if answer["changed"] else "was running"


def stop_process(ssh: SshRunner, board: Board) -> str:
    """Stop heterophony on a board; return what was done."""
    action = "stop-unit" if board.systemd else "stop"
    answer = call_board(ssh, board, action, {"unit": get_unit_name(board)})
    return "stopped" if answer["changed"] else "was not running"


def read_status(ssh: SshRunner, board: Board) -> ProcessStatus:
    """Return the state of heterophony's process on a board."""
    action = "unit-status" if board.systemd else "status"
    content = call_board(ssh, board, action, {"unit": get_unit_name(board)})
    return ProcessStatus(content["running"], content["started"], content["code"], content["last"])


def get_unit_name(board: Board) -> str:
    """Return the name of the board's systemd unit."""
    return f"heterophony-{board.name}"
