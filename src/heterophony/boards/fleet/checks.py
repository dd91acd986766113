"""Check a board before anything is copied: architecture, Python, glibc, memory, disk, clock, network."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.files import write_atomically, write_json
from ..broker.certificates import CLOCK_TOLERANCE
from .hosts import Board
from .ssh import BoardError, SshRunner, call_board

MACHINES = ("x86_64", "aarch64")  # those PyTorch publishes wheels for
OLDEST_GLIBC = (2, 28)
MIN_MEMORY = 600 << 20  # a device with a small network needs about 330 MB
MIN_DISK = 200 << 20
CLOCK_SECONDS = 60.0  # from here on a wrong clock is mentioned


@dataclass(frozen=True)
class BoardFacts:
    """What a board says about itself, and how far its clock is from ours."""

    machine: str
    python: tuple[int, int, int]
    in_environment: bool
    libc: tuple[str, str]
    cores: int
    memory: int
    memory_free: int
    disk_free: int
    clock_offset: float  # seconds that its clock is ahead
    temperature: float | None
    cuda: bool
    reaches: bool | None  # whether the broker's port can be reached; None: not tried
    writable: bool

    @property
    def glibc(self) -> tuple[int, int] | None:
        name, version = self.libc
        parts = version.split(".")
        return (int(parts[0]), int(parts[1])) if name == "glibc" and len(parts) > 1 else None

    def describe(self) -> str:
        """Describe the board in one line."""
        heat = "" if self.temperature is None else f", {self.temperature:.0f} °C"
        python = ".".join(map(str, self.python))
        libc = " ".join(self.libc).strip() or "another libc"
        return (
            f"{self.machine}, Python {python}, {libc}, {self.cores} cores,"
            f" {self.memory_free / 1e9:.1f} of {self.memory / 1e9:.1f} GB memory and"
            f" {self.disk_free / 1e9:.1f} GB disk free{heat}"
        )


def read_facts(ssh: SshRunner, board: Board, address: str = "", port: int = 0) -> BoardFacts:
    """Ask the board; with a port, also whether it reaches the broker there."""
    begun = time.time()
    content = call_board(ssh, board, "facts", {"address": address, "port": port})
    return parse_facts(content, (begun + time.time()) / 2, (time.time() - begun) / 2)


def parse_facts(content: Mapping[str, Any], now: float, uncertainty: float) -> BoardFacts:
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
    """Raise one line if the board cannot take part; return what is good to know, or nothing."""
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
        raise BoardError(f"the folder {board.folder} cannot be written there")
    if facts.disk_free < MIN_DISK:
        raise BoardError(f"its disk is full: {facts.disk_free / 1e6:.0f} MB are free")
    check_memory(board, facts)
    if board.device.startswith("cuda") and not facts.cuda:
        raise BoardError(
            f"device = {board.device!r}, but it shows no NVIDIA GPU; use device = 'cpu'"
        )
    if facts.reaches is False:
        raise BoardError(
            f"it cannot reach the broker at {address}:{port}; open that port in this machine's firewall,"
            " or set address to one that boards can reach"
        )
    return check_clock(facts)


def check_memory(board: Board, facts: BoardFacts) -> None:
    least = board.memory_mb * 1_000_000 if board.memory_mb else MIN_MEMORY
    if facts.memory_free < min(least, MIN_MEMORY):
        raise BoardError(
            f"only {facts.memory_free / 1e6:.0f} MB of memory are free; a device needs about"
            f" {MIN_MEMORY / 1e6:.0f} MB: end other programs, or add swap"
        )


def check_clock(facts: BoardFacts) -> str:
    """Refuse a clock that makes certificates invalid; mention one that is merely wrong."""
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
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"


LOG = "device.log"
MAX_LOG_BYTES = 4 << 20


def read_log(ssh: SshRunner, board: Board, limit: int = MAX_LOG_BYTES) -> str:
    """Return the end of the device's log; an empty text if there is none."""
    answer = call_board(ssh, board, "read", {"files": [LOG], "limit": limit})
    return str(answer["files"].get(LOG, ""))


def collect(ssh: SshRunner, board: Board, folder: Path, facts: BoardFacts | None) -> str:
    """Write the board's log and facts to a folder of its name."""
    text = read_log(ssh, board)
    write_atomically(folder / board.name / LOG, text.encode(), durable=False)
    if facts is not None:
        write_json(folder / board.name / "board.json", asdict(facts))
    return f"{len(text.encode()) / 1e3:.1f} kB of its log"
