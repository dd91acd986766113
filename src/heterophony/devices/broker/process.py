"""Mosquitto in the background: started, told by signals, ended; its lock says whether it lives."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ...core.errors import BrokerError, BusyError, ConfigError
from ...core.files import disk, for_owner
from .enrolment import Enrolment
from .mosquitto import CONF, LOG, PID

LOCK = "lock"
PATIENCE = 15.0  # seconds for a start or an end, on slow cards and busy machines
PAUSE = 0.02  # seconds between two looks


def program() -> str:
    """Mosquitto's, which Debian puts where only root looks."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin"
    if found := shutil.which("mosquitto", path=path):
        return found
    raise ConfigError("Mosquitto is not installed; get it with: sudo apt-get install mosquitto")


def running(folder: Path) -> int | None:
    """The id of the process that serves this folder, None if there is none.

    Mosquitto inherits a lock that ends with it, so a file with an old id misleads nobody.
    """
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return identified(folder)
    finally:
        os.close(lock)


def identified(folder: Path) -> int:
    """The id in the file, if that process works in the folder."""
    try:
        number = int((folder / PID).read_text())
        if Path(f"/proc/{number}/cwd").samefile(folder):
            return number
    except (OSError, ValueError):
        pass
    raise in_between(folder)


def in_between(folder: Path) -> BusyError:
    return BusyError(f"the broker in {folder} is just being started or ended; try again")


@contextmanager
def claimed(folder: Path) -> Iterator[IO[str]]:
    """Nobody else can start Mosquitto here meanwhile; the lock is for ``start``."""
    with disk(folder):
        lock = open(folder / LOCK, "a", opener=for_owner)  # noqa: SIM115
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_between(folder) from None
        yield lock


def start(folder: Path, lock: IO[str], known_as: Enrolment) -> int:
    """Mosquitto in the background, answering; its process id."""
    mosquitto, log = program(), folder / LOG
    with disk(log), open(log, "a", opener=for_owner) as out:
        before = out.tell()
        (folder / PID).unlink(missing_ok=True)
        subprocess.run(
            [mosquitto, "-d", "-c", CONF],
            cwd=folder,
            umask=0o077,
            pass_fds=[lock.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            check=False,  # how it went is seen by the lock, and told by the log
        )
    lock.close()  # now it is Mosquitto's alone
    return answering(folder, known_as, before)


def answering(folder: Path, known_as: Enrolment, before: int) -> int:
    """Wait until it shakes hands; where it ends instead, its log beyond ``before`` says why."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            number = running(folder)
        except BusyError:  # it has not written its id yet
            number = 0
        if number is None:
            raise BrokerError(f"Mosquitto does not start: {complaint(folder / LOG, before)}")
        if number and reached(known_as):
            return number
        time.sleep(PAUSE)
    raise BrokerError(f"Mosquitto does not answer; {folder / LOG} may say why")


def reached(known_as: Enrolment) -> bool:
    """Do both sides believe each other? Nobody signs in: that would end the session of a server."""
    trust = known_as.context()
    trust.maximum_version = ssl.TLSVersion.TLSv1_2  # in 1.3 the client never hears the verdict
    try:
        with (
            socket.create_connection((known_as.address, known_as.port), PATIENCE) as plain,
            trust.wrap_socket(plain, server_hostname=known_as.address),
        ):
            return True
    except OSError:
        return False


def complaint(log: Path, before: int) -> str:
    """The first error it wrote since; others follow from it."""
    lines = log.read_bytes()[before:].decode(errors="replace").splitlines()
    errors = (line.partition("Error: ")[2] for line in lines)
    return next((said for said in errors if said), f"see {log}")


def reload(folder: Path) -> None:
    """Let it read rights and revocations again, if there is one."""
    if number := running(folder):
        os.kill(number, signal.SIGHUP)


def stop(folder: Path) -> int | None:
    """End it in order, everything saved; its process id, None if there was none."""
    number = running(folder)
    if number is None:
        return None
    watched = os.pidfd_open(number)
    try:
        signal.pidfd_send_signal(watched, signal.SIGTERM)
        if not select.select([watched], [], [], PATIENCE)[0]:
            raise BrokerError(f"Mosquitto, process {number}, does not end")
    finally:
        os.close(watched)
    return number
