"""The transport, with the real Mosquitto behind it and a proxy between them that does harm."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty

import pytest
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from helpers.fault_proxy import FaultProxy
from heterophony.boards.transport.mqtt_transport import BackoffSettings, MqttTransport
from heterophony.boards.transport.queues import (
    BrokerEndpoint,
    ConnectionEvent,
    ReceivedMessage,
    Will,
)
from heterophony.core.errors import CodecError

MOSQUITTO = shutil.which("mosquitto", path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
MAX_SECONDS = 60.0  # a condition that does not come true in this time never will
FAST = BackoffSettings(first=0.05, longest=0.4)
CHUNK = 128 << 10


class Broker:
    """Mosquitto on a free port of the loopback, as plain as it can be."""

    def __init__(self, folder: Path, *lines: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        own = lines or ("allow_anonymous true",)
        self.conf = folder / "mosquitto.conf"
        head = [f"listener {self.port} 127.0.0.1", "persistence false", "max_packet_size 1048576"]
        head += [f"user {getpass.getuser()}"]  # started by root it would become somebody else
        quiet = ["log_type information", "log_dest stderr", "connection_messages false"]
        self.conf.write_text("\n".join([*head, *quiet, *own, ""]))
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self.conf)], stderr=subprocess.PIPE, text=True
        )
        said = []
        for line in iter(self.process.stderr.readline, ""):
            said.append(line)
            if "running" in line:
                return
        self.kill()
        pytest.fail("".join(said))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


@pytest.fixture
def brokers(tmp_path):
    """Makes brokers, and ends them."""
    if MOSQUITTO is None and os.environ.get("CI") != "true":
        pytest.skip("needs Mosquitto: sudo apt install mosquitto")
    assert MOSQUITTO, "CI must have Mosquitto"
    made: list[Broker] = []

    def make(*lines: str) -> Broker:
        made.append(Broker(tmp_path, *lines))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture
def broker(brokers):
    return brokers()


@pytest.fixture
def proxy(broker):
    made = FaultProxy(broker.port)
    yield made
    made.close()


@pytest.fixture
def transports():
    """Makes transports, and closes them."""
    made: list[MqttTransport] = []

    def make(port: int, identity: str, *topics: str, keepalive: int = 30, **how) -> MqttTransport:
        how.setdefault("backoff", FAST)
        made.append(
            MqttTransport(
                BrokerEndpoint("127.0.0.1", port, identity, keepalive=keepalive), topics, **how
            )
        )
        return made[-1]

    yield make
    for transport in made:
        transport.close()
        assert not transport._thread.is_alive()


def upcoming(transport: MqttTransport, wanted) -> list[ReceivedMessage | ConnectionEvent]:
    """All that comes, up to and with the first that is wanted."""
    end = time.monotonic() + MAX_SECONDS
    found: list[ReceivedMessage | ConnectionEvent] = []
    while not found or not wanted(found[-1]):
        found.append(transport.inbox.get(timeout=max(0, end - time.monotonic())))
    return found


def event(transport: MqttTransport, kind: str) -> str:
    """The words of the next event of that kind."""
    return upcoming(
        transport, lambda item: isinstance(item, ConnectionEvent) and item.kind == kind
    )[-1].text


def message(transport: MqttTransport, topic: str) -> bytes:
    """The payload of the next message of that topic."""
    found = upcoming(
        transport, lambda item: isinstance(item, ReceivedMessage) and item.topic == topic
    )
    return found[-1].payload


def eventually(condition) -> None:
    end, pause = time.monotonic() + MAX_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < end
        pause.wait(0.01)


def say(transport: MqttTransport, topic: str, payload: bytes, **how) -> None:
    """Publish, as soon as there is a connection and room in its window."""
    eventually(lambda: transport.publish(topic, payload, **how))


def chunk(n: int) -> bytes:
    return n.to_bytes(4, "big") * (CHUNK // 4)


def test_messages_go_both_ways_also_as_large_as_a_chunk(broker, transports):
    server = transports(broker.port, "server", "up/+")
    device = transports(broker.port, "device", "down")
    assert "server" in event(server, "connected")
    event(device, "connected")
    for n in range(12):
        say(device, "up/device", chunk(n))
        say(server, "down", chunk(n + 100))
    assert [message(server, "up/device") for _ in range(12)] == [chunk(n) for n in range(12)]
    assert [message(device, "down") for _ in range(12)] == [chunk(n + 100) for n in range(12)]


def test_a_broker_that_was_killed_and_forgot_everything_is_told_it_again(broker, transports):
    retained = {"status/device": b"here"}
    device = transports(broker.port, "device", "down", retained=retained)
    server = transports(broker.port, "server", "status/+", "up")
    event(device, "connected")
    assert message(server, "status/device") == b"here"
    say(device, "status/device", b"here, busy", retain=True)
    assert message(server, "status/device") == b"here, busy"
    broker.kill()
    event(device, "lost")
    event(server, "lost")
    assert not device.publish("up", b"nobody listens")
    assert not device.publish("status/device", b"here, free", retain=True)
    broker.start()
    event(device, "connected")
    assert message(server, "status/device") == b"here, free"
    say(server, "down", b"a task")
    assert message(device, "down") == b"a task"


def test_a_broker_that_is_not_there_yet_is_waited_for_and_told_of_once(broker, transports):
    broker.kill()
    device = transports(broker.port, "device")
    assert "refused" in event(device, "lost")
    eventually(lambda: device._backoff.failures > 3)
    broker.start()
    assert [e.kind for e in upcoming(device, lambda e: e.kind != "lost")] == ["connected"]


@pytest.mark.parametrize("fault", ["reset", "stall", "cut"])
def test_a_broken_connection_is_noticed_and_mended(broker, proxy, transports, fault):
    device = transports(proxy.port, "device", "down", keepalive=2)
    server = transports(broker.port, "server", "up")
    event(device, "connected")
    event(server, "connected")
    if fault == "cut":
        proxy.cut = CHUNK + 1000
    else:
        getattr(proxy, fault)()
    for n in range(4):
        device.publish("up", chunk(n))
    event(device, "lost")
    proxy.mend()
    event(device, "connected")
    say(device, "up", b"again")
    upcoming(server, lambda item: item == ReceivedMessage("up", b"again"))
    say(server, "down", b"and back")
    assert message(device, "down") == b"and back"


def test_an_idle_half_open_connection_is_noticed_too(proxy, transports):
    device = transports(proxy.port, "device", keepalive=2)
    event(device, "connected")
    proxy.stall()
    assert "Keep alive timeout" in event(device, "lost")
    proxy.mend()
    event(device, "connected")


def test_a_broker_that_accepts_and_says_nothing_is_given_up(proxy, transports):
    proxy.stall()
    device = transports(proxy.port, "device", keepalive=1)
    event(device, "lost")
    proxy.mend()
    event(device, "connected")


def test_a_slow_link_with_a_short_keepalive_stays_connected(broker, proxy, transports):
    """Three megabytes take several keepalives, but no chunk and no window takes two."""
    device = transports(proxy.port, "device", keepalive=2)
    server = transports(broker.port, "server", "up")
    event(device, "connected")
    event(server, "connected")
    proxy.rate, proxy.delay, proxy.jitter = 700_000, 0.001, 0.001
    for n in range(24):
        say(device, "up", chunk(n))
    assert [message(server, "up") for _ in range(24)] == [chunk(n) for n in range(24)]
    assert proxy.accepted == 1
    assert device.inbox.empty()


def test_damaged_bytes_cost_the_connection_and_nothing_else(broker, proxy, transports):
    device = transports(proxy.port, "device", "down", keepalive=2)
    server = transports(broker.port, "server")
    event(device, "connected")
    event(server, "connected")
    proxy.corrupt = 7
    say(server, "down", b"this will not be understood")
    event(device, "lost")
    seen = proxy.accepted
    eventually(lambda: proxy.accepted > seen + 2)
    proxy.mend()
    eventually(lambda: device.connected)
    say(server, "down", b"this will")
    upcoming(device, lambda item: item == ReceivedMessage("down", b"this will"))


def test_what_is_over_the_limit_is_refused_before_it_is_sent(broker, transports):
    device = transports(broker.port, "device", "own")
    event(device, "connected")
    with pytest.raises(CodecError, match="over the limit of 1048576 bytes"):
        device.publish("own", bytes(1 << 20))
    say(device, "own", bytes((1 << 20) - 64))
    assert len(message(device, "own")) == (1 << 20) - 64
    assert device.connected


def test_a_smaller_limit_of_the_broker_holds(brokers, transports):
    small = brokers("allow_anonymous true", "max_packet_size 20000")
    device = transports(small.port, "device", retained={"status": bytes(30_000)})
    event(device, "connected")
    assert "30038 bytes to status is over the limit of 20000" in event(device, "denied")
    with pytest.raises(CodecError, match="over the limit of 20000 bytes"):
        device.publish("own", bytes(20_000))
    assert device.connected


def test_a_message_that_paho_cannot_read_is_dropped_and_not_delivered_for_ever(broker, transports):
    server = transports(broker.port, "server", "up")
    event(server, "connected")
    evil = Client(CallbackAPIVersion.VERSION2, "evil", protocol=MQTTv5)
    evil.connect("127.0.0.1", broker.port)
    evil.loop_start()
    odd = Properties(PacketTypes.PUBLISH)
    odd.UserProperty = ("a", "\ufeff")
    for qos in (0, 1):
        evil.publish("up", b"poison", qos, retain=True, properties=odd).wait_for_publish(
            MAX_SECONDS
        )
    evil.publish("up", b"after", 1).wait_for_publish(MAX_SECONDS)
    evil.disconnect()
    evil.loop_stop()
    assert upcoming(server, lambda item: True) == [ReceivedMessage("up", b"after")]
    late = transports(broker.port, "late", "up")
    event(late, "connected")
    say(late, "up", b"late")
    assert message(late, "up") == b"late"


def test_an_error_while_a_message_is_taken_does_not_end_the_thread(broker, transports, monkeypatch):
    device = transports(broker.port, "device", "own")
    event(device, "connected")
    offer = device.inbox.offer

    def fails(item):
        monkeypatch.setattr(device.inbox, "offer", offer)
        raise RuntimeError("no")

    monkeypatch.setattr(device.inbox, "offer", fails)
    say(device, "own", b"first")
    say(device, "own", b"second")
    assert upcoming(device, lambda item: True) == [ReceivedMessage("own", b"second")]


def test_who_is_not_let_in_is_told_so_and_tries_again_slowly(brokers, transports):
    closed = brokers("allow_anonymous false")
    device = transports(closed.port, "stranger")
    assert "stranger is not admitted (Not authorized); is it enrolled at this broker?" in event(
        device, "refused"
    )
    assert not device.connected


def test_what_the_access_list_forbids_is_told(brokers, transports, tmp_path):
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite open/#\n")
    acl.chmod(0o600)
    strict = brokers("allow_anonymous true", f"acl_file {acl}")
    device = transports(strict.port, "device", "open/x")
    event(device, "connected")
    say(device, "closed/x", b"no")
    assert "refuses messages of device to closed/x: Not authorized" in event(device, "denied")
    say(device, "open/x", b"yes")
    assert message(device, "open/x") == b"yes"


def test_two_of_one_name_do_not_throw_each_other_out_for_ever(broker, transports):
    def how(session: bytes) -> dict[str, object]:
        return {
            "retained": {"status": session},
            "will": Will("status", b"gone"),
            "backoff": BackoffSettings(),
        }

    watcher = transports(broker.port, "watcher", "status")
    old = transports(broker.port, "twin", "twin", **how(b"old"))
    assert message(watcher, "status") == b"old"
    new = transports(broker.port, "twin", "twin", **how(b"new"))
    assert "another process connected as twin" in event(old, "refused")
    eventually(lambda: new.connected and not old.connected)
    eventually(lambda: hears_itself(new, ReceivedMessage("twin", b"mine")))
    assert message(watcher, "status") == b"new"
    assert not old.publish("twin", b"not mine")
    assert new.connected


def hears_itself(transport: MqttTransport, wanted: ReceivedMessage) -> bool:
    """Its session is its twin's, too: who comes once more may take a message with it."""
    transport.publish(wanted.topic, wanted.payload)
    with suppress(Empty):
        while transport.inbox.get(timeout=1) != wanted:
            pass
        return True
    return False


