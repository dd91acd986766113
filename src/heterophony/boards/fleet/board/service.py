"""Run heterophony on a board, in a systemd unit or a shell, and answer requests of fleet."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import environment
from .environment import ProblemError, describe_os_error, locate_python, make_environment


def start_unit(request: dict[str, Any]) -> dict[str, Any]:
    """Write and start heterophony's systemd unit, unless the same unit is already running."""
    root = Path.home() / request["folder"]
    path = locate_unit(request["unit"])
    text = (
        request["text"].replace("@PYTHON@", str(locate_python(root))).replace("@ROOT@", str(root))
    )
    same = path.is_file() and path.read_text() == text
    if same and run_systemctl("is-active", "--quiet", path.name, check=False) == 0:
        return {"changed": False}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    run_systemctl("daemon-reload")
    run_systemctl("enable", "--quiet", path.name)
    run_systemctl("restart", path.name)
    if shutil.which("loginctl"):  # otherwise the unit would stop with our SSH session
        subprocess.run(["loginctl", "enable-linger"], capture_output=True, check=False)
    return {"changed": True}


def stop_unit(request: dict[str, Any]) -> dict[str, Any]:
    """Stop and delete heterophony's systemd unit, if there is one."""
    path = locate_unit(request["unit"])
    if not path.exists():
        return {"changed": False}
    run_systemctl("disable", "--now", "--quiet", path.name)
    path.unlink()
    return {"changed": True}


def read_unit_status(request: dict[str, Any]) -> dict[str, Any]:
    """Return the state of heterophony's systemd unit, in the form of ``read_process_status``."""
    name = locate_unit(request["unit"]).name
    shown = ["show", name, "--property=ActiveState,MainPID,ExecMainStatus"]
    done = subprocess.run(
        ["systemctl", "--user", *shown],
        capture_output=True,
        text=True,
        env=make_systemctl_environment(),
    )
    facts = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    running = facts.get("ActiveState") in ("active", "activating")
    return {
        "running": running,
        "pid": int(facts.get("MainPID") or 0) or None,
        "code": None if running else int(facts.get("ExecMainStatus") or 0),
        "started": locate_unit(request["unit"]).exists(),
        "last": "",
    }


def locate_unit(name: str) -> Path:
    """Return the path of heterophony's systemd unit on the board."""
    return Path.home() / ".config/systemd/user" / f"{name}.service"


def run_systemctl(*words: str, check: bool = True) -> int:
    """Run ``systemctl --user`` with these words; return its exit code."""
    if shutil.which("systemctl") is None:
        raise ProblemError("systemd = true, but the board has no systemctl")
    done = subprocess.run(
        ["systemctl", "--user", *words],
        capture_output=True,
        text=True,
        env=make_systemctl_environment(),
    )
    if check and done.returncode:
        raise ProblemError(f"systemctl --user {' '.join(words)}: {done.stderr.strip()[:200]}")
    return done.returncode


def make_systemctl_environment() -> dict[str, str]:
    """Return the environment variables for systemctl, with XDG_RUNTIME_DIR, which it needs over SSH."""
    return {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ}


RECORD, EXIT_CODE, LOG = "board.pid", "board.exit", "board.log"
STOP_SECONDS = 10.0
LOG_LIMIT = 32 << 20  # a longer log is replaced
# the shell outlives the process and records its exit code
WAIT_AND_RECORD = 'file=$1; shift; "$@"; echo $? > "$file"'


def start_process(request: dict[str, Any]) -> dict[str, Any]:
    """Start heterophony in the background, unless it is already running with the same arguments.

    If it is running with other arguments, it is stopped first.
    """
    root = Path.home() / request["folder"]
    words = [str(locate_python(root)), "-P", "-m", "heterophony", *request["words"]]
    record = find_running(root)
    if record and record["words"] == words:
        return {"changed": False}
    if record:
        kill_process(record)
    (root / EXIT_CODE).unlink(missing_ok=True)
    if (root / LOG).exists() and (root / LOG).stat().st_size > LOG_LIMIT:
        (root / LOG).unlink()
    nice = ["nice", "-n", str(request["nice"])] if request["nice"] else []
    shell = ["/bin/sh", "-c", WAIT_AND_RECORD, "board", str(root / EXIT_CODE), *nice, *words]
    with open(root / LOG, "ab") as log:
        process = subprocess.Popen(
            shell,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=root,
            env=make_environment(root),
            start_new_session=True,
        )
    content = {"pid": process.pid, "born": read_process_start(process.pid), "words": words}
    (root / RECORD).write_text(json.dumps(content))
    return {"changed": True}


def find_running(root: Path) -> dict[str, Any] | None:
    """Return the record of heterophony's process on this board; None if it is not running.

    The start time is compared, too, because process ids are reused.
    """
    try:
        record: dict[str, Any] = json.loads((root / RECORD).read_text())
        # a group of 0 or 1 would be this one, or all processes of the board
        same = record["pid"] > 1 and read_process_start(record["pid"]) == record["born"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if same else None


def read_process_start(pid: int) -> str:
    """Return when a process started: the boot id and the clock ticks since that boot, as text."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError("it has exited")
    return f"{boot} {fields[19]}"


def stop_process(request: dict[str, Any]) -> dict[str, Any]:
    """Stop heterophony on this board if it is running."""
    record = find_running(Path.home() / request["folder"])
    if record is None:
        return {"changed": False}
    kill_process(record)
    return {"changed": True}


def kill_process(record: dict[str, Any]) -> None:
    """End heterophony's process group on this board by SIGTERM or, after some time, by SIGKILL."""
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.killpg(record["pid"], number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not group_exists(record["pid"]):
                return
            time.sleep(0.05)
    raise ProblemError(f"process {record['pid']} does not exit")


def group_exists(group: int) -> bool:
    """Return True if any process of a process group is alive; zombies do not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[2] == str(group) and fields[0] not in "ZX":
                return True
    return False


def read_process_status(request: dict[str, Any]) -> dict[str, Any]:
    """Return whether heterophony is running on this board, its exit code and its last line of output."""
    root = Path.home() / request["folder"]
    record = find_running(root)
    code = None
    if record is None:
        with suppress(OSError, ValueError):
            code = int((root / EXIT_CODE).read_text())
    return {
        "running": record is not None,
        "pid": record["pid"] if record else None,
        "code": code,
        "started": (root / RECORD).exists(),
        "last": read_last_line(root / LOG),
    }


def read_last_line(path: Path) -> str:
    """Return the last line of a log that is not blank; an empty string if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


# The entry: read a request from the input, run it, print the answer as JSON -----------------------

ACTIONS = {
    "facts": environment.read_facts,
    "missing": environment.list_missing,
    "receive": environment.receive_files,
    "read": environment.read_files,
    "environment": environment.describe_environment,
    "versions": environment.list_versions,
    "install": environment.install,
    "enrolment": environment.describe_enrolment,
    "change-address": environment.change_address,
    "start": start_process,
    "stop": stop_process,
    "status": read_process_status,
    "start-unit": start_unit,
    "stop-unit": stop_unit,
    "unit-status": read_unit_status,
}


def main() -> None:
    """Run the action that ``fleet`` requests; print ``{"answer": …}`` or ``{"problem": …}`` in one line."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    try:
        answer: dict[str, Any] = {"answer": ACTIONS[request["action"]](request)}
    except ProblemError as problem:
        answer = {"problem": str(problem)}
    except OSError as error:
        answer = {"problem": describe_os_error(error)}
    except Exception as error:  # report any error in a line that names the board
        answer = {"problem": f"{request['action']} failed: {error!r}"}
    print(json.dumps(answer))
