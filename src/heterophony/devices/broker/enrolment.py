"""An enrolment: the file with which a device, or the server, finds a broker and authenticates."""

from __future__ import annotations

import os
import ssl
import tomllib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import tomli_w

from ...core.errors import ConfigError
from ...core.files import read_text_file
from ...core.names import NAME_PATTERN, NAME_RULE
from ..protocol.message_fields import AnyString, Date, Port, parse_fields

MAX_FILE_BYTES = 64 * 1024  # a real one has about 2,500


@dataclass(frozen=True)
class Enrolment:
    """A device's name, the broker's address, and certificates to recognise each other by."""

    device: AnyString
    address: AnyString
    port: Port
    until: Date
    ca: AnyString
    certificate: AnyString
    key: AnyString

    def __repr__(self) -> str:  # without the key, wherever it is printed or logged
        return f"Enrolment({self.device!r}, {self.address}:{self.port})"

    def to_toml(self) -> bytes:
        return tomli_w.dumps(asdict(self), multiline_strings=True).encode()

    def make_ssl_context(self) -> ssl.SSLContext:
        """Return a context that trusts only this broker's authority and presents this device."""
        if self.until < datetime.now(UTC):
            raise ConfigError(
                f"the enrolment of {self.device} expired on {self.until:%Y-%m-%d}; on the broker's"
                f" machine run: heterophony broker revoke {self.device}, then enrol it again"
            )
        try:
            context = ssl.create_default_context(cadata=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            # ssl reads keys from files only; this one is in memory and never on a disk
            with open(os.memfd_create("enrolment"), "w") as file:
                file.write(self.certificate + self.key)
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"the enrolment of {self.device} is damaged; copy it again") from None
        return context


def check_device_name(name: str) -> str:
    """Return the name if it can be a device's: it becomes part of topics and file names."""
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be a device's name; {NAME_RULE}")
    return name


def read_enrolment(path: Path) -> Enrolment:
    """Read a file written by ``heterophony broker enrol``."""
    try:
        content = tomllib.loads(read_text_file(path, MAX_FILE_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read the enrolment {path}: {error.strerror}") from None
    except ValueError:
        raise ConfigError(
            f"{path} is not an enrolment; make one with: heterophony broker enrol DEVICE"
        ) from None
    try:
        enrolment = parse_fields(Enrolment, content)
    except ValueError as error:
        raise ConfigError(
            f"{path} is not an enrolment: it {error}; make one with: heterophony broker enrol DEVICE"
        ) from None
    check_device_name(enrolment.device)
    return enrolment
