"""Start the device on a board, with the words of its command line; stop it; say how it is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .agent import call_board
from .enrol import ENROLMENT_FILE
from .hosts import Board
from .ssh import SshRunner

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
    return [*words, "-c", f"engine.device={board.device}"]


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
