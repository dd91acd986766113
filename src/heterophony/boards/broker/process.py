"""Mosquitto as a process: write its files, start it, stop it, and check whether it is running."""

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ...core.errors import BrokerError, BusyError, ConfigError
from ...core.files import open_for_owner_only, translate_disk_errors
from ..protocol import topics
from .enrolment import Enrolment

PID_FILE = "mosquitto.pid"
LOG_FILE = "mosquitto.log"
CONFIG_FILE = "mosquitto.conf"
ACL_FILE = "acl"
SERVER_NAME = topics.SERVER_NAME

# File names are relative to the folder, so the folder can be moved and have any name.
CONFIG_TEMPLATE = f"""\
# Written by heterophony at every `broker up`: changes are lost.
{{listener}}
cafile ca.pem
certfile broker.pem
keyfile broker.key
crlfile revoked.pem
tls_version tlsv1.2
require_certificate true
use_identity_as_username true
# without this a board could disconnect another one by using its client id
use_username_as_clientid true
max_connections 1000
allow_anonymous false
acl_file {ACL_FILE}
# our messages have at most 256 KiB and a little; three of these per board can be retained
max_packet_size 294912
max_keepalive 600
# without this a small message waits for the acknowledgement of the one before
set_tcp_nodelay true
max_inflight_messages 20
max_queued_messages 1000
max_queued_bytes 67108864
memory_limit 536870912
# whatever Mosquitto forgets, server and boards send again; a file would be written as a whole
# after every message
persistence false
sys_interval 0
pid_file {PID_FILE}
log_dest file {LOG_FILE}
log_type error
log_type warning
log_type notice
log_timestamp_format %Y-%m-%dT%H:%M:%S
"""


def format_config(lan: bool, port: int) -> str:
    """Return the text of Mosquitto's configuration file."""
    text = CONFIG_TEMPLATE.format(listener=f"listener {port}" + ("" if lan else " 127.0.0.1"))
    # started by root, Mosquitto would change to a user who cannot read the folder
    return text + ("user root\n" if os.geteuid() == 0 else "")


def format_acl(revoked: Sequence[str]) -> str:
    """Return the broker's access control list; revoked names have no permissions, even while connected."""
    return "\n".join(
        [
            "# Written by heterophony: changes are lost. %u is the name in the certificate.",
            f"user {SERVER_NAME}",
            f"topic readwrite {topics.ALL_TOPICS}",
            "",
            f"user {topics.MAINTENANCE_NAME}",
            f"topic readwrite {topics.ALL_TOPICS}",
            "",
            *(f"pattern {right} {topic}" for right, topic in topics.list_board_rights("%u")),
            *(f"\nuser {name}\ntopic deny #" for name in sorted(revoked)),
            "",
        ]
    )


LOCK_FILE = "lock"
TIMEOUT_SECONDS = 15.0  # time limit to start or stop, generous for slow disks and busy machines
POLL_SECONDS = 0.02


def find_mosquitto() -> str:
    """Return the path of Mosquitto, even where Debian installs it outside a user's PATH."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin"
    if found := shutil.which("mosquitto", path=path):
        return found
    raise ConfigError("Mosquitto is not installed; get it with: sudo apt-get install mosquitto")


def find_running_pid(folder: Path) -> int | None:
    """Return the process id of the broker in this folder; None if it is not running.

    Mosquitto holds a lock until it exits, so an outdated id in the file is never used.
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
    """Read the broker's process id; raise BusyError if its file is missing or outdated."""
    try:
        number = int((folder / PID_FILE).read_text())
        if Path(f"/proc/{number}/cwd").samefile(folder):
            return number
    except (OSError, ValueError):
        pass
    raise make_busy_error(folder)


def make_busy_error(folder: Path) -> BusyError:
    """Return the error for a broker that another process is starting or stopping."""
    return BusyError(f"the broker in {folder} is being started or stopped; try again")


@contextmanager
def hold_broker_lock(folder: Path) -> Iterator[IO[str]]:
    """Keep other processes from starting a broker in this folder; yield the lock for ``start_mosquitto``."""
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
            check=False,  # the lock shows whether it started; the log says why it did not
        )
    lock.close()  # now only Mosquitto holds it
    return wait_until_answering(folder, server, log_start)


def wait_until_answering(folder: Path, server: Enrolment, log_start: int) -> int:
    """Wait until Mosquitto answers; raise BrokerError with the error in its log if it exits instead."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            number = find_running_pid(folder)
        except BusyError:  # Mosquitto's process id is not written yet
            number = 0
        if number is None:
            raise BrokerError(
                f"Mosquitto failed to start: {read_first_error(folder / LOG_FILE, log_start)}"
            )
        if number and can_handshake(server):
            return number
        time.sleep(POLL_SECONDS)
    raise BrokerError(f"Mosquitto does not answer; see {folder / LOG_FILE}")


def can_handshake(server: Enrolment) -> bool:
    """Return True if a TLS handshake with the broker succeeds, so that both sides trust each other.

    This does not connect by MQTT, which would end the session of a running server.
    """
    context = server.make_ssl_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # in TLS 1.3, it ends before a refusal
    try:
        with (
            socket.create_connection((server.address, server.port), TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=server.address),
        ):
            return True
    except OSError:
        return False


def read_first_error(log: Path, start: int) -> str:
    """Return the first error in Mosquitto's log after position ``start``, which causes later ones."""
    lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
    errors = (line.partition("Error: ")[2] for line in lines)
    return next((error for error in errors if error), f"see {log}")


def reload_mosquitto(folder: Path) -> bool:
    """Make Mosquitto reload its access and revocation lists; return False if it is not running."""
    if number := find_running_pid(folder):
        os.kill(number, signal.SIGHUP)
    return number is not None


def stop_mosquitto(folder: Path) -> int | None:
    """Stop Mosquitto cleanly; return its process id if it was running."""
    number = find_running_pid(folder)
    if number is None:
        return None
    pidfd = os.pidfd_open(number)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if not select.select([pidfd], [], [], TIMEOUT_SECONDS)[0]:
            raise BrokerError(f"Mosquitto (process {number}) did not stop; see {folder / LOG_FILE}")
    finally:
        os.close(pidfd)
    return number
