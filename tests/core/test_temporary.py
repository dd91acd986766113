"""Temporary folders of processes that were killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import heterophony
from heterophony.core import temporary

SOURCE = Path(heterophony.__file__).parent

PROGRAMS = {
    "unpacking an archive": "from heterophony.core.temporary import create_temporary_folder as make; make()",
    "starting a pool": "from heterophony.engines.child_processes import ensure_fork_server as make; make()",
}
# beside core/temporary.py: sockets of ssh and Ray need short names; Ray's folders have locks of their own
OTHERS = {"boards/fleet/ssh.py", "engines/ray/remote_job.py", "boards/fleet/steps.py"}


@pytest.fixture
def folder(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # sockets need short paths
        monkeypatch.setattr(temporary.tempfile, "tempdir", short)
        temporary._remove_abandoned_folders.cache_clear()
        yield Path(short).resolve()
        temporary._remove_abandoned_folders.cache_clear()


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_what_a_killed_process_leaves_is_removed_by_the_next_start(program, folder):
    killed = f"{program}; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", killed], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [re.sub(r"\w{8}$", "", p.name) for p in folder.iterdir()] == [temporary.PREFIX]
    with temporary.temporary_folder() as mine:
        assert list(folder.iterdir()) == [mine]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("before", ["open", "flock"])
def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(before, folder, monkeypatch):
    owner = {"open": temporary.os, "flock": temporary.fcntl}[before]
    call, removed = getattr(owner, before), []

    def remove_first(*given, **how):
        if not removed:
            removed.extend(folder.iterdir())
            removed[0].rmdir()
        return call(*given, **how)

    monkeypatch.setattr(owner, before, remove_first)
    with temporary.temporary_folder() as mine:
        assert list(folder.iterdir()) == [mine]
        assert removed[0] != mine


def test_folders_in_use_and_folders_of_others_stay(folder):
    with temporary.temporary_folder() as used:
        (folder / "heterophony-results").mkdir()
        temporary._remove_abandoned_folders.cache_clear()
        with temporary.temporary_folder() as mine:
            assert set(folder.iterdir()) == {used, mine, folder / "heterophony-results"}


def test_sockets_are_in_a_short_folder_if_that_of_the_user_is_long(folder, monkeypatch):
    long = folder / ("a" * 80)
    long.mkdir()
    monkeypatch.setattr(temporary.tempfile, "tempdir", str(long))
    assert temporary.create_temporary_folder().parent == long
    made = temporary.create_temporary_folder(socket="listener-12345678")
    assert made.parent == temporary.SHORT_PARENT
    temporary.remove_temporary_folder(made)
    assert not made.exists()


def test_a_link_is_not_followed(folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "file").touch()
    (folder / f"{temporary.PREFIX}12345678").symlink_to(folder / "mine")
    with temporary.temporary_folder():
        assert (folder / "mine" / "file").exists()


def test_every_temporary_folder_is_made_in_one_place():
    made = re.compile(r"tempfile\.(mkdtemp|TemporaryDirectory)")
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if made.search(path.read_text())
    }
    assert found == {"core/temporary.py", *OTHERS}
