"""Shut a device out that floods the server: at the broker if it is here, else by not listening."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..core.errors import HeterophonyError
from .broker.broker import Broker
from .protocol import topics
from .protocol.server_session import ServerSession
from .transport.mqtt_transport import MqttTransport

FLOOD_REASON = "it sent more messages than a device may"


class DeviceBlocker:
    """Keeps the messages of some devices from the server, for good.

    ``broker`` is the broker of this run, if its folder is on this machine. Then a device that floods
    is revoked there, and its connection ended: else it would keep Mosquitto busy.
    """

    def __init__(
        self,
        session: ServerSession,
        transport: MqttTransport,
        broker: Broker | None,
        say: Callable[[str], None],
    ) -> None:
        self.session, self.transport = session, transport
        self.broker, self.say = broker, say

    def shut_out(self, device: str) -> None:
        """Take nothing of this device any more."""
        self.session.shut_out_device(device, FLOOD_REASON, time.monotonic())
        if self.broker is None:
            self.listen_to_others()
            return
        try:
            self.broker.revoke(device)
        except HeterophonyError as error:
            self.say(f"device {device} cannot be revoked at the broker: {error}")
            self.listen_to_others()

    def listen_to_others(self) -> None:
        """Subscribe to the topics of all other devices seen so far, instead of to all devices.

        A message without a subscriber ends at the broker. MQTT cannot leave a single name out.
        """
        shut_out = self.session.registry.shut_out
        others = [name for name in self.session.stats.counters if name not in shut_out]
        self.transport.replace_subscriptions(topics.list_server_subscriptions(others))
