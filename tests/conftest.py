"""One torch thread, as in every engine: what tests compute by hand then has the same bits.

And one fork server for all, which has imported what processes of tests need: they start at once.
"""

import os
import signal

import pytest
import torch

from heterophony.core import status_line
from heterophony.engines.child_processes import start_fork_server

torch.set_num_threads(1)
status_line.LOG_SECONDS = (
    3600.0  # on a slow machine, no line comes between those that a test expects
)

# Tests kill processes, never the machine: what the system has not yet written is not lost. Waiting
# for the disk after every file takes longer than many of the runs.
os.fsync = lambda fd: None

# Who is started in the background by a shell ignores Ctrl-C, and so would every command that a
# test starts and then interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    conducts = not hasattr(config, "workerinput") and config.getoption("numprocesses", None)
    if not conducts:  # who only hands tests out starts nothing
        ours = (f"heterophony.{part}" for part in ("cli.runs", "boards.testbed", "studies.run"))
        start_fork_server(*ours, "psutil", "pytest", "sklearn.datasets")
