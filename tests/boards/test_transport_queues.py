"""Inbox, outbox, reconnect waits and byte counts of a transport, without a broker."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import Client as Paho
from paho.mqtt.enums import CallbackAPIVersion

from heterophony.boards.engine import MAX_BATCH, ServerLink
from heterophony.boards.protocol.topics import find_owner, make_board_topic
from heterophony.boards.transport import queues as inbox_module
from heterophony.boards.transport.connection import explain_lost_connection
from heterophony.boards.transport.mqtt_transport import BackoffSettings, ReconnectBackoff
from heterophony.boards.transport.paho_client import ByteCounts, CountingPahoClient
from heterophony.boards.transport.queues import (
    BURST_UNITS,
    EVENT_SLOTS,
    MAX_IN_FLIGHT_BYTES,
    MAX_WAITING_BYTES,
    UNITS_PER_SECOND,
    ConnectionEvent,
    Inbox,
    MessageBudget,
    Outbox,
    OutgoingPacket,
    ReceivedMessage,
    compute_cost,
)


def test_a_full_inbox_drops_messages_but_no_events():
    inbox = Inbox(max_messages=2, max_bytes=100)
    for n in range(4):
        inbox.offer(ReceivedMessage("t", bytes([n])))
    inbox.offer(ConnectionEvent("lost", "why"))
    assert inbox.dropped == 2
    items = [inbox.get_nowait() for _ in range(3)]
    assert items == [
        ReceivedMessage("t", b"\0"),
        ReceivedMessage("t", b"\1"),
        ConnectionEvent("lost", "why"),
    ]
    for n in (60, 41, 40):
        inbox.offer(ReceivedMessage("t", bytes(n)))
    assert (inbox.dropped, inbox.held_bytes, inbox.qsize()) == (3, 100, 2)
    for _ in range(EVENT_SLOTS + 9):
        inbox.offer(ConnectionEvent("lost", "why"))
    assert inbox.qsize() == 2 + EVENT_SLOTS


def test_one_sender_cannot_fill_the_inbox():
    def up(board: str, size: int = 1) -> ReceivedMessage:
        return ReceivedMessage(make_board_topic(board, "up"), bytes(size))

    inbox = Inbox(max_messages=40, max_bytes=4000, find_sender=find_owner)
    for _ in range(100):
        inbox.offer(up("flood"))
        inbox.offer(ReceivedMessage("elsewhere", b""))
    assert (inbox.qsize(), inbox.dropped) == (20, 180)
    inbox.offer(up("one", 900))
    inbox.offer(up("one", 101))
    assert (inbox.qsize(), inbox.dropped) == (21, 181)
    for _ in range(21):
        inbox.get_nowait()
    assert inbox.held_bytes == len(inbox.messages_by_sender) == len(inbox.bytes_by_sender) == 0
    inbox.offer(up("flood"))
    assert inbox.qsize() == 1


def test_a_sender_that_sends_too_much_is_told_once_and_nothing_of_it_is_taken_any_more(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(inbox_module.time, "monotonic", lambda: clock[0])
    inbox = Inbox(max_messages=400, max_bytes=1 << 20, find_sender=find_owner)

    def up(board: str, size: int = 1) -> ReceivedMessage:
        return ReceivedMessage(make_board_topic(board, "up"), bytes(size))

    for _ in range(2 * BURST_UNITS):
        inbox.offer(up("flood"))
    taken = [inbox.get_nowait() for _ in range(inbox.qsize())]
    assert [i for i in taken if isinstance(i, ConnectionEvent)] == [
        ConnectionEvent("flood", "flood")
    ]
    clock[0] = 1e6
    inbox.offer(up("flood"))
    assert inbox.qsize() == 0
    inbox.offer(up("honest"))
    assert inbox.get_nowait() == up("honest")


def test_what_the_server_asked_for_costs_a_sender_nothing_and_large_messages_cost_more():
    budget, chunk = MessageBudget(), 131_072
    for n in range(10 * BURST_UNITS):  # faster than any link, and all of it wanted
        assert budget.try_spend("honest", chunk, now=n * 1e-6)
        budget.give_back("honest", compute_cost(chunk))
    assert budget.try_spend("honest", 1, now=1.0)
    spent = sum(budget.try_spend("large", chunk, now=1.0) for _ in range(BURST_UNITS))
    assert spent == BURST_UNITS // 17
    assert budget.exhausted == {"large"}
    budget.give_back("honest", 10**9)  # no more than a sender may have at once
    assert sum(budget.try_spend("honest", 1, now=1.0) for _ in range(2 * BURST_UNITS)) == (
        BURST_UNITS
    )
    for n in range(5):  # slower than units come back
        for _ in range(int(UNITS_PER_SECOND)):
            assert budget.try_spend("slow", 1, now=float(n))


def test_a_flood_does_not_keep_the_server_from_its_rounds():
    """Whoever sends one message more for each that is answered is not answered for ever."""
    inbox, answered, ticks = Inbox(max_messages=400, max_bytes=4000), [], []

    def receive(topic: str, payload: bytes, now: float) -> list:
        answered.append(payload)
        inbox.offer(ReceivedMessage("t", len(answered).to_bytes(4, "big")))
        return []

    session = SimpleNamespace(
        receive=receive,
        tick=lambda now: ticks.append(now) or [],
        record_sent=lambda sent: None,
        take_requested=list,
    )
    inbox.offer(ReceivedMessage("t", bytes(4)))
    link = ServerLink(session, SimpleNamespace(inbox=inbox), [].append)
    for _ in range(2):
        link.process_messages()
    assert len(ticks) == 2
    assert answered == [n.to_bytes(4, "big") for n in range(2 * MAX_BATCH)]  # none is lost


@given(st.lists(st.integers(0, 2 * MAX_IN_FLIGHT_BYTES), max_size=90))
def test_an_outbox_sends_within_its_window_and_keeps_the_order(sizes):
    outbox, packets = Outbox(), [OutgoingPacket(f"t/{i}", bytes(n)) for i, n in enumerate(sizes)]
    taken = [p for p in packets if outbox.put(p)]
    assert sum(p.size for p in taken) <= MAX_WAITING_BYTES
    assert (
        len(taken) == len(packets)
        or sum(p.size for p in packets) > MAX_WAITING_BYTES - 2 * MAX_IN_FLIGHT_BYTES
    )
    sent, answered = [], 0
    while len(sent) < len(taken):
        while packet := outbox.take_next(max_in_flight=300):
            outbox.record_sent(len(sent), packet)
            sent.append(packet)
        in_flight = sent[answered:]
        assert len(in_flight) == 1 or sum(p.size for p in in_flight) <= MAX_IN_FLIGHT_BYTES
        assert outbox.record_acknowledged(answered) is sent[answered]
        answered += 1
    assert sent == taken
    assert [outbox.record_acknowledged(n) for n in range(answered, len(sent))] == sent[answered:]
    assert outbox.empty
    assert outbox.record_acknowledged(0) is None


def test_an_outbox_takes_no_more_than_it_has_room_for():
    outbox, packets = (
        Outbox(),
        [OutgoingPacket(f"t/{i:02d}", bytes(MAX_IN_FLIGHT_BYTES)) for i in range(70)],
    )
    taken = [p for p in packets if outbox.put(p)]
    assert taken == packets[: MAX_WAITING_BYTES // packets[0].size]
    assert outbox.put(packets[-1], always=True)
    assert outbox.take_next(max_in_flight=1) is packets[0]


def test_what_still_waits_is_not_taken_twice():
    outbox, packet = Outbox(), OutgoingPacket("t", b"a chunk")
    assert [outbox.put(packet), outbox.put(OutgoingPacket("t", b"a chunk"))] == [True, True]
    assert [outbox.take_next(max_in_flight=9), outbox.take_next(max_in_flight=9)] == [packet, None]
    outbox.record_sent(1, packet)
    assert outbox.put(packet)  # asked for again after it was sent: it may be lost
    assert outbox.take_next(max_in_flight=9) is packet


@given(st.text(max_size=5), st.integers(0, 60), st.booleans())
def test_waits_double_up_to_their_bound_and_are_not_the_same_for_all(name, before, refused):
    waits = ReconnectBackoff(name, BackoffSettings(first=1, longest=30, first_after_refusal=60))
    waits.failures = before
    shortest, longest = (60, 600) if refused else (1, 30)
    whole = min(longest, shortest * 2**before)
    assert whole / 2 <= waits.compute_wait(refused, active_seconds=longest) <= whole
    assert shortest / 2 <= waits.compute_wait(refused, active_seconds=2 * longest + 1) <= shortest
    assert waits.failures == 1


def test_boards_that_lost_one_broker_do_not_return_in_one_instant():
    assert (
        len(
            {
                ReconnectBackoff(f"board-{n}", BackoffSettings()).compute_wait(False, 0.0)
                for n in range(100)
            }
        )
        == 100
    )


def test_a_client_counts_the_bytes_of_its_packets(monkeypatch):
    monkeypatch.setattr(Paho, "_sock_send", lambda self, buf: len(buf) - 1)  # a socket takes less
    monkeypatch.setattr(Paho, "_sock_recv", lambda self, size: b"abc"[:size])
    client = CountingPahoClient(CallbackAPIVersion.VERSION2, "cam-1")
    client.byte_counts = ByteCounts()
    assert client._sock_send(b"12345") == 4
    assert (client._sock_recv(2), client._sock_recv(9)) == (b"ab", b"abc")
    assert client.byte_counts == ByteCounts(sent=4, received=5)


def test_a_cut_handshake_is_explained_and_other_reasons_are_kept():
    cut = "failed to receive on socket: EOF occurred in violation of protocol (_ssl.c:2427)"
    assert "this enrolment may be revoked" in explain_lost_connection(cut)
    assert explain_lost_connection("Connection refused") == "Connection refused"