CHILD = """
import sys, threading
from heterophony.boards.transport.queues import BrokerEndpoint, Will
from heterophony.boards.transport.mqtt_transport import MqttTransport
port, name, delay = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
will = Will(f"status/{name}", b"gone", delay)
retained = {f"status/{name}": b"here"}
transport = MqttTransport(BrokerEndpoint("127.0.0.1", port, name), retained=retained, will=will)
threading.Event().wait()
"""


def kill_once_here(
    server: MqttTransport, broker: Broker, name: str, delay: int
) -> list[ReceivedMessage]:
    """Start a process with a transport, kill it when the server knows of it; what the server heard."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(broker.port), name, str(delay)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with child:
        try:
            return statuses(server, ReceivedMessage(f"status/{name}", b"here"))
        finally:
            child.kill()


def statuses(server: MqttTransport, last: ReceivedMessage) -> list[ReceivedMessage]:
    """All messages up to and with the last one."""
    found = upcoming(server, lambda item: item == last)
    return [item for item in found if isinstance(item, ReceivedMessage)]


def test_a_killed_process_is_reported_gone_after_the_delay(broker, transports):
    server = transports(broker.port, "server", "status/+")
    kill_once_here(server, broker, "device", 1)
    gone = ReceivedMessage("status/device", b"gone")
    assert statuses(server, gone) == [gone]


def test_who_returns_within_the_delay_was_never_gone(broker, transports):
    server = transports(broker.port, "server", "status/+")
    kill_once_here(server, broker, "device", 4)
    device = transports(broker.port, "device", retained={"status/device": b"back"})
    event(device, "connected")
    heard = kill_once_here(server, broker, "later", 5)
    heard += statuses(
        server, ReceivedMessage("status/later", b"gone")
    )  # by now the other would have been
    assert [m.payload for m in heard if m.topic == "status/device"] == [b"back"]


def test_an_orderly_end_says_gone_after_all_that_was_handed_over(broker, transports):
    server = transports(broker.port, "server", "#")
    event(server, "connected")
    device = transports(broker.port, "device", will=Will("status/device", b"gone", 30))
    event(device, "connected")
    assert device.publish("up", b"last")
    device.close()
    gone = ReceivedMessage("status/device", b"gone")
    assert statuses(server, gone) == [ReceivedMessage("up", b"last"), gone]
    assert not device.publish("up", b"too late")
    device.close()


def test_closing_does_not_wait_for_a_broker_that_is_not_there(broker, transports):
    broker.kill()
    device = transports(broker.port, "device", will=Will("status/device", b"gone"))
    event(device, "lost")
    device.close()
    assert not device._thread.is_alive()
