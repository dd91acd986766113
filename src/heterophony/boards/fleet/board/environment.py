"""Actions on a board's files: facts, copies, the Python environment and the enrolment."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ProblemError(Exception):
    """Raised for a problem on the board; the message is one line."""


def describe_os_error(error: OSError) -> str:
    """Describe a failed file operation on the board in words."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in FULL_DISK:
        return f"its disk is full{where}"
    return f"{error.strerror or error}{where}"


def read_facts(request: dict[str, Any]) -> dict[str, Any]:
    """Return the facts from which ``fleet`` decides whether the board can take part."""
    home = Path.home()
    folder = home / request["folder"]
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "host": socket.gethostname(),
        "python": list(sys.version_info[:3]),
        "implementation": platform.python_implementation(),
        "in_environment": sys.prefix != sys.base_prefix,
        "libc": list(platform.libc_ver()),
        "cores": len(os.sched_getaffinity(0)),
        **read_memory(),
        "disk_free": shutil.disk_usage(existing).free,
        "writable": os.access(existing, os.W_OK),
        "clock": time.time(),
        "temperature": read_temperature(),
        "cuda": Path("/dev/nvidia0").exists() or Path("/dev/nvhost-gpu").exists(),
        "reaches": can_connect(request["address"], request["port"]) if request["port"] else None,
    }


def read_memory() -> dict[str, int]:
    """Return the board's total and available memory in bytes."""
    found = {"MemTotal": 0, "MemAvailable": 0}
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in found:
            found[key] = int(value.split()[0]) * 1024
    return {"memory": found["MemTotal"], "memory_free": found["MemAvailable"]}


def read_temperature() -> float | None:
    """Return the highest temperature of the board's zones in °C; None if it has no sensor."""
    found = []
    for zone in Path("/sys/class/thermal").glob("thermal_zone*/temp"):
        try:
            found.append(int(zone.read_text()) / 1000)
        except (OSError, ValueError):
            continue
    return max(found, default=None)


def can_connect(address: str, port: int) -> bool:
    """Return True if this board can connect to the broker's port."""
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError:
        return False
    return True


PIECE = 1 << 20
SPARE_BYTES = 16 << 20  # disk space kept free


def list_missing(request: dict[str, Any]) -> dict[str, Any]:
    """Return the files to copy that are missing or different on the board, and the number of other files there."""
    root = Path.home() / request["folder"]
    wanted = request["files"]
    return {
        "missing": [p for p, sha256 in wanted.items() if digest_file(root / p) != sha256],
        "others": len(find_other_files(root, request["only"], list(wanted))),
    }


def digest_file(path: Path) -> str:
    """Return the sha256 of a regular file; an empty string if there is none."""
    if path.is_symlink() or not path.is_file():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def receive_files(request: dict[str, Any]) -> dict[str, Any]:
    """Write the files whose contents follow on standard input, one after another.

    In the folders of ``only``, files that are not in ``keep`` are deleted first.
    """
    root = Path.home() / request["folder"]
    root.mkdir(parents=True, exist_ok=True)
    others = find_other_files(root, request["only"], request["keep"])
    for path in others:
        path.unlink()
    total = sum(entry["size"] for entry in request["files"])
    if (free := shutil.disk_usage(root).free) < total + SPARE_BYTES:
        raise ProblemError(
            f"its disk is full: {total / 1e6:.0f} MB to copy, {free / 1e6:.0f} MB free in {root}"
        )
    for entry in request["files"]:
        receive_file(root / entry["path"], entry["size"], entry["sha256"], entry["mode"])
    return {"received": len(request["files"]), "deleted": len(others)}


def find_other_files(root: Path, folders: list[str], keep: list[str]) -> list[Path]:
    """Return the files in these folders of the board that are not in ``keep``."""
    found = [path for folder in folders for path in sorted((root / folder).glob("*"))]
    return [p for p in found if p.is_file() and str(p.relative_to(root)) not in keep]


def receive_file(path: Path, size: int, sha256: str, mode: int) -> None:
    """Write a copied file under a temporary name, check its sha256 and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.new")
    digest = hashlib.sha256()
    try:
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            while size:
                piece = sys.stdin.buffer.read(min(size, PIECE))
                if not piece:
                    raise ProblemError("the connection broke while files were copied")
                file.write(piece)
                digest.update(piece)
                size -= len(piece)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != sha256:
            raise ProblemError(f"{path.name} arrived damaged")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def read_files(request: dict[str, Any]) -> dict[str, Any]:
    """Return the last part of each of these files on the board, as text; leave out files that do not exist."""
    root = Path.home() / request["folder"]
    found = {}
    for name in request["files"]:
        path = root / name
        if not path.is_file():
            continue
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - request["limit"]))
            found[name] = file.read().decode(errors="replace")
    return {"files": found}


FILE = "enrolment.toml"


def describe_enrolment(request: dict[str, Any]) -> dict[str, Any]:
    """Return the name, broker address and certificate in the board's enrolment, without the key."""
    path = Path.home() / request["folder"] / FILE
    try:
        content = tomllib.loads(path.read_text())
        return {k: content[k] for k in ("name", "address", "port", "certificate")}
    except (OSError, ValueError, KeyError):
        return {"name": "", "address": "", "port": 0, "certificate": ""}


