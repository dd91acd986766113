"""Work of the broker's owner at a running Mosquitto: end a device's session, clear what it retained."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty

from ...core.errors import BrokerError
from ..protocol import topics
from ..transport.endpoint import BrokerEndpoint
from ..transport.inbox import ReceivedMessage
from ..transport.mqtt_transport import MqttTransport

TIMEOUT_SECONDS = 15.0
POLL_SECONDS = 0.01
MakeEndpoint = Callable[[str], BrokerEndpoint]  # by name, with a certificate of a few minutes


def end_session(name: str, make_endpoint: MakeEndpoint) -> None:
    """End the connection and the session of a name, by a connection of that name.

    Mosquitto has no command for it; but it admits only the newest connection of a name.
    """
    with MqttTransport(make_endpoint(name)) as transport:
        wait_for_connection(transport, time.monotonic() + TIMEOUT_SECONDS)


def clear_retained(device: str, make_endpoint: MakeEndpoint) -> int:
    """Delete all messages that a device retained; return how many there were."""
    own, mark = topics.make_device_pattern(device), topics.make_maintenance_topic()
    with MqttTransport(make_endpoint(topics.MAINTENANCE_NAME), [own, mark]) as transport:
        found = list_retained(transport, mark)
        for topic in found:  # three at most, so the queue has room
            transport.publish(topic, b"", retain=True)
    return len(found)


def list_retained(transport: MqttTransport, mark: str) -> list[str]:
    """Return the topics of all messages that arrive before a mark of our own."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    wait_for_connection(transport, deadline)
    end, found = secrets.token_bytes(16), dict[str, None]()
    transport.publish(mark, end)
    while time.monotonic() < deadline:
        with suppress(Empty):
            item = transport.inbox.get(timeout=POLL_SECONDS)
            if isinstance(item, ReceivedMessage) and item.payload == end:
                return list(found)
            if isinstance(item, ReceivedMessage):
                found[item.topic] = None
    raise BrokerError(f"{transport.endpoint} does not answer")


def wait_for_connection(transport: MqttTransport, deadline: float) -> None:
    while not transport.connected:
        if time.monotonic() > deadline:
            raise BrokerError(f"{transport.endpoint} does not answer")
        time.sleep(POLL_SECONDS)
