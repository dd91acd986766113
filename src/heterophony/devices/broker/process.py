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
from ...core.files import open_for_owner_only, translate_disk_errors
from .enrolment import Enrolment
from .mosquitto import CONFIG_FILE, LOG_FILE, PID_FILE

LOCK_FILE = "lock"
TIMEOUT_SECONDS = 15.0  # seconds for a start or an end, on slow cards and busy machines
POLL_SECONDS = 0.02  # seconds between two looks


def find_mosquitto() -> str:
    """Mosquitto's, which Debian puts where only root looks."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin"
    if found := shutil.which("mosquitto", path=path):
        return found
    raise ConfigError("Mosquitto is not installed; get it with: sudo apt-get install mosquitto")


def find_running_pid(folder: Path) -> int | None:
    """The id of the process that serves this folder, None if there is none.

    Mosquitto inherits a lock that ends with it, so a file with an old id misleads nobody.
    """
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return read_pid(folder)
    finally:
        os.close(lock)


def read_pid(folder: Path) -> int:
    """The id in the file, if that process works in the folder."""
    try:
        number = int((folder / PID_FILE).read_text())
        if Path(f"/proc/{number}/cwd").samefile(folder):
            return number
    except (OSError, ValueError):
        pass
    raise make_busy_error(folder)


def make_busy_error(folder: Path) -> BusyError:
    return BusyError(f"the broker in {folder} is just being started or ended; try again")


@contextmanager
def hold_lock(folder: Path) -> Iterator[IO[str]]:
    """Nobody else can start Mosquitto here meanwhile; the lock is for ``start``."""
    with translate_disk_errors(folder):
        lock = open(folder / LOCK_FILE, "a", opener=open_for_owner_only)  # noqa: SIM115
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise make_busy_error(folder) from None
        yield lock


def start_mosquitto(folder: Path, lock: IO[str], known_as: Enrolment) -> int:
    """Mosquitto in the background, answering; its process id."""
    mosquitto, log = find_mosquitto(), folder / LOG_FILE
    with translate_disk_errors(log), open(log, "a", opener=open_for_owner_only) as out:
        before = out.tell()
        (folder / PID_FILE).unlink(missing_ok=True)
        subprocess.run(
            [mosquitto, "-d", "-c", CONFIG_FILE],
            cwd=folder,
            umask=0o077,
            pass_fds=[lock.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            check=False,  # how it went is seen by the lock, and told by the log
        )
    lock.close()  # now it is Mosquitto's alone
    return wait_until_answering(folder, known_as, before)


def wait_until_answering(folder: Path, known_as: Enrolment, before: int) -> int:
    """Wait until it shakes hands; where it ends instead, its log beyond ``before`` says why."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            number = find_running_pid(folder)
        except BusyError:  # it has not written its id yet
            number = 0
        if number is None:
            raise BrokerError(
                f"Mosquitto does not start: {read_first_error(folder / LOG_FILE, before)}"
            )
        if number and can_handshake(known_as):
            return number
        time.sleep(POLL_SECONDS)
    raise BrokerError(f"Mosquitto does not answer; {folder / LOG_FILE} may say why")


def can_handshake(known_as: Enrolment) -> bool:
    """Do both sides believe each other? Nobody signs in: that would end the session of a server."""
    trust = known_as.make_ssl_context()
    trust.maximum_version = ssl.TLSVersion.TLSv1_2  # in 1.3 the client never hears the verdict
    try:
        with (
            socket.create_connection((known_as.address, known_as.port), TIMEOUT_SECONDS) as plain,
            trust.wrap_socket(plain, server_hostname=known_as.address),
        ):
            return True
    except OSError:
        return False


def read_first_error(log: Path, before: int) -> str:
    """The first error it wrote since; others follow from it."""
    lines = log.read_bytes()[before:].decode(errors="replace").splitlines()
    errors = (line.partition("Error: ")[2] for line in lines)
    return next((said for said in errors if said), f"see {log}")


def reload_mosquitto(folder: Path) -> None:
    """Let it read rights and revocations again, if there is one."""
    if number := find_running_pid(folder):
        os.kill(number, signal.SIGHUP)


def stop_mosquitto(folder: Path) -> int | None:
    """End it in order, everything saved; its process id, None if there was none."""
    number = find_running_pid(folder)
    if number is None:
        return None
    watched = os.pidfd_open(number)
    try:
        signal.pidfd_send_signal(watched, signal.SIGTERM)
        if not select.select([watched], [], [], TIMEOUT_SECONDS)[0]:
            raise BrokerError(f"Mosquitto, process {number}, does not end")
    finally:
        os.close(watched)
    return number
