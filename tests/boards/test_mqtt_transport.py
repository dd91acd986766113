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
    board = transports(broker.port, "board", "down")
    assert "server" in event(server, "connected")
    event(board, "connected")
    for n in range(12):
        say(board, "up/board", chunk(n))
        say(server, "down", chunk(n + 100))
    assert [message(server, "up/board") for _ in range(12)] == [chunk(n) for n in range(12)]
    assert [message(board, "down") for _ in range(12)] == [chunk(n + 100) for n in range(12)]


def test_a_broker_that_was_killed_and_forgot_everything_is_told_it_again(broker, transports):
    retained = {"status/board": b"here"}
    board = transports(broker.port, "board", "down", retained=retained)
    server = transports(broker.port, "server", "status/+", "up")
    event(board, "connected")
    assert message(server, "status/board") == b"here"
    say(board, "status/board", b"here, busy", retain=True)
    assert message(server, "status/board") == b"here, busy"
    broker.kill()
    event(board, "lost")
    event(server, "lost")
    assert not board.publish("up", b"nobody listens")
    assert not board.publish("status/board", b"here, free", retain=True)
    broker.start()
    event(board, "connected")
    assert message(server, "status/board") == b"here, free"
    say(server, "down", b"a task")
    assert message(board, "down") == b"a task"


def test_a_broker_that_is_not_there_yet_is_waited_for_and_told_of_once(broker, transports):
    broker.kill()
    board = transports(broker.port, "board")
    assert "refused" in event(board, "lost")
    eventually(lambda: board._backoff.failures > 3)
    broker.start()
    assert [e.kind for e in upcoming(board, lambda e: e.kind != "lost")] == ["connected"]


@pytest.mark.parametrize("fault", ["reset", "stall", "cut"])
def test_a_broken_connection_is_noticed_and_mended(broker, proxy, transports, fault):
    board = transports(proxy.port, "board", "down", keepalive=2)
    server = transports(broker.port, "server", "up")
    event(board, "connected")
    event(server, "connected")
    if fault == "cut":
        proxy.cut = CHUNK + 1000
    else:
        getattr(proxy, fault)()
    for n in range(4):
        board.publish("up", chunk(n))
    event(board, "lost")
    proxy.mend()
    event(board, "connected")
    say(board, "up", b"again")
    upcoming(server, lambda item: item == ReceivedMessage("up", b"again"))
    say(server, "down", b"and back")
    assert message(board, "down") == b"and back"


def test_an_idle_half_open_connection_is_noticed_too(proxy, transports):
    board = transports(proxy.port, "board", keepalive=2)
    event(board, "connected")
    proxy.stall()
    assert "Keep alive timeout" in event(board, "lost")
    proxy.mend()
    event(board, "connected")


def test_a_broker_that_accepts_and_says_nothing_is_given_up(proxy, transports):
    proxy.stall()
    board = transports(proxy.port, "board", keepalive=1)
    event(board, "lost")
    proxy.mend()
    event(board, "connected")


def test_a_slow_link_with_a_short_keepalive_stays_connected(broker, proxy, transports):
    """Three megabytes take several keepalives, but no chunk and no window takes two."""
    board = transports(proxy.port, "board", keepalive=2)
    server = transports(broker.port, "server", "up")
    event(board, "connected")
    event(server, "connected")
    proxy.rate, proxy.delay, proxy.jitter = 700_000, 0.001, 0.001
    for n in range(24):
        say(board, "up", chunk(n))
    assert [message(server, "up") for _ in range(24)] == [chunk(n) for n in range(24)]
    assert proxy.accepted == 1
    assert board.inbox.empty()


def test_damaged_bytes_cost_the_connection_and_nothing_else(broker, proxy, transports):
    board = transports(proxy.port, "board", "down", keepalive=2)
    server = transports(broker.port, "server")
    event(board, "connected")
    event(server, "connected")
    proxy.corrupt = 7
    say(server, "down", b"this will not be understood")
    event(board, "lost")
    seen = proxy.accepted
    eventually(lambda: proxy.accepted > seen + 2)
    proxy.mend()
    eventually(lambda: board.connected)
    say(server, "down", b"this will")
    upcoming(board, lambda item: item == ReceivedMessage("down", b"this will"))


