"""An enrolled board that floods a run, with a real Mosquitto: same bits, and it is shut out."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.boards import (
    LONG,
    BoardRun,
    compute_one_at_a_time,
    mosquitto,
    on_boards,
    simulated,
    small,
)
from helpers.mqtt import Flooder, let_in, make_publish
from heterophony.boards.broker.broker import Broker
from heterophony.boards.broker.certificates import EnrolledClients, read_serial_number
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.boards.engine import FLOOD_REASON
from heterophony.boards.journal import find_altered_lines, parse_journal_line, read_journal
from heterophony.boards.protocol.server_session import ServerSession
from heterophony.boards.protocol.topics import make_board_topic
from heterophony.results.boards import build_boards_section, read_board_status

HELD = {"one": ["0", "2"], "two": ["1", "3"]}
MOST = 60_000_000  # packets; reached only where a test fails, or one slow core runs everything


@pytest.fixture
def broker(tmp_path) -> Iterator[tuple[Broker, dict[str, Enrolment]]]:
    with mosquitto(tmp_path, *HELD, "mallory") as made:
        yield made


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    compute_one_at_a_time(monkeypatch)


@pytest.mark.parametrize(
    ("at_hand", "channel", "qos"),
    [(True, "up", 0), (True, "status", 1), (False, "up", 0)],
    ids=["messages", "statuses", "the broker is elsewhere"],
)
def test_a_flood_costs_no_bit_and_its_sender_is_shut_out(
    broker, tmp_path, monkeypatch, at_hand, channel, qos
):
    made, known = broker
    config = small("fedavg")
    alone, _ = simulated(config, tmp_path / "alone")
    seen, over, said = threading.Event(), threading.Event(), []
    packet = make_publish(make_board_topic("mallory", channel), b"x" * 20, qos)
    flooder = Flooder(known["mallory"], packet)
    shut_out = ServerSession.shut_out_board

    def shutting_out(session, *given):
        shut_out(session, *given)
        seen.set()

    class Patient(BoardRun):
        """Hands nothing in before the flood is noticed."""

        def submit_result(self, *result):
            assert seen.wait(LONG)
            super().submit_result(*result)

    monkeypatch.setattr(ServerSession, "shut_out_board", shutting_out)
    thread = threading.Thread(
        target=flooder.run,
        args=[lambda: flooder.sent < MOST and not (flooder.refusals or over.is_set())],
        daemon=True,
    )
    thread.start()
    enrolled = EnrolledClients(made.folder) if at_hand else None
    try:
        result, _ = on_boards(
            *(config, known, tmp_path / "flooded", HELD, {"one": Patient}, said.append),
            enrolled=enrolled,
        )
        if at_hand:
            thread.join(LONG)  # its connection was ended, and it is not let in again
            assert not let_in("127.0.0.1", made.read_listen_settings().port, flooder.trust)
    finally:
        over.set()
    thread.join(LONG)
    assert flooder.refusals == at_hand
    assert flooder.sent < MOST
    assert result.model_sha256 == alone.model_sha256
    assert sum("board mallory is shut out: it sent more messages" in w for w in said) == 1
    status = json.loads((tmp_path / "flooded" / "run" / "boards-now.json").read_text())
    assert {n: d["state"] for n, d in status["boards"].items()}["mallory"] == "shut_out"
    table = read_board_status(tmp_path / "flooded" / "run")
    assert table is not None
    assert "1 shut out" in build_boards_section(table)["summary"]
    check_journal(tmp_path / "flooded" / "run", made if at_hand else None)
    enrolled_names = [d.name for d in made.certificate_store.list_enrolled()]
    assert ("mallory" in enrolled_names) != at_hand


def check_journal(folder: Path, broker: Broker | None) -> None:
    """Who joined with which certificate, what went to whom and came back, and who was shut out."""
    lines = read_journal(folder)
    facts = [parse_journal_line(line) for line in lines]
    assert list(find_altered_lines(lines)) == []
    assert [f.kind for f in (facts[0], facts[-1])] == ["started", "ended"]
    joined = {f.board: f.details for f in facts if f.kind == "joined"}
    assert {name: details["clients"] for name, details in joined.items()} == HELD
    for name, details in joined.items():
        if broker is None:
            assert "certificate" not in details
        else:
            certificate = (broker.folder / "boards" / f"{name}.pem").read_text()
            assert details["certificate"] == read_serial_number(certificate)
    (out,) = [f for f in facts if f.kind == "shut_out"]
    assert (out.board, out.details) == ("mallory", {"why": FLOOD_REASON})
    received = Counter(
        (f.details["round"], f.details["job"]) for f in facts if f.kind == "received"
    )
    assert received == {(0, "evaluate"): 4, (0, "train"): 2, (1, "train"): 2, (2, "evaluate"): 4}
    sent = {(f.board, f.details["round"]) for f in facts if f.kind == "sent"}
    assert {("one", 0), ("two", 0), ("one", 2), ("two", 2)} <= sent
    assert {f.board for f in facts if f.kind in ("sent", "received")} == set(HELD)
