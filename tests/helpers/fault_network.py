"""A broker and a network with faults, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from queue import Empty
from random import Random
from typing import Any, Self

from heterophony.boards.transport.queues import ConnectionEvent, Inbox, ReceivedMessage, Will

NETWORK_KINDS = ("lose", "repeat", "delay", "damage", "cut in", "cut out")
CHANCE = 0.35  # that a fault hits a message of its machine


@dataclass(frozen=True)
class Fault:
    """A fault of a machine that starts at ``at`` and lasts for ``seconds``."""

    kind: str
    who: str
    at: float
    seconds: float
    step: int  # number of the machine's steps from then until the fault strikes
    seed: int

    def __str__(self) -> str:
        return f"{self.kind} at {self.who}: from {self.at:.1f} s for {self.seconds:.1f} s, step {self.step}"


class SimulatedTransport:
    """A stand-in for ``MqttTransport`` that connects as soon as the network allows."""

    def __init__(
        self,
        network: Network,
        who: str,
        subscriptions: Sequence[str],
        *,
        retained: Mapping[str, bytes] | None = None,
        will: Will | None = None,
        find_sender: Callable[[str], str] | None = None,
        **_: Any,
    ) -> None:
        self.network, self.who, self.subscriptions = network, who, tuple(subscriptions)
        self.will, self.retained, self.connected = will, dict(retained or {}), False
        self.inbox = SimulatedInbox(network, who, find_sender)
        network.transports[who] = self

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        self.network.step(self.who)
        if retain:
            self.retained[topic] = payload
        if self.connected:
            self.network.send(self.who, topic, payload, retain)
        return self.connected

    def replace_subscriptions(self, subscriptions: Sequence[str]) -> None:
        raise AssertionError("a board was shut out")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.network.disconnect(self.who, will=True)
        self.network.transports.pop(self.who, None)


class SimulatedInbox(Inbox):
    """An inbox that does not block: while it is empty, its owner lets virtual time pass."""

    def __init__(self, network: Network, who: str, find_sender: Any) -> None:
        super().__init__(max_messages=1024, max_bytes=64 << 20, find_sender=find_sender)
        self.network, self.who = network, who

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.network.step(self.who)
        if block and not self.queue:
            self.network.wait(self.who)
        if not self.queue:
            raise Empty
        return self._get()


class Network:
    """The broker, the connections, and the messages under way."""

    def __init__(
        self,
        faults: Sequence[Fault],
        draw: Random,
        step: Callable[[str], None],
        wait: Callable[[str], None],
    ) -> None:
        self.draw, self.step, self.wait = draw, step, wait
        self.now, self.number = 0.0, 0
        self.faults = [(f, Random(f.seed)) for f in faults if f.kind in NETWORK_KINDS]
        self.flying: list[tuple[float, int, str, str, bytes]] = []  # to the broker, or from it
        self.retained: dict[str, bytes] = {}
        self.transports: dict[str, SimulatedTransport] = {}
        self.wills: list[tuple[float, str, Will]] = []
        self.offline: dict[str, float] = {}  # until when

    def send(self, who: str, topic: str, payload: bytes, retain: bool = False) -> None:
        """Send a message to the broker, which sends it on."""
        if retain:  # MQTT acknowledges it and sends it again until it has arrived
            self.retained[topic] = payload
        for other, transport in self.transports.items():
            if transport.connected and is_subscribed(transport.subscriptions, topic):
                self.fly(who, other, topic, payload)

    def fly(self, sender: str, to: str, topic: str, payload: bytes) -> None:
        seconds, copies = self.draw.uniform(0.02, 0.2), 1
        for fault, draw in self.faults:
            if not fault.at <= self.now < fault.at + fault.seconds:
                continue
            if fault.kind == "cut in" and to == fault.who:
                return
            if fault.kind == "cut out" and sender == fault.who:
                return
            if fault.who not in (sender, to) or draw.random() > CHANCE:
                continue
            if fault.kind == "lose":
                return
            if fault.kind == "repeat":
                copies += 1
            elif fault.kind == "delay":
                seconds += draw.uniform(0, 8)
            elif fault.kind == "damage" and payload:
                at = draw.randrange(len(payload))
                payload = payload[:at] + bytes([payload[at] ^ 0x55]) + payload[at + 1 :]
        for copy in range(copies):
            self.number += 1
            heapq.heappush(
                self.flying, (self.now + seconds + copy, self.number, to, topic, payload)
            )

    def pass_time(self, until: float) -> None:
        """Deliver all messages due before ``until``, then connect the machines that can connect."""
        while self.flying and self.flying[0][0] <= until:
            self.now, _, to, topic, payload = heapq.heappop(self.flying)
            transport = self.transports.get(to)
            if transport is not None and transport.connected:
                transport.inbox.offer(ReceivedMessage(topic, payload))
        self.now = until
        for due in [w for w in self.wills if w[0] <= self.now]:
            self.wills.remove(due)
            self.send(due[1], due[2].topic, due[2].payload, retain=True)
        for who, transport in list(self.transports.items()):
            if not transport.connected and self.offline.get(who, 0.0) <= self.now:
                self.connect(who, transport)

    def connect(self, who: str, transport: SimulatedTransport) -> None:
        transport.connected = True
        self.wills = [w for w in self.wills if w[1] != who]
        for topic, payload in transport.retained.items():
            self.send(who, topic, payload, retain=True)
        for topic, payload in self.retained.items():
            if is_subscribed(transport.subscriptions, topic):
                self.fly("", who, topic, payload)
        transport.inbox.offer(ConnectionEvent("connected", "connected"))

    def disconnect(self, who: str, will: bool = False, seconds: float = 0.0) -> None:
        """End a connection; the broker publishes its last will: at once with ``will``, else after its delay."""
        transport = self.transports.get(who)
        self.offline[who] = max(self.offline.get(who, 0.0), self.now + seconds)
        if transport is None or not transport.connected:
            return
        transport.connected = False
        if transport.will is not None:
            delay = 0.0 if will else float(transport.will.delay)
            self.wills.append((self.now + delay, who, transport.will))

    def end_program(self, who: str) -> None:
        """End the connection of a program that was killed."""
        self.disconnect(who)
        self.transports.pop(who, None)

    def restart_broker(self, seconds: float) -> None:
        """Restart the broker without its messages, as after a kill; end all connections."""
        self.retained.clear()
        self.flying.clear()
        for who in list(self.transports):
            self.disconnect(who, seconds=seconds)
        self.wills.clear()


@cache
def is_subscribed(patterns: tuple[str, ...], topic: str) -> bool:
    return any(matches(pattern, topic) for pattern in patterns)


def matches(pattern: str, topic: str) -> bool:
    """Return True if a topic matches a pattern of MQTT."""
    if pattern.endswith("/#"):
        return topic == pattern[:-2] or topic.startswith(pattern[:-1])
    asked, given = pattern.split("/"), topic.split("/")
    return len(asked) == len(given) and all(
        a in ("+", g) for a, g in zip(asked, given, strict=True)
    )