def change_address(request: dict[str, Any]) -> dict[str, Any]:
    """Replace the broker's address in the board's enrolment; the key stays on the board."""
    path = Path.home() / request["folder"] / FILE
    text = re.sub(r"(?m)^port = .*$", f"port = {int(request['port'])}", path.read_text())
    address = request["address"].replace("\\", "").replace('"', "")
    text = re.sub(r"(?m)^address = .*$", f'address = "{address}"', text)
    new = path.with_name(f".{FILE}.{secrets.token_hex(8)}.new")
    with open(new, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    new.replace(path)
    return {}


MARKER = "installed.json"  # record of the last installation, in the environment's folder


def describe_environment(request: dict[str, Any]) -> dict[str, Any]:
    """Return the digest of the last installation; an empty string if the environment is missing."""
    root = Path.home() / request["folder"]
    return {"marker": read_marker(root) if locate_python(root).exists() else ""}


def list_versions(request: dict[str, Any]) -> dict[str, Any]:
    """Return the versions of the packages in the environment of the board's Python."""
    from importlib.metadata import distributions  # slow to import, and most calls do not need it

    found = {d.metadata["Name"] or "": d.version for d in distributions()}
    return {"versions": {re.sub("[-_.]+", "-", name).lower(): v for name, v in found.items()}}


def locate_python(root: Path) -> Path:
    """Return the board's Python for heterophony: this one if it is in a virtual environment."""
    return Path(sys.executable) if sys.prefix != sys.base_prefix else root / "venv/bin/python"


def read_marker(root: Path) -> str:
    """Return the digest in the record of the last installation; an empty string if there is none."""
    try:
        return str(json.loads((root / MARKER).read_text())["digest"])
    except (OSError, ValueError, KeyError):
        return ""


def install(request: dict[str, Any]) -> dict[str, Any]:
    """Install heterophony from the copied wheels, or only its code next to an existing environment."""
    root = Path.home() / request["folder"]
    (root / MARKER).unlink(missing_ok=True)
    if sys.prefix != sys.base_prefix:
        unpack_code(root, request["own_wheel"])
    else:
        install_wheels(root, request["own_wheel"], request["requirements"])
    python = locate_python(root)
    # packages just installed from wheels may need a missing system library: try to import the largest
    more = "" if sys.prefix != sys.base_prefix else "import torch; "
    check = [str(python), "-P", "-c", f"{more}import heterophony; print(heterophony.__version__)"]
    done = subprocess.run(
        check, capture_output=True, text=True, cwd=root, env=make_environment(root)
    )
    if done.returncode:
        raise ProblemError(f"heterophony cannot be imported there: {find_error_line(done.stderr)}")
    (root / MARKER).write_text(json.dumps({"digest": request["digest"]}))
    return {"version": done.stdout.strip()}


def unpack_code(root: Path, wheel: str) -> None:
    """Unpack the wheel of heterophony into a folder that only its own process imports from."""
    import zipfile  # slow to import, and most calls do not need it

    shutil.rmtree(root / "code", ignore_errors=True)
    with zipfile.ZipFile(root / "wheels" / wheel) as archive:
        archive.extractall(root / "code")


def install_wheels(root: Path, wheel: str, requirements: list[str]) -> None:
    """Install the copied wheels with the copied pip, because Debian's Python may come without pip."""
    wheels = root / "wheels"
    if not (root / "venv/bin/python").exists():
        run_install_command(
            [sys.executable, "-P", "-m", "venv", "--without-pip", str(root / "venv")], "venv"
        )
    pips = sorted(wheels.glob("pip-*.whl"))
    if not pips:
        raise ProblemError("the copied wheels do not include pip; run: fleet wheels")
    pip = [str(root / "venv/bin/python"), str(pips[-1] / "pip"), "--isolated", "install"]
    offline = ["--no-index", "--find-links", str(wheels), "--no-input", "--quiet"]
    run_install_command([*pip, *offline, *requirements], "pip")
    run_install_command(
        [*pip, *offline, "--no-deps", "--force-reinstall", str(wheels / wheel)], "pip"
    )


def run_install_command(words: list[str], what: str) -> None:
    """Run a command of the installation; raise ProblemError if it fails."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise ProblemError(f"{what} failed: {find_error_line(done.stderr or done.stdout)}")


def find_error_line(text: str) -> str:
    """Return the last error in a command's output; pip prints hints after its errors."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "OSError", "error"))]
    return (errors or lines or ["it printed nothing"])[-1][:300]


def make_environment(root: Path) -> dict[str, str]:
    """Return the environment variables of heterophony's process on the board."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return {**kept, "PYTHONPATH": str(root / "code"), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
