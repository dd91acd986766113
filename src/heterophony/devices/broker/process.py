"""Start, reload and stop Mosquitto in the background; a lock file shows whether it runs."""

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
TIMEOUT_SECONDS = 15.0  # for a start or a stop, on slow disks and busy machines
POLL_SECONDS = 0.02


def find_mosquitto() -> str:
    """Return the path of Mosquitto; Debian puts it where only root's PATH leads."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin"
    if found := shutil.which("mosquitto", path=path):
        return found
    raise ConfigError("Mosquitto is not installed; get it with: sudo apt-get install mosquitto")


def find_running_pid(folder: Path) -> int | None:
    """Return the id of the process that serves this folder; None if there is none.

    Mosquitto inherits a lock that ends with it, so an old id in the file is never believed.
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
    """Return the id in the file, if that process works in the folder."""
    try:
        number = int((folder / PID_FILE).read_text())
        if Path(f"/proc/{number}/cwd").samefile(folder):
            return number
    except (OSError, ValueError):
        pass
    raise make_busy_error(folder)


def make_busy_error(folder: Path) -> BusyError:
    return BusyError(f"the broker in {folder} is just being started or stopped; try again")


@contextmanager
def hold_lock(folder: Path) -> Iterator[IO[str]]:
    """Keep others from starting Mosquitto here; pass the lock on to ``start_mosquitto``."""
    with translate_disk_errors(folder):
        lock = open(folder / LOCK_FILE, "a", opener=open_for_owner_only)  # noqa: SIM115
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise make_busy_error(folder) from None
        yield lock


def start_mosquitto(folder: Path, lock: IO[str], server: Enrolment) -> int:
    """Start Mosquitto in the background and wait until it answers; return its process id."""
    mosquitto, log = find_mosquitto(), folder / LOG_FILE
    with translate_disk_errors(log), open(log, "a", opener=open_for_owner_only) as out:
        log_start = out.tell()
        (folder / PID_FILE).unlink(missing_ok=True)
        subprocess.run(
            [mosquitto, "-d", "-c", CONFIG_FILE],
            cwd=folder,
            umask=0o077,
            pass_fds=[lock.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            check=False,  # the lock shows whether it started, the log why not
        )
    lock.close()  # now only Mosquitto holds it
    return wait_until_answering(folder, server, log_start)


def wait_until_answering(folder: Path, server: Enrolment, log_start: int) -> int:
    """Wait for a TLS handshake; if Mosquitto ends instead, raise with the error in its log."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            number = find_running_pid(folder)
        except BusyError:  # its id is not written yet
            number = 0
        if number is None:
            raise BrokerError(
                f"Mosquitto does not start: {read_first_error(folder / LOG_FILE, log_start)}"
            )
        if number and can_handshake(server):
            return number
        time.sleep(POLL_SECONDS)
    raise BrokerError(f"Mosquitto does not answer; see {folder / LOG_FILE}")


def can_handshake(server: Enrolment) -> bool:
    """Return whether both sides trust each other.

    Nobody signs in to MQTT: that would end the session of a running server.
    """
    context = server.make_ssl_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # in 1.3 a client is not told of a refusal
    try:
        with (
            socket.create_connection((server.address, server.port), TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=server.address),
        ):
            return True
    except OSError:
        return False


def read_first_error(log: Path, start: int) -> str:
    """Return the first error in the log from ``start`` on; later ones follow from it."""
    lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
    errors = (line.partition("Error: ")[2] for line in lines)
    return next((error for error in errors if error), f"see {log}")


def reload_mosquitto(folder: Path) -> bool:
    """Make a running Mosquitto read access list and revocations again; return whether one runs."""
    if number := find_running_pid(folder):
        os.kill(number, signal.SIGHUP)
    return number is not None


def stop_mosquitto(folder: Path) -> int | None:
    """Stop Mosquitto in order, with everything saved; return its process id, if it was running."""
    number = find_running_pid(folder)
    if number is None:
        return None
    pidfd = os.pidfd_open(number)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if not select.select([pidfd], [], [], TIMEOUT_SECONDS)[0]:
            raise BrokerError(
                f"Mosquitto, process {number}, does not stop; see {folder / LOG_FILE}"
            )
    finally:
        os.close(pidfd)
    return number
