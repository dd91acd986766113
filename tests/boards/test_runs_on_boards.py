"""Runs on boards, with the real Mosquitto and real processes: the bits of a simulation."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import heterophony as hp
from helpers.boards import mosquitto
from helpers.forked import Forked
from heterophony.boards.broker.broker import Broker
from heterophony.core.errors import DataError

SETTINGS = {
    "rounds": "3",
    "data.clients": "4",
    "data.partition.alpha": "0.5",
    "model.name": "mlp",
    "training.epochs": "1",
    "participation.rate": "0.5",
}
LONG = 120  # seconds; a machine may be busy


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[tuple[Broker, Path]]:
    """A broker with two boards enrolled."""
    folder = tmp_path_factory.mktemp("broker")
    with mosquitto(folder, "one", "two") as (made, _):
        yield made, folder


class Testbed:
    """A server and two boards; whatever is still there is ended with the test."""

    __test__ = False

    def __init__(self, algorithm: str, enrolments: Path, folder: Path) -> None:
        self.enrolments, self.folder = enrolments, folder
        pairs = {"algorithm.name": algorithm, **SETTINGS}
        self.settings = [w for k, v in pairs.items() for w in ("-c", f"{k}={v}")]
        self.processes: list[Forked] = []

    def start(self, *words: str) -> Forked:
        self.processes.append(Forked(*words))
        return self.processes[-1]

    def server(self) -> Forked:
        enrolled = str(self.enrolments / "broker" / "server.toml")
        out = ["--out", f"run-{self.folder.name}"]
        return self.start("server", "--enrolment", enrolled, *self.settings, *out, "--json")

    def board(self, name: str, clients: str) -> Forked:
        enrolled = str(self.enrolments / f"{name}.toml")
        run = ["--run", f"run-{self.folder.name}"]
        return self.start("board", "--enrolment", enrolled, "--clients", clients, *run)

    def events(self) -> list[dict]:
        path = self.folder / f"run-{self.folder.name}" / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rounds(self) -> int:
        return sum(e["event"] == "round" for e in self.events())

    def serial(self) -> dict:
        words = ["run", *self.settings, "-c", "engine.name=serial", "--out", "serial", "--json"]
        return json.loads(self.start(*words).communicate(timeout=LONG)[0])

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            process.close()


@pytest.fixture
def testbed(broker, tmp_path, monkeypatch) -> Iterator[Callable[[str], Testbed]]:
    monkeypatch.chdir(tmp_path)
    made: list[Testbed] = []

    def make(algorithm: str) -> Testbed:
        made.append(Testbed(algorithm, broker[1], tmp_path))
        return made[-1]

    yield make
    for bed in made:
        bed.end()


def finished(process: Forked) -> str:
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == 0, err
    return out


def test_boards_have_the_bits_of_a_simulation_though_one_is_killed(testbed):
    bed = testbed("fedreg")
    server, first, second = bed.server(), bed.board("one", "0,2"), bed.board("two", "1,3")
    while bed.rounds() < 1:
        assert server.poll() is None, server.communicate()
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    first = bed.board("one", "0,2")
    result, alone = json.loads(finished(server)), bed.serial()
    finished(first)
    said = second.communicate(timeout=LONG)[1]
    assert f"taking part in run run-{bed.folder.name}: clients 1, 3" in said.splitlines()
    assert result["model_sha256"] == alone["model_sha256"]
    assert result["P"]["last"] == alone["P"]["last"]
    assert result["G"] == alone["G"]
    assert result["bytes"] == alone["bytes"]
    loaded, simulated = hp.load(f"run-{bed.folder.name}"), hp.load("serial")
    assert loaded.summary.to_dict() == result
    examples = simulated.plan.federation.x[:5]
    assert torch.equal(loaded.generic()(examples), simulated.generic()(examples))
    with pytest.raises(DataError, match="the personal model of client '0' is on its board"):
        loaded.personal(0)
    for client in ("0", "3"):
        own = loaded.personal(client, board=bed.folder / "board")
        assert torch.equal(own(examples), simulated.personal(client)(examples))
    with pytest.raises(DataError, match="client '0' of this run, which is on board 'one'"):
        loaded.personal("0", board=bed.folder / "board" / "two")
