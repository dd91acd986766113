"""What the protocol for devices costs: bytes beyond the tensors, and seconds beyond the training.

python benchmarks/testbed.py [--rounds 5] [-c key=value …] [--json FILE]

Thirty clients of Fashion-MNIST on ten devices, all processes of this machine, the convnet.

Bytes: all that the server's link sends and receives, whole MQTT packets with topics, answers and
what was sent twice. Tensors: the numbers in what was sent, each blob once per device that got it,
decoded from the recorded chunks. Seconds: the same run with the pool, on as many workers as there
are cores, has the same jobs and the same bits; what a round on devices takes longer is the
protocol's: MQTT, encryption, Mosquitto, checks, devices' disks, and ten processes on few cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from heterophony.config.config import Config
from heterophony.config.reading import read_config
from heterophony.core.codec import decode_blob
from heterophony.core.errors import CodecError
from heterophony.devices import server
from heterophony.devices.broker.enrolment import Enrolment
from heterophony.devices.protocol import chunks
from heterophony.devices.testbed import processes
from heterophony.devices.testbed.testbed import Testbed, assign_clients, start_testbed_fork_server
from heterophony.devices.transport.inbox import ReceivedMessage
from heterophony.devices.transport.mqtt_transport import MqttTransport
from heterophony.experiments.execute import execute_plan
from heterophony.run.store import RunFolder
from heterophony.run.summary import summarise

SETTINGS = ["data.name=fmnist", "data.clients=30", "model.name=convnet"]


class Tally:
    """The tensors in the chunks that pass, by who gets or sends them."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, str], dict[int, bytes]] = defaultdict(dict)

    def see(self, topic: str, payload: bytes) -> None:
        if topic.endswith("/chunk"):
            chunk = chunks.decode_chunk(payload)
            self.parts[topic, chunk.sha256].setdefault(chunk.index, chunk.data)

    def bytes(self) -> int:
        """Of tensors alone; the configuration has none."""
        return sum(numbers(b"".join(p[i] for i in sorted(p))) for p in self.parts.values())


def numbers(blob: bytes) -> int:
    try:
        return decode_blob(blob)[0].nbytes
    except CodecError:
        return 0


def counted(tell: processes.SendMessage, folder: Path, enrolment: Enrolment) -> None:
    """The server of a testbed, with all that passes its link counted."""
    down, up, links = Tally(), Tally(), []

    class Counted(MqttTransport):
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how)
            links.append(self)
            offer = self.inbox.offer

            def seen(item: Any) -> Any:
                if isinstance(item, ReceivedMessage):
                    up.see(item.topic, item.payload)
                return offer(item)

            self.inbox.offer = seen  # type: ignore[method-assign]

        def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
            taken = super().publish(topic, payload, retain)
            if taken:
                down.see(topic, payload)
            return taken

    server.MqttTransport = Counted  # type: ignore[misc]
    processes.run_server(tell, folder, enrolment)
    link = links[0]
    counts = {
        "sent": link.byte_counts.sent,
        "received": link.byte_counts.received,
        "down": down.bytes(),
        "up": up.bytes(),
    }
    (folder / "wire.json").write_text(json.dumps(counts))


class Measured(Testbed):
    server_work = staticmethod(counted)


def on_devices(config: Config, out: Path) -> tuple[dict[str, int], float, str]:
    """Bytes by kind, seconds of a round, the model."""
    federation, folder = config.build_federation(), RunFolder(out)
    folder.create(config.fill_model_defaults(federation).to_toml())
    hands = assign_clients(federation.clients, 10, folder)
    with Measured(folder, hands, config.top.seed, (), print, lambda event: None) as bed:
        bed.supervise()
    folder.close()
    found = summarise(list(folder.iterate_events()))
    wire = json.loads((out / "wire.json").read_text())
    return wire, found.seconds / found.rounds, found.model_sha256


def simulated(config: Config, out: Path) -> tuple[float, str]:
    """Seconds of a round, the model."""
    federation, folder = config.build_federation(), RunFolder(out)
    folder.create(config.fill_model_defaults(federation).to_toml())
    found = execute_plan(config.build_plan(federation), folder, "pool")
    folder.close()
    return found.seconds / found.rounds, found.model_sha256


def measured(algorithm: str, pairs: list[str], folder: Path) -> dict[str, Any]:
    config = read_config(None, [*SETTINGS, f"algorithm.name={algorithm}", *pairs])
    wire, seconds, model = on_devices(config, folder / f"{algorithm}-devices")
    alone, same = simulated(config, folder / f"{algorithm}-pool")
    tensors, all_bytes = wire["down"] + wire["up"], wire["sent"] + wire["received"]
    return {
        "algorithm": algorithm,
        "rounds": config.top.rounds,
        **wire,
        "beyond_tensors": (all_bytes - tensors) / tensors,
        "seconds_per_round": seconds,
        "seconds_per_round_in_the_pool": alone,
        "protocol_seconds_per_round": seconds - alone,
        "same_bits": model == same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-c", dest="pairs", action="append", default=[])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    start_testbed_fork_server()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for algorithm in ("fedreg", "fedavg"):
            pairs = [f"rounds={asked.rounds}", *asked.pairs]
            row = measured(algorithm, pairs, Path(folder))
            rows.append(row)
            print(
                f"{algorithm}: {100 * row['beyond_tensors']:.3f} % beyond"
                f" {(row['down'] + row['up']) / 1e6:.1f} MB of tensors; a round"
                f" {row['seconds_per_round']:.2f} s, in the pool"
                f" {row['seconds_per_round_in_the_pool']:.2f} s;"
                f" {'same bits' if row['same_bits'] else 'OTHER BITS'}"
            )
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
