"""Measure the peak memory of a command and all its processes, as their proportional share.

python benchmarks/memory.py heterophony run -c data.name=fmnist -c data.clients=100 …
"""

from __future__ import annotations

import subprocess
import sys
import time

import psutil


def measure_memory(process: psutil.Process) -> int:
    """Return its bytes; pages used by several processes are divided among them."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def main() -> None:
    command = subprocess.Popen(sys.argv[1:])
    root, peak = psutil.Process(command.pid), 0
    while command.poll() is None:
        try:
            tree = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        peak = max(peak, sum(measure_memory(p) for p in tree))
        time.sleep(0.5)
    print(f"peak {peak / 1e6:.0f} MB", file=sys.stderr)
    raise SystemExit(command.wait())


if __name__ == "__main__":
    main()
