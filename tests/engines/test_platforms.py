"""Other systems than Linux: both engines run without what only Linux has, with the same bits."""

from __future__ import annotations

import subprocess
import sys

# pretends after other packages are loaded, and before anything of ours is
PRETEND = """
import os, sys, sysconfig
import sklearn.datasets, torch, multiprocessing.connection
sysconfig.get_config_vars()
if __name__ == "__main__":
    sys.platform = "darwin"
    del os.sched_getaffinity
"""
BOTH_ENGINES = """
    import heterophony as hp
    from heterophony.engines import child_processes
    from heterophony.engines.base import count_cores
    assert count_cores() == os.cpu_count()
    assert child_processes.CONTEXT.get_start_method() == "spawn"
    federation = hp.federate("digits", clients=2, seed=0)
    kind = dict(rounds=1, participation=1.0, training=hp.Training(epochs=1), progress=False)
    runs = [hp.run("fedper", federation, engine=e, workers=1, **kind) for e in ("serial", "pool")]
    print(*(run.model_sha256 for run in runs))
"""


def test_serial_and_pool_run_where_linux_only_calls_are_missing(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(PRETEND + BOTH_ENGINES)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    serial, pool = done.stdout.split()
    assert len(serial) == 64
    assert serial == pool


def test_windows_is_told_to_use_wsl_in_one_line():
    text = "import pathlib, re, sys; sys.platform = 'win32'; import heterophony"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: heterophony runs on Linux and macOS; on Windows, use it in WSL"
    )
