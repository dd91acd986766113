"""Detect a second process that connects under the same name.

The broker admits the newer process and ends the older connection, often without a reason. The older
one would reconnect and do the same to the newer one, for ever. So every retained message carries the
id of the process that published it. A process that reconnects and finds the id of another one on the
topic of its own will, with a payload other than the will's, has been replaced and withdraws.
"""

from __future__ import annotations

import secrets

from .endpoint import Will
from .outbox import OutgoingPacket


class Ownership:
    """The id of this process, and whether the broker has stored it yet."""

    def __init__(self, will: Will | None) -> None:
        self.will = will
        self.owner_id = secrets.token_hex(8)
        self.stored = False  # the broker has acknowledged a retained message with our id

    def select_owner_id(self, packet: OutgoingPacket) -> str | None:
        """Return the id to attach to a packet, if any.

        The will carries none: it says that we left, so a process that follows has not replaced us.
        """
        return self.owner_id if packet.retain and not self.is_will(packet) else None

    def record_acknowledged(self, packet: OutgoingPacket) -> None:
        self.stored = self.stored or packet.retain

    def is_will(self, packet: OutgoingPacket) -> bool:
        will = self.will
        return will is not None and (packet.topic, packet.payload) == (will.topic, will.payload)

    def is_on_will_topic(self, topic: str) -> bool:
        return self.will is not None and topic == self.will.topic

    def is_replaced_by(self, payload: bytes, owner_id: str | None) -> bool:
        """Return whether a message on the will's topic shows that another process took our name."""
        assert self.will is not None
        foreign = owner_id is not None and owner_id != self.owner_id
        return self.stored and foreign and payload != self.will.payload
