"""All that boards and server send in a run, byte by byte: nothing in it is personal."""

from __future__ import annotations

from collections import defaultdict

import pytest

from helpers.boards import compute_one_at_a_time, mosquitto, on_boards, small
from heterophony.boards import board as boards
from heterophony.boards.protocol import blobs as chunks
from heterophony.boards.protocol.messages import split_run
from heterophony.boards.transport.mqtt_transport import MqttTransport
from heterophony.boards.transport.paho_client import CountingPahoClient
from heterophony.core import codec
from heterophony.core.errors import CodecError
from heterophony.core.tensors import Tensors, matches_any, tensor_to_bytes


class Tap:
    """What every link says: as bytes, before they are encrypted, and as messages."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sent: dict[object, list[bytes]] = defaultdict(list)  # by connection
        self.pieces: dict[str, dict[int, bytes]] = defaultdict(dict)  # by blob
        self.up: list[Tensors] = []
        send, publish, work = CountingPahoClient._sock_send, MqttTransport.publish, boards.work

        def sending(client, content):
            count = send(client, content)
            self.sent[client].append(bytes(content[:count]))
            return count

        def publishing(link, topic, payload, retain=False):
            if topic.endswith("/chunk"):
                chunk = chunks.decode_chunk(split_run(payload)[1])
                self.pieces[chunk.sha256][chunk.index] = chunk.data
            return publish(link, topic, payload, retain)

        def working(plan, job, place, compute):
            reply = work(plan, job, place, compute)
            self.up.append(reply.tensors)
            return reply

        patch.setattr(CountingPahoClient, "_sock_send", sending)
        patch.setattr(MqttTransport, "publish", publishing)
        patch.setattr(boards, "work", working)

    def blobs(self) -> list[bytes]:
        return [b"".join(p[i] for i in sorted(p)) for p in self.pieces.values()]

    def streams(self) -> list[bytes]:
        return [b"".join(parts) for parts in self.sent.values()]


def names(blob: bytes) -> set[str]:
    """Of the tensors in it; the configuration has none."""
    try:
        return set(codec.decode_blob(blob)[0])
    except CodecError:
        return set()


def learned(tensors: Tensors) -> set[bytes]:
    """The bytes of all that a client could have learned: more than one number over and over."""
    return {tensor_to_bytes(v) for v in tensors.values() if len(v.unique()) > 1}


@pytest.mark.parametrize("name", ["fedreg", "ditto", "fedper"])
def test_nothing_personal_is_in_the_traffic(name, tmp_path, monkeypatch):
    compute_one_at_a_time(monkeypatch)
    tap, own, config = Tap(monkeypatch), set[bytes](), small(name, rounds=3)
    plan = config.build_plan(config.build_federation())
    stay = list(plan.algorithm.stays(plan.template))
    personal = {k for k in plan.template.state_dict() if matches_any(k, stay)}

    def look(event, company):
        """At what the clients keep on their boards after the round."""
        for board in company.boards.values() if event["event"] == "round" else ():
            for client in board.clients:
                kept = board.client_store.load_memory(client, before=event["t"] + 1)
                for tensors in kept.values():
                    own.update(learned(Tensors({k: tensors[k] for k in personal & set(tensors)})))

    with mosquitto(tmp_path, "one", "two") as (_, known):
        on_boards(config, known, tmp_path / name, on_event=look)
    blobs, streams = tap.blobs(), tap.streams()
    assert len(streams) == 3
    assert len(own) >= 6  # of three rounds with two clients each
    told = set().union(*map(names, blobs))
    assert told
    assert not told & personal
    assert not [v for v in own if any(v in content for content in [*blobs, *streams])]
    examples = [tensor_to_bytes(x) for x in plan.federation.x[:200]]
    assert not [x for x in examples if any(x in content for content in [*blobs, *streams])]
    shared = set().union(*map(learned, tap.up))  # the control: these do travel, and are seen
    assert shared
    assert all(any(v in stream for stream in streams) for v in shared)
    assert all(any(v in blob for blob in blobs) for v in shared)
