"""Where this machine can be reached: its names, its addresses, and ports that are free."""

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
DEFAULT_PORT = 8883  # where MQTT over TLS is usual
EPHEMERAL_SAFE_PORTS = range(20_000, 30_000)  # Linux gives none of these to a passing connection
SIOCGIFADDR = 0x8915  # Linux: the address of a network interface


def list_reachable_hosts(lan: bool) -> list[str]:
    """Names and addresses of this machine, those for others only if they may come."""
    return list(
        dict.fromkeys(
            [*LOOPBACK, *(list_host_names() if lan else []), *(list_lan_addresses() if lan else [])]
        )
    )


def list_host_names() -> list[str]:
    """As other machines may call this one: by DNS, or by multicast DNS as Raspberry Pis do."""
    name = socket.gethostname()
    known = [name, f"{name.split('.')[0]}.local", socket.getfqdn()]
    return [n for n in known if re.fullmatch(r"[A-Za-z0-9.-]+", n)]


def list_lan_addresses() -> list[str]:
    """Addresses that other machines can use, IPv4 first."""
    found = [*list_ipv4_addresses(), *list_ipv6_addresses()]
    return [a for a in found if not (ip_address(a).is_loopback or ip_address(a).is_link_local)]


def list_ipv4_addresses() -> list[str]:
    """One of each network interface that has any."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, interface in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", interface.encode()))
            except OSError:  # it has none
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return found


def list_ipv6_addresses() -> list[str]:
    table = Path("/proc/net/if_inet6")  # not there where IPv6 is turned off
    lines = table.read_text().splitlines() if table.exists() else []
    return [str(IPv6Address(int(line.split()[0], 16))) for line in lines]


def select_advertised_address(lan: bool) -> str:
    """The address that goes into enrolments."""
    if not lan:
        return "127.0.0.1"
    if not (found := list_lan_addresses()):
        raise ConfigError("--lan: this machine has no address in a network; connect it first")
    return found[0]


def find_bindable_port(lan: bool, port: int) -> int:
    """The port if it can be had, for 0 one that is free; else who asks is told."""
    drawn = (
        EPHEMERAL_SAFE_PORTS.start + secrets.randbelow(len(EPHEMERAL_SAFE_PORTS))
        for _ in range(100)
    )
    for number in [port] if port else drawn:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trying:
            trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trying.bind(("" if lan else "127.0.0.1", number))
                return number
            except PermissionError:
                raise ConfigError(
                    f"--port {port}: below 1024 is for root; {DEFAULT_PORT} is usual"
                ) from None
            except OSError:
                continue
    raise BusyError(f"another program has port {port}; end it, or choose another with --port")
