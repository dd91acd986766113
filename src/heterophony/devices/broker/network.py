"""The names, addresses and free ports under which this machine can be reached."""

from __future__ import annotations

import fcntl
import re
import secrets
import socket
import struct
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from ...core.errors import BusyError, ConfigError

LOOPBACK = ["localhost", "127.0.0.1", "::1"]
DEFAULT_PORT = 8883  # the usual port of MQTT over TLS
EPHEMERAL_SAFE_PORTS = range(20_000, 30_000)  # Linux uses none of these for outgoing connections
SIOCGIFADDR = 0x8915  # Linux: get the address of a network interface


def list_reachable_hosts(lan: bool) -> list[str]:
    """Return names and addresses of this machine; with ``lan``, also those for other machines."""
    return list(
        dict.fromkeys(
            [*LOOPBACK, *(list_host_names() if lan else []), *(list_lan_addresses() if lan else [])]
        )
    )


def list_host_names() -> list[str]:
    """Return the names other machines may use: from DNS, or multicast DNS as on Raspberry Pis."""
    name = socket.gethostname()
    known = [name, f"{name.split('.')[0]}.local", socket.getfqdn()]
    return [n for n in known if re.fullmatch(r"[A-Za-z0-9.-]+", n)]


def list_lan_addresses() -> list[str]:
    """Return the addresses that other machines can use, IPv4 first."""
    found = [*list_ipv4_addresses(), *list_ipv6_addresses()]
    return [a for a in found if not (ip_address(a).is_loopback or ip_address(a).is_link_local)]


def list_ipv4_addresses() -> list[str]:
    """Return one address of each network interface that has any."""
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
    table = Path("/proc/net/if_inet6")  # missing where IPv6 is turned off
    lines = table.read_text().splitlines() if table.exists() else []
    return [str(IPv6Address(int(line.split()[0], 16))) for line in lines]


def select_advertised_address(lan: bool) -> str:
    """Return the address that enrolments contain."""
    if not lan:
        return "127.0.0.1"
    if not (found := list_lan_addresses()):
        raise ConfigError(
            "--lan: this machine has no network address; connect it to a network first"
        )
    return found[0]


def find_bindable_port(lan: bool, port: int) -> int:
    """Return the port if it is free; for 0, any free one."""
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
                    f"--port {port}: ports below 1024 are for root; {DEFAULT_PORT} is usual"
                ) from None
            except OSError:
                continue
    raise BusyError(
        f"another program uses port {port}; stop it, or choose another port with --port"
    )
