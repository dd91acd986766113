"""Measure the cost of the protocol for boards: bytes besides tensors, seconds besides training.

python benchmarks/testbed.py [--rounds 5] [-c key=value …] [--json FILE]

The convnet, thirty clients of Fashion-MNIST, ten boards; all processes run on this machine.

Bytes are all that the server's connection sends and receives: whole MQTT packets with topics,
acknowledgements and repetitions. Tensors are counted once per blob and board, decoded from the
recorded chunks. Seconds are compared with the same run in the pool, on as many workers as there
are cores, with the same jobs and bits. The difference is the cost of the protocol: MQTT,
encryption, Mosquitto, checks, boards' disks, and ten processes on few cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from heterophony.boards import server, testbed
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.boards.protocol import blobs as chunks
from heterophony.boards.protocol.messages import split_run
from heterophony.boards.transport.mqtt_transport import MqttTransport
from heterophony.boards.transport.queues import ReceivedMessage
from heterophony.config.config import Config
from heterophony.config.reading import read_config
from heterophony.core.codec import decode_blob
from heterophony.core.errors import CodecError
from heterophony.runs.folder import RunFolder
from heterophony.runs.summary import summarise
from heterophony.studies.run import execute_plan

SETTINGS = ["data.name=fmnist", "data.clients=30", "model.name=convnet"]


class TensorCounter:
    """Counts the tensors in chunks, by the board that receives or sends them."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, str], dict[int, bytes]] = defaultdict(dict)

    def add(self, topic: str, payload: bytes) -> None:
        if topic.endswith("/chunk"):
            chunk = chunks.decode_chunk(split_run(payload)[1])
            self.parts[topic, chunk.sha256].setdefault(chunk.index, chunk.data)

    def bytes(self) -> int:
        """Return the bytes of tensors; blobs without tensors count nothing."""
        return sum(
            count_tensor_bytes(b"".join(p[i] for i in sorted(p))) for p in self.parts.values()
        )


def count_tensor_bytes(blob: bytes) -> int:
    try:
        return decode_blob(blob)[0].nbytes
    except CodecError:
        return 0


def run_counting_server(send: testbed.SendMessage, folder: Path, enrolment: Enrolment) -> None:
    """Run the server of a testbed, and count what its connection sends and receives."""
    down, up, links = TensorCounter(), TensorCounter(), []

    class CountingTransport(MqttTransport):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            links.append(self)
            offer = self.inbox.offer

            def count_and_offer(item: Any) -> Any:
                if isinstance(item, ReceivedMessage):
                    up.add(item.topic, item.payload)
                return offer(item)

            self.inbox.offer = count_and_offer  # type: ignore[method-assign]

        def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
            taken = super().publish(topic, payload, retain)
            if taken:
                down.add(topic, payload)
            return taken

    server.MqttTransport = CountingTransport  # type: ignore[misc]
    testbed.run_server(send, folder, enrolment)
    link = links[0]
    counts = {
        "sent": link.byte_counts.sent,
        "received": link.byte_counts.received,
        "down": down.bytes(),
        "up": up.bytes(),
    }
    (folder / "wire.json").write_text(json.dumps(counts))


class CountingTestbed(testbed.Testbed):
    server_target = staticmethod(run_counting_server)


def run_on_boards(config: Config, out: Path) -> tuple[dict[str, int], float, str]:
    """Return bytes by kind, seconds per round, and the model's digest."""
    federation, folder = config.build_federation(), RunFolder(out)
    folder.create(config.fill_model_defaults(federation).to_toml())
    clients_by_board = testbed.assign_clients(federation.clients, 10, folder)
    seed = config.top.seed
    with CountingTestbed(folder, clients_by_board, seed, (), print, lambda event: None) as bed:
        bed.supervise()
    folder.close()
    found = summarise(list(folder.iterate_events()))
    wire = json.loads((out / "wire.json").read_text())
    return wire, found.seconds / found.rounds, found.model_sha256


def run_in_pool(config: Config, out: Path) -> tuple[float, str]:
    """Return seconds per round, and the model's digest."""
    federation, folder = config.build_federation(), RunFolder(out)
    folder.create(config.fill_model_defaults(federation).to_toml())
    engine = replace(config.engine, name="pool")
    found = execute_plan(config.build_plan(federation), folder, engine)
    folder.close()
    return found.seconds / found.rounds, found.model_sha256


def measure(algorithm: str, pairs: list[str], folder: Path) -> dict[str, Any]:
    config = read_config(None, [*SETTINGS, f"algorithm.name={algorithm}", *pairs])
    wire, seconds, model = run_on_boards(config, folder / f"{algorithm}-boards")
    pool_seconds, pool_model = run_in_pool(config, folder / f"{algorithm}-pool")
    tensors, all_bytes = wire["down"] + wire["up"], wire["sent"] + wire["received"]
    return {
        "algorithm": algorithm,
        "rounds": config.top.rounds,
        **wire,
        "beyond_tensors": (all_bytes - tensors) / tensors,
        "seconds_per_round": seconds,
        "seconds_per_round_in_the_pool": pool_seconds,
        "protocol_seconds_per_round": seconds - pool_seconds,
        "same_bits": model == pool_model,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-c", dest="pairs", action="append", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    testbed.start_testbed_fork_server()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for algorithm in ("fedreg", "fedavg"):
            pairs = [f"rounds={options.rounds}", *options.pairs]
            row = measure(algorithm, pairs, Path(folder))
            rows.append(row)
            print(
                f"{algorithm}: {100 * row['beyond_tensors']:.3f} % beyond"
                f" {(row['down'] + row['up']) / 1e6:.1f} MB of tensors; a round"
                f" {row['seconds_per_round']:.2f} s, in the pool"
                f" {row['seconds_per_round_in_the_pool']:.2f} s;"
                f" {'same bits' if row['same_bits'] else 'OTHER BITS'}"
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
