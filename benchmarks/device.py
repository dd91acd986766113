"""What a device needs before it works: seconds and memory of a fresh process, up to its greeting.

python benchmarks/device.py [-c key=value …]

A broker, a server and one device with one client; the device is a Python of its own, told to stop
once it has introduced itself. Memory is its resident set; which packages it loaded is listed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BEGUN = time.perf_counter()  # before anything of ours is imported
UNWANTED = ("ray", "matplotlib", "sklearn", "scipy", "pandas", "rich", "typer", "cryptography")


def resident() -> float:
    """MB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def greet(file: Path, folder: Path) -> None:
    """In the fresh process: a device up to its introduction."""
    from heterophony.devices.broker.enrolment import read_enrolment
    from heterophony.devices.device import Device
    from heterophony.devices.protocol.device_session import DeviceSession
    from heterophony.devices.testbed.processes import RUN_NAME

    told = {"import_seconds": time.perf_counter() - BEGUN, "import_mb": resident()}

    def introduced(*_: object) -> None:
        told.update(greeting_seconds=time.perf_counter() - BEGUN, greeting_mb=resident())
        loaded = [name for name in UNWANTED if name in sys.modules]
        print(json.dumps({**told, "loaded": loaded, "modules": len(sys.modules)}), flush=True)
        os._exit(0)

    DeviceSession.introduce = introduced  # type: ignore[method-assign, assignment]
    Device(read_enrolment(file), RUN_NAME, folder, ["0"], print).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", dest="pairs", action="append", default=[])
    parser.add_argument("--greet", nargs=2, type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.greet:
        return greet(*asked.greet)

    from heterophony.config.reading import read_config
    from heterophony.devices.testbed.private_broker import PrivateBroker
    from heterophony.devices.testbed.processes import TestbedProcess, run_server
    from heterophony.devices.testbed.testbed import start_testbed_fork_server
    from heterophony.run.store import RunFolder

    start_testbed_fork_server()
    with tempfile.TemporaryDirectory() as name:
        home, folder = Path(name), RunFolder(Path(name) / "run")
        folder.create(read_config(None, asked.pairs).to_toml())
        broker = PrivateBroker(home / "broker")
        try:
            server = TestbedProcess(
                "the server", run_server, folder.path, broker.read_server_enrolment()
            )
            broker.enrol_device("device")
            words = ["--greet", str(broker.broker.folder / "device.toml"), str(home / "device")]
            subprocess.run([sys.executable, __file__, *words], check=True)
            server.kill()
        finally:
            broker.stop()
            folder.close()
    return None


if __name__ == "__main__":
    main()
