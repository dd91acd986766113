"""Measure how long a run on boards takes while an enrolled board floods the broker.

python benchmarks/flood.py [--kinds none,up,…] [--seconds 70] [-c key=value …] [--json FILE]

A real broker, a server and two boards, each a process of this machine, and a third enrolled board
that sends prepared packets as fast as the broker takes them, from before the start of the run to
its end. The run is the same each time, and its bits must be the same, too. ``seconds`` are from the start of the
server's process to its end, ``of_rounds`` from the last board that joined, ``shut_out_after`` from the
moment the server listens until it has shut the board out. If the run has not ended after
``--seconds``, the first two are null.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from helpers.mqtt import PING, Flooder, make_publish, make_subscribe
from heterophony.boards.broker.broker import Broker
from heterophony.boards.journal import Fact, parse_journal_line, read_journal
from heterophony.boards.protocol.topics import make_board_topic, make_control_topic

RUN = "flooded"
HELD = {"one": "0,1", "two": "2,3"}
SETTINGS = ["algorithm.name=fedavg", "data.clients=4", "participation.rate=1.0", "rounds=10"]
SETTINGS += ["data.partition.alpha=0.5", "model.name=mlp", "training.steps=10", "training.batch=16"]
SMALL = b"x" * 20
KINDS: dict[str, bytes | None] = {
    "none": None,
    "up": make_publish(make_board_topic("mallory", "up"), SMALL),
    "up-1": make_publish(make_board_topic("mallory", "up"), SMALL, qos=1),
    "status": make_publish(make_board_topic("mallory", "status"), SMALL, qos=1, retain=True),
    "chunk": make_publish(make_board_topic("mallory", "up/chunk"), bytes(131072)),
    "foreign": make_publish(make_board_topic("one", "up"), SMALL),
    "ping": PING,
    "subscribe": make_subscribe(make_control_topic(RUN)),
    "connect": b"",
}


def start(*words: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "heterophony", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def measure(kind: str, seconds: float, pairs: list[str]) -> dict[str, Any]:
    """Run once under a flood of this kind; give up after ``seconds``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = Broker(folder / "broker")
        broker.start(port=0)
        try:
            return flood_run(kind, seconds, pairs, folder, broker)
        finally:
            broker.stop()


def flood_run(
    kind: str, seconds: float, pairs: list[str], folder: Path, broker: Broker
) -> dict[str, Any]:
    known = {n: broker.enrol(n, folder / f"{n}.toml") for n in (*HELD, "mallory")}
    packet, over = KINDS[kind], threading.Event()
    flooder = Flooder(known["mallory"], packet or b"")
    thread = threading.Thread(target=flooder.run, args=[lambda: not over.is_set()], daemon=True)
    if packet is not None:
        thread.start()
    settings = [word for pair in (*SETTINGS, *pairs) for word in ("-c", pair)]
    begin = time.monotonic()
    server = start(
        *("server", "--enrolment", broker.server_enrolment_file),
        *("--out", folder / RUN, *settings),
    )
    boards = [
        start(
            *("board", "--enrolment", folder / f"{n}.toml", "--clients", clients),
            *("--folder", folder / n, "--run", RUN),
        )
        for n, clients in HELD.items()
    ]
    try:
        said = server.communicate(timeout=seconds)[1].decode()
        took: float | None = time.monotonic() - begin
    except subprocess.TimeoutExpired:
        server.kill()
        said, took = server.communicate()[1].decode(), None
    flooded_for = time.monotonic() - begin
    over.set()
    for board in boards:
        if took is None:
            board.kill()
        board.communicate(timeout=60)
    if packet is not None:
        thread.join(60)
    times = {fact.kind: datetime.fromisoformat(fact.time) for fact in read_facts(folder / RUN)}
    result = folder / RUN / "result.json"
    bits = json.loads(result.read_text())["model_sha256"][:12] if result.exists() else None
    return {
        "kind": kind,
        "seconds": took and round(took, 1),
        "bits": bits,
        "of_rounds": subtract(times, "ended", "joined"),
        "shut_out_after": subtract(times, "shut_out", "started"),
        "sent": flooder.sent,
        "sent_per_second": round(flooder.sent / flooded_for),
        "connections": flooder.connections,
        "refused": flooder.refusals,
        "said": [line for line in said.splitlines() if "mallory" in line][-3:],
    }


def read_facts(folder: Path) -> list[Fact]:
    """Return the facts of the run's journal in their order."""
    found = (parse_journal_line(line) for line in read_journal(folder))
    return [fact for fact in found if fact is not None]


def subtract(times: dict[str, datetime], late: str, early: str) -> float | None:
    if late not in times or early not in times:
        return None
    return round((times[late] - times[early]).total_seconds(), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("-c", dest="pairs", action="append", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for kind in options.kinds.split(","):
        rows.append(measure(kind, options.seconds, options.pairs))
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
