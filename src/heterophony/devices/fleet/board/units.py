"""The device as a systemd unit of the user: it comes back after a power cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .environment import locate_python
from .problems import ProblemError


def start_unit(request: dict[str, Any]) -> dict[str, Any]:
    """Write the unit and start it; do nothing if it runs with the same text."""
    root = Path.home() / request["folder"]
    path = locate_unit(request["unit"])
    text = (
        request["text"].replace("@PYTHON@", str(locate_python(root))).replace("@ROOT@", str(root))
    )
    same = path.is_file() and path.read_text() == text
    if same and control("is-active", "--quiet", path.name, check=False) == 0:
        return {"changed": False}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    control("daemon-reload")
    control("enable", "--quiet", path.name)
    control("restart", path.name)
    if shutil.which("loginctl"):  # else it ends with our SSH session
        subprocess.run(["loginctl", "enable-linger"], capture_output=True, check=False)
    return {"changed": True}


def stop_unit(request: dict[str, Any]) -> dict[str, Any]:
    path = locate_unit(request["unit"])
    if not path.exists():
        return {"changed": False}
    control("disable", "--now", "--quiet", path.name)
    path.unlink()
    return {"changed": True}


def read_unit_status(request: dict[str, Any]) -> dict[str, Any]:
    """Return the same facts as for a plain process."""
    name = locate_unit(request["unit"]).name
    shown = ["show", name, "--property=ActiveState,MainPID,ExecMainStatus"]
    done = subprocess.run(
        ["systemctl", "--user", *shown], capture_output=True, text=True, env=env()
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
    return Path.home() / ".config/systemd/user" / f"{name}.service"


def control(*words: str, check: bool = True) -> int:
    if shutil.which("systemctl") is None:
        raise ProblemError("systemd = true, but the board has no systemctl")
    done = subprocess.run(
        ["systemctl", "--user", *words], capture_output=True, text=True, env=env()
    )
    if check and done.returncode:
        raise ProblemError(f"systemctl --user {' '.join(words)}: {done.stderr.strip()[:200]}")
    return done.returncode


def env() -> dict[str, str]:
    """Return our variables with the one by which systemctl finds the user's systemd over SSH."""
    return {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ}
