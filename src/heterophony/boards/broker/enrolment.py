"""An enrolment: the file with which a board, or the server, finds a broker and authenticates."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import ssl
import struct
import tomllib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import tomli_w

from ...core.errors import BusyError, ConfigError
from ...core.files import NAME_PATTERN, NAME_RULE, read_text_file
from ..protocol.message_fields import AnyString, Date, Port, parse_fields
from ..transport.queues import BrokerEndpoint

MAX_FILE_BYTES = 64 * 1024  # most bytes; a real enrolment has about 2,500


@dataclass(frozen=True)
class Enrolment:
    """A name, the broker's address and the certificates with which both sides authenticate."""

    name: AnyString
    address: AnyString
    port: Port
    until: Date
    ca: AnyString
    certificate: AnyString
    key: AnyString

    def __repr__(self) -> str:  # without the key, wherever it is printed or logged
        return f"Enrolment({self.name!r}, {self.address}:{self.port})"

    def encode(self) -> bytes:
        """Return the content of the enrolment file, as TOML."""
        return tomli_w.dumps(asdict(self), multiline_strings=True).encode()

    def make_ssl_context(self) -> ssl.SSLContext:
        """Return a TLS context that trusts only the broker's authority, with this enrolment's certificate."""
        if self.until < datetime.now(UTC):
            raise ConfigError(
                f"the enrolment of {self.name} expired on {self.until:%Y-%m-%d}; on the broker's"
                f" machine run: heterophony broker revoke {self.name}, then enrol it again"
            )
        try:
            context = ssl.create_default_context(cadata=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            # ssl reads keys only from files; this file is in memory and never on a disk
            with open(os.memfd_create("enrolment"), "w") as file:
                file.write(self.certificate + self.key)
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"the enrolment of {self.name} is damaged; copy it again") from None
        return context


def make_endpoint(enrolment: Enrolment) -> BrokerEndpoint:
    """Return the broker's endpoint for a transport that connects with this enrolment."""
    return BrokerEndpoint(
        enrolment.address, enrolment.port, enrolment.name, enrolment.make_ssl_context()
    )


def check_board_name(name: str) -> str:
    """Return the name if a board can have it; otherwise raise ConfigError."""
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be a board's name; {NAME_RULE}")
    return name


def read_enrolment(path: Path) -> Enrolment:
    """Read an enrolment from a file that ``heterophony broker enrol`` wrote."""
    try:
        content = tomllib.loads(read_text_file(path, MAX_FILE_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read the enrolment {path}: {error.strerror}") from None
    except ValueError:
        raise ConfigError(
            f"{path} is not an enrolment; create one with: heterophony broker enrol BOARD"
        ) from None
    try:
        enrolment = parse_fields(Enrolment, content)
    except ValueError as error:
        raise ConfigError(
            f"{path} is not an enrolment: it {error}; create one with: heterophony broker enrol BOARD"
        ) from None
    check_board_name(enrolment.name)
    return enrolment


LOOPBACK = ["localhost", "127.0.0.1", "::1"]
DEFAULT_PORT = 8883  # the usual port of MQTT over TLS
EPHEMERAL_SAFE_PORTS = range(20_000, 30_000)  # Linux uses none of these for outgoing connections
SIOCGIFADDR = 0x8915  # Linux: get the address of a network interface


def list_reachable_hosts(lan: bool) -> list[str]:
    """Return the host names and addresses of this machine's broker; with ``lan``, also for other machines."""
    others = [*list_host_names(), *list_lan_addresses()] if lan else []
    return list(dict.fromkeys([*LOOPBACK, *others]))


def list_host_names() -> list[str]:
    """Return this machine's host names for other machines, in DNS and multicast DNS."""
    name = socket.gethostname()
    known = [name, f"{name.split('.')[0]}.local", socket.getfqdn()]
    return [n for n in known if re.fullmatch(r"[A-Za-z0-9.-]+", n)]


def list_lan_addresses() -> list[str]:
    """Return this machine's addresses that other machines can use, IPv4 first."""
    found = [*list_ipv4_addresses(), *list_ipv6_addresses()]
    return [a for a in found if not (ip_address(a).is_loopback or ip_address(a).is_link_local)]


def list_ipv4_addresses() -> list[str]:
    """Return an IPv4 address of each network interface that has one."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, interface in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(
                    any_socket, SIOCGIFADDR, struct.pack("256s", interface.encode())
                )
            except OSError:  # the interface has no address
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return found


def list_ipv6_addresses() -> list[str]:
    """Return the IPv6 addresses of all network interfaces."""
    table = Path("/proc/net/if_inet6")  # missing where IPv6 is turned off
    lines = table.read_text().splitlines() if table.exists() else []
    return [str(IPv6Address(int(line.split()[0], 16))) for line in lines]


def select_advertised_address(lan: bool) -> str:
    """Return the address of the broker to write into enrolments."""
    if not lan:
        return "127.0.0.1"
    if not (found := list_lan_addresses()):
        raise ConfigError(
            "--lan: this machine has no network address; connect it to a network first"
        )
    return found[0]


def find_bindable_port(lan: bool, port: int) -> int:
    """Return the port for a broker if it is free, or any free port for 0; otherwise raise BusyError."""
    candidates = (
        EPHEMERAL_SAFE_PORTS.start + secrets.randbelow(len(EPHEMERAL_SAFE_PORTS))
        for _ in range(100)
    )
    for number in [port] if port else candidates:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("" if lan else "127.0.0.1", number))
                return number
            except PermissionError:
                raise ConfigError(
                    f"--port {port}: ports below 1024 need root; choose a higher one, such as {DEFAULT_PORT}"
                ) from None
            except OSError:
                continue
    raise BusyError(
        f"another program uses port {port}; stop it, or choose another port with --port"
    )
