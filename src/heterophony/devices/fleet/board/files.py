"""Receive files whose content differs from what the board has, and delete what is not wanted."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

from .problems import ProblemError

PIECE = 1 << 20
SPARE_BYTES = 16 << 20  # that must stay free


def list_missing(request: dict[str, Any]) -> dict[str, Any]:
    """Return which of the files are missing or differ, and how many others are there."""
    root = Path.home() / request["folder"]
    wanted = request["files"]
    return {
        "missing": [p for p, sha256 in wanted.items() if digest_file(root / p) != sha256],
        "others": len(find_others(root, request["only"], list(wanted))),
    }


def digest_file(path: Path) -> str:
    """Return the sha256 of a regular file; an empty string if there is none."""
    if path.is_symlink() or not path.is_file():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def receive_files(request: dict[str, Any]) -> dict[str, Any]:
    """Write the files that follow on the input: one after the other, each with its size.

    In folders of ``only``, files that are not named are deleted first.
    """
    root = Path.home() / request["folder"]
    root.mkdir(parents=True, exist_ok=True)
    others = find_others(root, request["only"], request["keep"])
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


def find_others(root: Path, folders: list[str], keep: list[str]) -> list[Path]:
    """Return the files in these folders that are not to be kept."""
    found = [path for folder in folders for path in sorted((root / folder).glob("*"))]
    return [p for p in found if p.is_file() and str(p.relative_to(root)) not in keep]


def receive_file(path: Path, size: int, sha256: str, mode: int) -> None:
    """Write one file under another name, check it, and rename it."""
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
    """Return the last bytes of these files as text; what does not exist is left out."""
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
