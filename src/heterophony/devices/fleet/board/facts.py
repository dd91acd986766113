"""Facts about a board: architecture, Python, glibc, memory, disk, clock, sensors."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any


def read_facts(request: dict[str, Any]) -> dict[str, Any]:
    """Return what decides whether the board can take part."""
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
    """Return total and available bytes."""
    found = {"MemTotal": 0, "MemAvailable": 0}
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in found:
            found[key] = int(value.split()[0]) * 1024
    return {"memory": found["MemTotal"], "memory_free": found["MemAvailable"]}


def read_temperature() -> float | None:
    """Return the highest temperature of the board's zones in °C; None if it tells none."""
    found = []
    for zone in Path("/sys/class/thermal").glob("thermal_zone*/temp"):
        try:
            found.append(int(zone.read_text()) / 1000)
        except (OSError, ValueError):
            continue
    return max(found, default=None)


def can_connect(address: str, port: int) -> bool:
    """Tell whether the broker's port can be reached from here."""
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError:
        return False
    return True