def test_what_is_over_the_limit_is_refused_before_it_is_sent(broker, transports):
    board = transports(broker.port, "board", "own")
    event(board, "connected")
    with pytest.raises(CodecError, match="over the limit of 1048576 bytes"):
        board.publish("own", bytes(1 << 20))
    say(board, "own", bytes((1 << 20) - 64))
    assert len(message(board, "own")) == (1 << 20) - 64
    assert board.connected


def test_a_smaller_limit_of_the_broker_holds(brokers, transports):
    small = brokers("allow_anonymous true", "max_packet_size 20000")
    board = transports(small.port, "board", retained={"status": bytes(30_000)})
    event(board, "connected")
    assert "30038 bytes to status is over the limit of 20000" in event(board, "denied")
    with pytest.raises(CodecError, match="over the limit of 20000 bytes"):
        board.publish("own", bytes(20_000))
    assert board.connected


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
    board = transports(broker.port, "board", "own")
    event(board, "connected")
    offer = board.inbox.offer

    def fails(item):
        monkeypatch.setattr(board.inbox, "offer", offer)
        raise RuntimeError("no")

    monkeypatch.setattr(board.inbox, "offer", fails)
    say(board, "own", b"first")
    say(board, "own", b"second")
    assert upcoming(board, lambda item: True) == [ReceivedMessage("own", b"second")]


def test_who_is_not_let_in_is_told_so_and_tries_again_slowly(brokers, transports):
    closed = brokers("allow_anonymous false")
    board = transports(closed.port, "stranger")
    assert "stranger is not admitted (Not authorized); is it enrolled at this broker?" in event(
        board, "refused"
    )
    assert not board.connected


def test_what_the_access_list_forbids_is_told(brokers, transports, tmp_path):
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite open/#\n")
    acl.chmod(0o600)
    strict = brokers("allow_anonymous true", f"acl_file {acl}")
    board = transports(strict.port, "board", "open/x")
    event(board, "connected")
    say(board, "closed/x", b"no")
    assert "refuses messages of board to closed/x: Not authorized" in event(board, "denied")
    say(board, "open/x", b"yes")
    assert message(board, "open/x") == b"yes"


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
    kill_once_here(server, broker, "board", 1)
    gone = ReceivedMessage("status/board", b"gone")
    assert statuses(server, gone) == [gone]


def test_who_returns_within_the_delay_was_never_gone(broker, transports):
    server = transports(broker.port, "server", "status/+")
    kill_once_here(server, broker, "board", 4)
    board = transports(broker.port, "board", retained={"status/board": b"back"})
    event(board, "connected")
    heard = kill_once_here(server, broker, "later", 5)
    heard += statuses(
        server, ReceivedMessage("status/later", b"gone")
    )  # by now the other would have been
    assert [m.payload for m in heard if m.topic == "status/board"] == [b"back"]


def test_an_orderly_end_says_gone_after_all_that_was_handed_over(broker, transports):
    server = transports(broker.port, "server", "#")
    event(server, "connected")
    board = transports(broker.port, "board", will=Will("status/board", b"gone", 30))
    event(board, "connected")
    assert board.publish("up", b"last")
    board.close()
    gone = ReceivedMessage("status/board", b"gone")
    assert statuses(server, gone) == [ReceivedMessage("up", b"last"), gone]
    assert not board.publish("up", b"too late")
    board.close()


def test_closing_does_not_wait_for_a_broker_that_is_not_there(broker, transports):
    broker.kill()
    board = transports(broker.port, "board", will=Will("status/board", b"gone"))
    event(board, "lost")
    board.close()
    assert not board._thread.is_alive()
