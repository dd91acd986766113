"""The broker to connect to, the name to connect as, and the message it publishes if we vanish."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True)
class BrokerEndpoint:
    """Address of a broker and our identity there. With a password, the identity is the user name."""

    address: str
    port: int
    identity: str
    tls: ssl.SSLContext | None = None
    password: str | None = None
    keepalive: int = 30  # seconds

    def __str__(self) -> str:
        return f"the broker at {self.address}:{self.port}"


@dataclass(frozen=True)
class Will:
    """MQTT's last will: the broker publishes it, retained, ``delay`` seconds after we vanish.

    After an orderly ``close`` the transport publishes it itself, without a delay.
    """

    topic: str
    payload: bytes
    delay: int = 15
