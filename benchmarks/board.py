"""Measure the start of a board: seconds and memory of a new process up to its first message.

python benchmarks/board.py [-c key=value …]

Runs a broker, a server and one board with one client. The board is a new Python process that
exits when it has introduced itself. Memory is its resident set. It lists the packages that a board
should not need but has loaded.
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

START = time.perf_counter()  # before anything of ours is imported
UNWANTED = ("ray", "matplotlib", "sklearn", "scipy", "pandas", "rich", "typer", "cryptography")


def measure_resident_mb() -> float:
    """Return the resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def start_board(file: Path, folder: Path) -> None:
    """Run a board in the new process until it has introduced itself."""
    from heterophony.boards.board import BoardRun
    from heterophony.boards.broker.enrolment import read_enrolment
    from heterophony.boards.protocol.board_session import BoardSession
    from heterophony.boards.testbed import RUN_NAME

    measured = {"import_seconds": time.perf_counter() - START, "import_mb": measure_resident_mb()}

    def report(*_: object) -> None:
        measured.update(
            greeting_seconds=time.perf_counter() - START, greeting_mb=measure_resident_mb()
        )
        loaded = [name for name in UNWANTED if name in sys.modules]
        print(json.dumps({**measured, "loaded": loaded, "modules": len(sys.modules)}), flush=True)
        os._exit(0)

    BoardSession.introduce = report  # type: ignore[method-assign, assignment]
    BoardRun(read_enrolment(file), RUN_NAME, folder, ["0"], print).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", dest="pairs", action="append", default=[])
    parser.add_argument("--greet", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.greet:
        return start_board(*options.greet)

    from heterophony.boards.testbed import (
        PrivateBroker,
        TestbedProcess,
        run_server,
        start_testbed_fork_server,
    )
    from heterophony.config.reading import read_config
    from heterophony.runs.folder import RunFolder

    start_testbed_fork_server()
    with tempfile.TemporaryDirectory() as name:
        root, folder = Path(name), RunFolder(Path(name) / "run")
        folder.create(read_config(None, options.pairs).to_toml())
        broker = PrivateBroker(root / "broker")
        try:
            server = TestbedProcess(
                "the server", run_server, folder.path, broker.read_server_enrolment()
            )
            broker.enrol_board("board")
            words = ["--greet", str(broker.broker.folder / "board.toml"), str(root / "board")]
            subprocess.run([sys.executable, __file__, *words], check=True)
            server.kill()
        finally:
            broker.stop()
            folder.close()
    return None


if __name__ == "__main__":
    main()
