"""Boards for tests: real OpenSSH servers on the loopback, each with its own home folder."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

SSHD = next((p for p in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if Path(p).exists()), None)


def require_sshd() -> str:
    """Skip a test if OpenSSH's server is not installed; fail it in CI."""
    if SSHD and shutil.which("ssh"):
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # it must exist for a server of root
        return SSHD
    why = "OpenSSH is not installed; get it with: sudo apt-get install openssh-server"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@dataclass
class SshBoard:
    """A home folder, and an SSH server that logs in to it."""

    name: str
    folder: Path  # of the server's own files
    home: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        command = [require_sshd(), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with open(self.folder / "sshd.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        pytest.fail((self.folder / "sshd.log").read_text())

    def kill(self) -> None:
        """Kill the server and its open connections."""
        if self.process is not None:
            children = subprocess.run(
                ["ps", "--ppid", str(self.process.pid), "-o", "pid="],
                capture_output=True,
                text=True,
            )
            for pid in [self.process.pid, *map(int, children.stdout.split())]:
                with suppress(ProcessLookupError):  # a connection that has just ended
                    os.kill(pid, 9)
            self.process.wait()
            self.process = None


class SshBoards:
    """A few boards with one key, and the ssh_config to reach them."""

    def __init__(self, folder: Path, count: int) -> None:
        require_sshd()
        self.folder = folder
        make_key(folder / "key")
        make_key(folder / "host")
        self.boards = [self.make_board(f"board-{i + 1}") for i in range(count)]
        self.config = folder / "ssh_config"
        host = (folder / "host.pub").read_text().strip()
        known = [f"[127.0.0.1]:{b.port} {host}" for b in self.boards]
        (folder / "known_hosts").write_text("\n".join(known) + "\n")
        self.config.write_text("\n".join(map(self.describe, self.boards)))

    def __enter__(self) -> SshBoards:
        for board in self.boards:
            board.start()
        return self

    def __exit__(self, *_: object) -> None:
        for board in self.boards:
            board.kill()

    def make_board(self, name: str) -> SshBoard:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        folder, home = self.folder / f"{name}.sshd", self.folder / name
        folder.mkdir()
        home.mkdir()
        lines = [
            f"Port {port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.folder / 'host'}",
            f"AuthorizedKeysFile {self.folder / 'key.pub'}",
            f"PidFile {folder / 'pid'}",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            f"SetEnv HOME={home}",
        ]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        return SshBoard(name, folder, home, port)

    def describe(self, board: SshBoard) -> str:
        return (
            f"Host {board.name}\n  HostName 127.0.0.1\n  Port {board.port}\n"
            f"  User {getpass.getuser()}\n  IdentityFile {self.folder / 'key'}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.folder / 'known_hosts'}\n"
            "  StrictHostKeyChecking yes\n"
        )

    def write_hosts(self, path: Path, **keys: str) -> Path:
        """Write the list of boards; ``keys`` are TOML values for all, as in clients="2"."""
        # a name that a shell would take apart: words for a board must be quoted
        launcher = self.folder / "py thon; false"
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        launcher.chmod(0o755)
        python = f'"{launcher}"'
        defaults = {"python": python, **keys}
        text = [f'address = "127.0.0.1"\nport = 0\nssh_config = "{self.config}"\n', "[defaults]"]
        text += [f"{key} = {value}" for key, value in defaults.items()]
        path.write_text("\n".join([*text, *(f"[boards.{b.name}]" for b in self.boards)]) + "\n")
        return path


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
