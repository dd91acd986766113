"""The virtual environment on a board: made from the wheels that were copied there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from .problems import ProblemError

MARKER = "installed.json"  # what was installed last, in the folder of the environment


def describe_environment(request: dict[str, Any]) -> dict[str, Any]:
    """Return what ``install`` wrote down last; an empty text if the environment is not there."""
    root = Path.home() / request["folder"]
    return {"marker": read_marker(root) if locate_python(root).exists() else ""}


def list_versions(request: dict[str, Any]) -> dict[str, Any]:
    """Return the packages of the environment that this Python is of."""
    from importlib.metadata import distributions  # slow to import, and most calls do not need it

    found = {d.metadata["Name"] or "": d.version for d in distributions()}
    return {"versions": {re.sub("[-_.]+", "-", name).lower(): v for name, v in found.items()}}


def locate_python(root: Path) -> Path:
    """Return the interpreter that runs the device: this one, if it is of an environment."""
    return Path(sys.executable) if sys.prefix != sys.base_prefix else root / "venv/bin/python"


def read_marker(root: Path) -> str:
    try:
        return str(json.loads((root / MARKER).read_text())["digest"])
    except (OSError, ValueError, KeyError):
        return ""


def install(request: dict[str, Any]) -> dict[str, Any]:
    """Make the environment from the wheels in the folder, or unpack our code beside a given one."""
    root = Path.home() / request["folder"]
    (root / MARKER).unlink(missing_ok=True)
    if sys.prefix != sys.base_prefix:
        unpack_code(root, request["own_wheel"])
    else:
        install_wheels(root, request["own_wheel"], request["requirements"])
    python = locate_python(root)
    # wheels that were just installed may lack a library of the system: try the largest
    more = "" if sys.prefix != sys.base_prefix else "import torch; "
    check = [str(python), "-P", "-c", f"{more}import heterophony; print(heterophony.__version__)"]
    done = subprocess.run(
        check, capture_output=True, text=True, cwd=root, env=make_environment(root)
    )
    if done.returncode:
        raise ProblemError(f"heterophony cannot be imported there: {last_line(done.stderr)}")
    (root / MARKER).write_text(json.dumps({"digest": request["digest"]}))
    return {"version": done.stdout.strip()}


def unpack_code(root: Path, wheel: str) -> None:
    """Unpack our wheel, which is pure Python, where only the device's process looks for it."""
    import zipfile  # slow to import, and most calls do not need it

    shutil.rmtree(root / "code", ignore_errors=True)
    with zipfile.ZipFile(root / "wheels" / wheel) as archive:
        archive.extractall(root / "code")


def install_wheels(root: Path, wheel: str, requirements: list[str]) -> None:
    """Install with the pip that was copied: Debian's Python may have none, and no ensurepip."""
    wheels = root / "wheels"
    if not (root / "venv/bin/python").exists():
        run([sys.executable, "-P", "-m", "venv", "--without-pip", str(root / "venv")], "venv")
    pips = sorted(wheels.glob("pip-*.whl"))
    if not pips:
        raise ProblemError("there is no wheel of pip among those copied; run: fleet wheels")
    pip = [str(root / "venv/bin/python"), str(pips[-1] / "pip"), "--isolated", "install"]
    offline = ["--no-index", "--find-links", str(wheels), "--no-input", "--quiet"]
    run([*pip, *offline, *requirements], "pip")
    run([*pip, *offline, "--no-deps", "--force-reinstall", str(wheels / wheel)], "pip")


def run(words: list[str], what: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise ProblemError(f"{what} failed: {last_line(done.stderr or done.stdout)}")


def last_line(text: str) -> str:
    """Return the line that says most: pip's errors come before its hints."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "OSError", "error"))]
    return (errors or lines or ["it printed nothing"])[-1][:300]


def make_environment(root: Path) -> dict[str, str]:
    """Return the variables of the device's process."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return {**kept, "PYTHONPATH": str(root / "code"), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
