"""An enrolment: the small file by which a device, or the server, finds a broker and is known."""

from __future__ import annotations

import os
import re
import ssl
import tomllib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import tomli_w

from ...core.errors import ConfigError

DEVICE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
FIELD_TYPES = {"port": int, "until": datetime}  # all others are text
MAX_FILE_BYTES = 64 * 1024  # bytes; a real one has about 2,500


@dataclass(frozen=True)
class Enrolment:
    """Who one is, where the broker is, how to know it, and how to be known by it."""

    device: str
    address: str
    port: int
    until: datetime
    ca: str
    certificate: str
    key: str

    def __repr__(self) -> str:  # never the key, wherever it is printed or logged
        return f"Enrolment({self.device!r}, {self.address}:{self.port})"

    def to_toml(self) -> bytes:
        return tomli_w.dumps(asdict(self), multiline_strings=True).encode()

    def make_ssl_context(self) -> ssl.SSLContext:
        """Trusts this broker's authority and nobody else; shows this device's certificate."""
        if self.until < datetime.now(UTC):
            raise ConfigError(
                f"the enrolment of {self.device} ended on {self.until:%Y-%m-%d};"
                f" where the broker is: heterophony broker revoke {self.device}, then enrol again"
            )
        try:
            made = ssl.create_default_context(cadata=self.ca)
            made.minimum_version = ssl.TLSVersion.TLSv1_2
            # ssl reads keys from files only; this one is never on a disk
            with open(os.memfd_create("enrolment"), "w") as file:
                file.write(self.certificate + self.key)
                file.flush()
                made.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"the enrolment of {self.device} is damaged; copy it again") from None
        return made


def check_device_name(name: str) -> str:
    """A device's name is part of topics and of files' names, so it has only harmless signs."""
    if not DEVICE_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a device's name: 1 to 64 of A-Z a-z 0-9 . _ - and no . at first"
        )
    return name


def read_enrolment(path: Path) -> Enrolment:
    """The file made by ``heterophony broker enrol``, or a clear answer."""
    try:
        with open(path, "rb") as file:
            content = tomllib.loads(file.read(MAX_FILE_BYTES).decode())
        found = Enrolment(**content)
    except OSError as error:
        raise ConfigError(f"cannot read the enrolment {path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise ConfigError(
            f"{path} is no enrolment; make one with: heterophony broker enrol DEVICE"
        ) from None
    for field, value in asdict(found).items():
        kind = FIELD_TYPES.get(field, str)
        if type(value) is not kind:
            raise ConfigError(f"{path}: {field} must be of type {kind.__name__}")
    if not 0 < found.port < 65536 or found.until.tzinfo is None:
        raise ConfigError(f"{path}: port or until is out of range")
    check_device_name(found.device)
    return found
