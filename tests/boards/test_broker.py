"""The broker, a real Mosquitto: who is let in, who reads and writes what, what outlives a kill."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from helpers.boards import installed
from helpers.mqtt import DEADLINE, Client, handshake, let_in
from heterophony.boards.broker import broker as maintenance
from heterophony.boards.broker import enrolment, process
from heterophony.boards.broker import enrolment as network
from heterophony.boards.broker import process as mosquitto
from heterophony.boards.broker.broker import Broker
from heterophony.boards.broker.certificates import CertificateAuthority
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.cli import app
from heterophony.core.errors import BrokerError, ConfigError, FolderError, HeterophonyError

RUN = "het/3"
FULL = 294912  # bytes of the largest packet


@pytest.fixture(scope="session", autouse=True)
def there() -> None:
    installed()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to be in, and no terminal to be seen by."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")


def call(*words: str | Path) -> Result:
    done = CliRunner().invoke(app, ["broker", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def good(*words: str | Path) -> Result:
    done = call(*words)
    assert done.exit_code == 0, done.stderr
    return done


def refused(code: int, *words: str | Path) -> str:
    """The one line on stderr."""
    done = call(*words)
    assert (done.exit_code, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    return line.removeprefix("error: ")


@pytest.fixture
def brokers() -> Iterator[Callable[..., Broker]]:
    """Brokers that are down when the test is over."""
    made: list[Broker] = []

    def make(folder: Path, **how: Any) -> Broker:
        made.append(Broker(folder))
        made[-1].start(**{"port": 0} | how)
        return made[-1]

    yield make
    for broker in made:
        broker.stop()


@pytest.fixture
def broker(brokers, tmp_path) -> Broker:
    """One that is up, of the test's own."""
    return brokers(tmp_path / "broker")


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[tuple[Broker, dict[str, Enrolment]]]:
    """One that is up, with three enrolments; who uses it leaves nothing behind."""
    folder = tmp_path_factory.mktemp("shared")
    found = Broker(folder / "broker")
    found.start(port=0)
    known = {name: found.enrol(name, folder / f"{name}.toml") for name in ("cam-1", "cam-2")}
    yield found, known | {"server": enrolment.read_enrolment(found.server_enrolment_file)}
    found.stop()


@pytest.fixture
def join() -> Iterator[Callable[..., Client]]:
    """Clients that are gone when the test is over."""
    made: list[Client] = []

    def sign_in(known_as: Enrolment, **how: Any) -> Client:
        made.append(Client(known_as, **how))
        return made[-1]

    yield sign_in
    for client in made:
        client.close()


def enrolled(broker: Broker, name: str = "cam-1") -> Enrolment:
    return broker.enrol(name, broker.folder.parent / f"{name}.toml")


def lets_in(known_as: Enrolment) -> bool:
    return let_in(known_as.address, known_as.port, known_as.make_ssl_context())


def killed(broker: Broker) -> None:
    pid = broker.find_pid()
    assert pid is not None
    watched = os.pidfd_open(pid)
    signal.pidfd_send_signal(watched, signal.SIGKILL)
    assert select.select([watched], [], [], DEADLINE)[0]
    os.close(watched)


# who may what, observed by what arrives


def own(name: str) -> dict[str, str]:
    """All topics of a board, and whether it reads or writes them."""
    parts = {"down": "read", "down/chunk": "read", "up": "write", "up/chunk": "write"}
    return {
        f"{RUN}/b/{name}/{part}": may for part, may in (parts | {"status": "readwrite"}).items()
    }


COMMON = dict.fromkeys((f"{RUN}/r/a/ctl", f"{RUN}/r/b/ctl", f"{RUN}/r/a/server"), "read")
MINE = own("cam-1")
OTHERS = [*own("cam-2"), *own("server"), f"{RUN}/b", f"{RUN}/b/cam-1", f"{RUN}/b/cam-1/x",
          f"{RUN}/b/cam-1/status/x", f"{RUN}/b/cam-1/up/x", f"{RUN}/b/cam-1/up/chunk/x", f"{RUN}/r/a/ctl/x", f"{RUN}/ctl", "het/3", f"{RUN}/b/cam-1x/up",
          f"{RUN}/x/b/cam-1/up", f"{RUN}/r/a/b/cam-1/up"]  # fmt: skip
BELOW = [*COMMON, *MINE, *OTHERS]
BEYOND = ["het/1/r/ctl", "het/1/r/b/cam-1/up", "het", "elsewhere", "b/cam-1/up", "/het/3/r/a/ctl"]
DENIED = "Not authorized"


def allowed(name: str) -> set[str]:
    return {topic for topic, may in (COMMON | MINE).items() if name in may}


def test_a_board_writes_its_own_topics_and_no_others(shared, join):
    _, known = shared
    server, board = join(known["server"]), join(known["cam-1"])
    server.subscribe("het/3/#", "#")
    told = {topic: board.publish(topic, b"!") for topic in [*BELOW, *BEYOND]}
    server.publish(f"{RUN}/end")
    assert {topic for topic, _ in server.until((f"{RUN}/end", b""))} == allowed("write")
    assert {topic for topic, said in told.items() if said != DENIED} == allowed("write")


@pytest.mark.parametrize("asks", [["#"], ["het/3/#"], [*BELOW, *BEYOND]], ids=len)
def test_a_board_reads_its_own_topics_and_no_others_however_it_asks(shared, join, asks):
    _, known = shared
    server, board = join(known["server"]), join(known["cam-1"])
    board.subscribe(*asks, f"{RUN}/b/cam-1/down/end")
    for topic in BELOW:
        server.publish(topic, b"!")
    server.publish(f"{RUN}/b/cam-1/down/end")
    heard = {topic for topic, _ in board.until((f"{RUN}/b/cam-1/down/end", b""))}
    assert heard == allowed("read")


def test_what_is_retained_for_others_is_not_given_to_a_late_board(shared, join):
    _, known = shared
    server = join(known["server"])
    for topic in BELOW:
        server.publish(topic, b"kept", retain=True)
    board = join(known["cam-1"])
    board.subscribe("#")
    server.publish(f"{RUN}/b/cam-1/down/end")
    heard = board.until((f"{RUN}/b/cam-1/down/end", b""))
    for topic in BELOW:
        server.publish(topic, retain=True)
    assert {topic for topic, _ in heard} == allowed("read")


def test_the_server_reads_and_writes_everything_below_the_root_and_nothing_beyond(shared, join):
    _, known = shared
    server = join(known["server"])
    server.subscribe("#", "$SYS/#")
    told = {topic: server.publish(topic, b"!") for topic in [*BELOW, *BEYOND]}
    server.publish(f"{RUN}/end")
    assert {topic for topic, _ in server.until((f"{RUN}/end", b""))} == set(BELOW)
    assert [topic for topic, said in told.items() if said == DENIED] == BEYOND


@pytest.mark.parametrize(("whose", "wills"), [("cam-1", [b"gone"]), ("cam-2", [])])
def test_a_board_leaves_a_will_in_its_own_name_only(shared, join, whose, wills):
    _, known = shared
    server, topic = join(known["server"]), f"{RUN}/b/{whose}/status"
    server.subscribe(f"{RUN}/#")
    lost = Client(known["cam-1"], will=topic)
    join(known["cam-1"])  # takes its place, and so the first one's will is opened
    lost.close()
    server.publish(f"{RUN}/end")
    assert server.until((f"{RUN}/end", b"")) == [(topic, will) for will in wills]
    server.publish(topic, retain=True)


def test_a_board_that_calls_itself_as_another_disturbs_nobody(shared, join):
    _, known = shared
    first, thief = join(known["cam-1"], called="cam-1"), join(known["cam-2"], called="cam-1")
    server = join(known["server"])
    for client in (first, thief):
        client.subscribe(f"{RUN}/b/cam-1/down/#", f"{RUN}/b/cam-2/down/#")
    for name in ("cam-1", "cam-2"):
        server.publish(f"{RUN}/b/{name}/down", b"for you")
    assert first.heard.get(timeout=DEADLINE) == (f"{RUN}/b/cam-1/down", b"for you")
    assert thief.heard.get(timeout=DEADLINE) == (f"{RUN}/b/cam-2/down", b"for you")
    assert first.losses.empty()


def test_two_with_the_same_enrolment_are_one_and_the_newer_stays(shared, join):
    _, known = shared
    older = Client(known["cam-1"], called="a")
    newer = Client(known["cam-1"], called="b")
    assert older.losses.get(timeout=DEADLINE)
    older.close()
    newer.close()


# who is let in


def test_who_is_enrolled_is_let_in(shared):
    _, known = shared
    assert [lets_in(known[name]) for name in ("cam-1", "cam-2", "server")] == [True] * 3


def test_without_encryption_nobody_is_let_in(shared):
    _, known = shared
    assert not let_in("127.0.0.1", known["cam-1"].port, None)


def test_without_a_certificate_nobody_is_let_in(shared):
    _, known = shared
    trust = ssl.create_default_context(cadata=known["cam-1"].ca)
    assert not let_in("127.0.0.1", known["cam-1"].port, trust)


def test_a_name_and_a_password_are_no_certificate(shared):
    _, known = shared
    content = [0, 4, *b"MQTT", 5, 0xC2, 0, 10, 0, 0, 1, *b"x", 0, 6, *b"server", 0, 1, *b"x"]
    trust = ssl.create_default_context(cadata=known["cam-1"].ca)
    packet = bytes([0x10, len(content), *content])
    assert not let_in("127.0.0.1", known["cam-1"].port, trust, packet)


@pytest.mark.parametrize("name", ["cam-1", "server"])
def test_a_certificate_of_another_authority_is_refused(shared, name):
    _, known = shared
    pair = CertificateAuthority.create().issue_for_board(
        name, datetime.now(UTC) + timedelta(days=1)
    )
    assert not lets_in(replace(known[name], certificate=pair.certificate, key=pair.key))


def test_a_certificate_that_has_run_out_is_refused(shared):
    broker, known = shared
    pair = broker._load_authority().issue_for_board(
        "cam-1", datetime.now(UTC) - timedelta(seconds=2)
    )
    assert not lets_in(replace(known["cam-1"], certificate=pair.certificate, key=pair.key))


def test_the_certificate_of_the_broker_is_no_enrolment(shared):
    broker, known = shared
    pair = broker._load_authority().issue_for_broker(["server"])
    assert not lets_in(replace(known["server"], certificate=pair.certificate, key=pair.key))


def test_a_board_believes_its_broker_and_no_board_that_poses_as_one(shared):
    broker, known = shared
    board, other = known["cam-1"].make_ssl_context(), known["cam-2"]
    genuine = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    genuine.load_cert_chain(broker.folder / "broker.pem", broker.folder / "broker.key")
    handshake(board, genuine, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="another"):
        handshake(board, genuine, "another.example")
    (posing := Path("posing.pem")).write_text(other.certificate + other.key)
    impostor = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    impostor.load_cert_chain(posing)
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(board, impostor, "127.0.0.1")


def test_old_versions_of_tls_are_refused(shared):
    _, known = shared
    trust = known["cam-1"].make_ssl_context()
    trust.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        trust.minimum_version = trust.maximum_version = ssl.TLSVersion.TLSv1_1
    assert not let_in("127.0.0.1", known["cam-1"].port, trust)


def test_who_is_revoked_has_no_rights_at_once_and_is_not_let_in_again(broker, join):
    lost, kept = enrolled(broker), enrolled(broker, "cam-2")
    server, thief, other = (
        join(e) for e in (enrolment.read_enrolment(broker.server_enrolment_file), lost, kept)
    )
    server.subscribe("het/3/#")
    thief.subscribe(f"{RUN}/b/cam-1/down/#")
    assert thief.publish(f"{RUN}/b/cam-1/up", b"before") == "Success"
    broker.revoke("cam-1")
    assert thief.losses.get(timeout=DEADLINE)
    server.publish(f"{RUN}/b/cam-1/down", b"secret")
    other.publish(f"{RUN}/b/cam-2/up", b"end")
    heard = server.until((f"{RUN}/b/cam-2/up", b"end"))
    assert (f"{RUN}/b/cam-1/up", b"before") in heard
    assert thief.heard.empty()
    assert other.publish(f"{RUN}/b/cam-2/up") == "Success"
    assert (lets_in(lost), lets_in(kept)) == (False, True)


def test_a_revoked_name_can_be_enrolled_again_and_its_old_file_stays_worthless(broker, join):
    old = enrolled(broker)
    thief = join(old)
    broker.revoke("cam-1")
    new = broker.enrol("cam-1", Path("new.toml"))
    assert thief.losses.get(timeout=DEADLINE)
    thief.close()
    assert (lets_in(old), lets_in(new)) == (False, True)
    board = join(new)
    assert board.publish(f"{RUN}/b/cam-1/up") != DENIED
    broker.revoke("cam-1")
    broker.stop()
    broker.start()
    assert (lets_in(old), lets_in(new)) == (False, False)


def test_revoking_while_the_broker_is_down_counts_from_its_next_start(broker):
    lost, kept = enrolled(broker), enrolled(broker, "cam-2")
    broker.stop()
    broker.revoke("cam-1")
    broker.start()
    assert (lets_in(lost), lets_in(kept)) == (False, True)


# sizes, and what outlives what


def test_a_packet_beyond_the_limit_ends_its_sender_only(shared, join):
    _, known = shared
    server, other = join(known["server"]), join(known["cam-2"])
    server.subscribe("het/3/#")
    sender = Client(known["cam-1"])
    topic = f"{RUN}/b/cam-1/up/chunk"
    largest = FULL - len(topic) - 9  # 1 + 3 of the header, 2 of the topic, 2 of the number, 1
    assert sender.publish(topic, bytes(largest)) == "Success"
    sender.paho.publish(topic, bytes(FULL), qos=1)
    assert sender.losses.get(timeout=DEADLINE)
    sender.close()
    other.publish(f"{RUN}/b/cam-2/up", b"end")
    heard = server.until((f"{RUN}/b/cam-2/up", b"end"))
    assert [(name, len(payload)) for name, payload in heard] == [(topic, largest)]
    assert server.losses.empty()


@pytest.mark.parametrize("end", [killed, Broker.stop], ids=["SIGKILL", "SIGTERM"])
def test_a_broker_that_ended_has_forgotten_everything_and_wrote_nothing(broker, join, end):
    """Server and boards send again what they need; nothing that was retained does harm for good."""
    board = enrolled(broker)
    first = Client(board, session=True)
    first.publish(f"{RUN}/b/cam-1/status", bytes(200_000), retain=True)
    end(broker)
    first.close()
    assert not (broker.folder / "mosquitto.db").exists()
    broker.start()
    again = join(board, session=True)
    assert not again.resumed
    again.subscribe(f"{RUN}/b/cam-1/#")
    again.publish(f"{RUN}/b/cam-1/status", b"end")
    assert again.until((f"{RUN}/b/cam-1/status", b"end")) == []


def test_revoking_ends_the_connection_and_clears_what_was_retained(broker, join):
    lost, kept = enrolled(broker), enrolled(broker, "cam-2")
    flooder, other = Client(lost, session=True), join(kept)
    for part in ("status", "up", "up/chunk"):
        for client, name in ((flooder, "cam-1"), (other, "cam-2")):
            assert client.publish(f"{RUN}/b/{name}/{part}", bytes(9), retain=True) != DENIED
    server = join(enrolment.read_enrolment(broker.server_enrolment_file))
    broker.revoke("cam-1")
    assert flooder.losses.get(timeout=DEADLINE)
    flooder.close()
    assert (server.losses.empty(), other.losses.empty()) == (True, True)
    server.subscribe(f"{RUN}/b/+/#")
    server.publish(f"{RUN}/end")
    server.subscribe(f"{RUN}/end")
    server.publish(f"{RUN}/end", b"!")
    heard = server.until((f"{RUN}/end", b"!"))
    assert {topic for topic, _ in heard} == {
        f"{RUN}/b/cam-2/{part}" for part in ("status", "up", "up/chunk")
    }
    assert not lets_in(lost)


def test_a_broker_too_busy_to_end_a_connection_is_restarted(broker, join, monkeypatch):
    lost, kept = enrolled(broker), enrolled(broker, "cam-2")
    thief = join(lost)
    thief.publish(f"{RUN}/b/cam-1/status", bytes(9), retain=True)

    def fail(*_: object) -> None:
        raise BrokerError("it does not answer")

    monkeypatch.setattr(maintenance, "end_mqtt_session", fail)
    broker.revoke("cam-1")
    assert thief.losses.get(timeout=DEADLINE)
    assert (lets_in(lost), lets_in(kept)) == (False, True)
    server = join(enrolment.read_enrolment(broker.server_enrolment_file))
    server.subscribe("het/3/#")
    server.publish(f"{RUN}/end")
    assert server.until((f"{RUN}/end", b"")) == []


def test_a_board_can_retain_three_messages_and_no_more(broker, join):
    board, server = (
        join(enrolled(broker)),
        join(enrolment.read_enrolment(broker.server_enrolment_file)),
    )
    for i in range(20):
        for topic in (
            *(f"{RUN}/r/run-{i}/b/cam-1/status", f"{RUN}/run-{i}/b/cam-1/up"),
            *(f"{RUN}/b/cam-1/{part}" for part in ("status", "up", "up/chunk", f"x{i}")),
        ):
            board.publish(topic, bytes(99), retain=True)
    server.subscribe("het/3/#")
    server.publish(f"{RUN}/end")
    assert len(server.until((f"{RUN}/end", b""))) == 3


# the process


def test_up_and_down_again_and_again(tmp_path):
    folder = tmp_path / "broker"
    assert good("up", folder, "--port", 0).stderr.startswith("up on port ")
    found = Broker(folder)
    place, pid = found.read_listen_settings(), found.find_pid()
    said = f"already up on port {place.port}, for this machine only\n"
    assert good("up", folder).stderr.startswith(said)
    assert found.find_pid() == pid
    assert good("down", folder).stderr == "down\n"
    assert found.find_pid() is None
    assert good("down", folder).stderr == "the broker was not running\n"
    good("up", folder)
    assert (found.read_listen_settings(), found.find_pid() is None) == (place, False)
    good("down", folder)


def test_the_default_folder_is_the_one_called_broker(tmp_path):
    good("up", "--port", 0)
    assert json.loads(good("status", "--json").stdout)["up"]
    good("down")
    assert (tmp_path / "broker" / "server.toml").exists()


def test_status_says_where_it_is_and_who_is_enrolled(broker):
    enrolled(broker, "cam-2"), enrolled(broker, "cam-10"), enrolled(broker, "lost")
    broker.revoke("lost")
    told = json.loads(good("status", broker.folder, "--json").stdout)
    boards = [board["name"] for board in told.pop("boards")]
    assert boards == ["cam-10", "cam-2"]
    assert told == {
        "up": True,
        "pid": broker.find_pid(),
        "port": broker.read_listen_settings().port,
        "lan": False,
    }
    broker.stop()
    assert good("status", broker.folder).stdout.startswith("down; port ")


def test_an_enrolment_can_name_its_clients_and_lets_in_all_the_same(broker):
    good("enrol", "cam-1", broker.folder, "--clients", "0, kitchen")
    enrolled(broker, "cam-2")
    told = json.loads(good("status", broker.folder, "--json").stdout)
    assert [d["clients"] for d in told["boards"]] == [["0", "kitchen"], []]
    assert "0, kitchen" in good("status", broker.folder).stdout
    assert lets_in(enrolment.read_enrolment(Path("cam-1.toml")))
    words = refused(3, "enrol", "cam-3", broker.folder, "--clients", "0,../1")
    assert words.startswith("--clients: '../1' cannot be a client's name; use 1 to 64")
    assert "'' cannot be a client's name" in refused(
        3, "enrol", "cam-3", broker.folder, "--clients", ""
    )
    assert not Path("cam-3.toml").exists()


def test_a_killed_broker_is_seen_to_be_down_and_its_old_id_harms_nobody(broker):
    killed(broker)
    assert (broker.folder / mosquitto.PID_FILE).exists()
    (broker.folder / mosquitto.PID_FILE).write_text(f"{os.getpid()}")
    assert broker.find_pid() is None
    assert not broker.stop()  # and this process lives
    broker.start()
    assert broker.find_pid() not in (None, os.getpid())


def test_with_the_lock_held_an_id_of_another_program_is_not_believed(broker):
    number = broker.find_pid()
    (broker.folder / mosquitto.PID_FILE).write_text(f"{os.getpid()}")
    assert "being started" in refused(1, "down", broker.folder)
    (broker.folder / mosquitto.PID_FILE).write_text(f"{number}")


def test_two_brokers_do_not_disturb_each_other(brokers, tmp_path):
    one, two = brokers(tmp_path / "a" / "broker"), brokers(tmp_path / "b" / "broker")
    first, second = enrolled(one), enrolled(two)
    assert (lets_in(first), lets_in(second)) == (True, True)
    assert not lets_in(replace(first, port=second.port))
    assert not lets_in(replace(first, port=second.port, ca=second.ca))
    one.revoke("cam-1")
    one.stop()
    assert lets_in(second)


def test_other_settings_want_it_ended_first(broker):
    assert "is running with other settings; stop it first" in refused(
        1, "up", broker.folder, "--lan"
    )
    assert "is running with other settings" in refused(1, "up", broker.folder, "--port", 1)


def test_a_port_that_is_taken_is_one_clear_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(1, "up", tmp_path / "broker", "--port", port)
    assert line == (
        f"another program uses port {port}; stop it, or choose another port with --port"
    )  # fmt: skip
    good("up", tmp_path / "broker", "--port", 0)
    good("down", tmp_path / "broker")


def test_what_mosquitto_complains_of_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(mosquitto, "format_config", lambda lan, port: "nonsense true\n")
    with pytest.raises(BrokerError, match=r"failed to start: .*nonsense"):
        Broker(tmp_path / "broker").start(port=0)


def test_without_mosquitto_there_is_the_line_to_install_it(monkeypatch):
    monkeypatch.setattr(process.shutil, "which", lambda *_, **__: None)
    assert refused(3, "up") == (
        "Mosquitto is not installed; get it with: sudo apt-get install mosquitto"
    )
    assert not Path("broker").exists()


def test_without_the_extra_there_is_the_line_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "heterophony.boards.broker.broker", None)
    line = refused(3, "status")
    assert line.endswith("install it with pip install 'heterophony[mqtt]'")


def test_only_with_lan_other_machines_can_come(brokers, tmp_path, monkeypatch):
    """An address of the loopback net stands for one that other machines use."""
    monkeypatch.setattr(network, "list_lan_addresses", lambda: ["127.0.0.2"])
    inner, outer = brokers(tmp_path / "a" / "b"), brokers(tmp_path / "c" / "d", lan=True)
    assert (enrolled(inner).address, enrolled(outer).address) == ("127.0.0.1", "127.0.0.2")
    board = enrolled(outer, "cam-2")
    assert lets_in(board)
    assert not lets_in(replace(enrolled(inner, "cam-2"), address="127.0.0.2"))
    assert lets_in(enrolment.read_enrolment(outer.server_enrolment_file))
    outer.stop()
    outer.start()
    assert lets_in(board)  # as it was before


def test_without_a_network_lan_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "list_lan_addresses", list)
    with pytest.raises(ConfigError, match="no network address"):
        network.select_advertised_address(lan=True)


def test_addresses_for_others_are_neither_loopback_nor_of_one_cable():
    assert not [
        a for a in network.list_lan_addresses() if a.startswith(("127.", "fe80", "169.254"))
    ]
    assert network.list_reachable_hosts(lan=False) == ["localhost", "127.0.0.1", "::1"]
    assert network.list_reachable_hosts(lan=True)[:3] == network.list_reachable_hosts(lan=False)


# files and secrets


def test_everything_in_the_folder_is_for_its_owner_alone(broker):
    before = os.umask(0)
    try:
        enrolled(broker)
        enrolled(broker, "cam-2")
        broker.revoke("cam-2")
        broker.stop()
        broker.folder.chmod(0o755)
        broker.start()
    finally:
        os.umask(before)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in broker.folder.rglob("*")}
    assert {m for p, m in modes.items() if p.is_dir()} == {0o700}
    assert {m for p, m in modes.items() if p.is_file()} == {0o600}
    assert stat.S_IMODE(broker.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(Path("cam-1.toml").stat().st_mode) == 0o600


def test_no_key_is_in_an_output_an_argument_a_log_or_a_name(tmp_path):
    folder = tmp_path / "broker"
    said = [good(*words) for words in (
        ["up", folder, "--port", "0"], ["enrol", "cam-1", folder], ["status", folder],
        ["status", folder, "--json"], ["revoke", "cam-1", folder])]  # fmt: skip
    found = Broker(folder)
    process_files = [Path(f"/proc/{found.find_pid()}/{name}") for name in ("cmdline", "environ")]
    seen = b"".join(f.read_bytes() for f in [*process_files, folder / mosquitto.LOG_FILE])
    seen += "".join(done.output for done in said).encode()
    known = enrolment.read_enrolment(Path("cam-1.toml"))
    seen += repr(known).encode() + str(known).encode()
    good("down", folder)
    keys = [known.key, enrolment.read_enrolment(found.server_enrolment_file).key, *(
        (folder / name).read_text() for name in ("ca.key", "broker.key"))]  # fmt: skip
    lines = [line for key in keys for line in key.splitlines() if line]
    assert len(lines) == 4 * 5
    assert not [line for line in lines if line.encode() in seen]


def test_a_boards_key_is_nowhere_but_in_its_file(broker):
    line = enrolled(broker).key.splitlines()[1].encode()
    assert not [p for p in broker.folder.rglob("*") if p.is_file() and line in p.read_bytes()]


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert "holds other files" in refused(3, "up", tmp_path / "mine", "--port", 0)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("words", [["down"], ["status"], ["enrol", "cam-1"], ["revoke", "cam-1"]])
def test_where_there_is_no_broker_it_says_so_and_makes_nothing(tmp_path, words):
    assert refused(3, *words).startswith("there is no broker in broker; create one with")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_authority_is_not_replaced(broker):
    broker.stop()
    (broker.folder / "ca.key").write_text("x")
    with pytest.raises(FolderError, match=r"authority in .* is damaged"):
        broker.start()
    (broker.folder / "ca.key").write_text(CertificateAuthority.create().export_pem().key)
    with pytest.raises(FolderError, match=r"authority in .* is damaged"):
        enrolled(broker)


def test_brokers_and_enrolments_need_no_torch():
    """A machine that is only the broker is a small one."""
    loaded = "import sys, heterophony.boards.broker.broker, heterophony.cli.boards; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, check=True)
    assert done.stdout == b"False\n"


# enrolments


def test_enrolling_writes_one_small_file_that_says_it_all(broker):
    done = good("enrol", "cam-1", broker.folder, "-o", "pi.toml")
    assert done.stdout == "pi.toml\n"
    found = enrolment.read_enrolment(Path("pi.toml"))
    assert (found.name, found.address, found.port) == (
        "cam-1",
        "127.0.0.1",
        broker.read_listen_settings().port,
    )
    assert Path("pi.toml").stat().st_size < 4096
    assert lets_in(found)


def test_a_board_is_enrolled_once_and_no_file_is_overwritten(broker):
    good("enrol", "cam-1", broker.folder)
    content = Path("cam-1.toml").read_bytes()
    line = refused(3, "enrol", "cam-2", broker.folder, "-o", "cam-1.toml")
    assert line.startswith("cam-1.toml already exists")
    assert "is already enrolled" in refused(3, "enrol", "cam-1", broker.folder, "-o", "x.toml")
    assert Path("cam-1.toml").read_bytes() == content
    assert not Path("x.toml").exists()
    assert [board.name for board in broker.certificate_store.list_enrolled()] == ["cam-1"]


def test_an_enrolment_that_cannot_be_written_is_none(broker):
    Path("file").touch()
    with pytest.raises(HeterophonyError):
        broker.enrol("cam-1", Path("file") / "cam-1.toml")
    assert broker.certificate_store.list_enrolled() == []


def test_the_servers_name_is_not_for_boards(broker):
    assert "is the server's own name" in refused(3, "enrol", "server", broker.folder)


def test_an_unknown_board_cannot_be_revoked(broker):
    enrolled(broker)
    assert refused(3, "revoke", "cam-2", broker.folder).endswith("; did you mean 'cam-1'?")


@given(st.text(max_size=70))
def test_a_name_has_only_harmless_signs(name):
    signs = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
    harmless = 0 < len(name) <= 64 and set(name) <= set(signs) and name[0] != "."
    if harmless:
        assert enrolment.check_board_name(name) == name
    else:
        with pytest.raises(ConfigError, match="cannot be a board's name"):
            enrolment.check_board_name(name)


@given(st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", fullmatch=True))
def test_the_rights_of_a_name_that_is_shut_out_are_one_entry(name):
    added = mosquitto.format_acl([name]).removeprefix(mosquitto.format_acl([]))
    assert added == f"\nuser {name}\ntopic deny #\n"


DAMAGES = {
    "not TOML": lambda text: "{" + text,
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "a key too many": lambda text: "x = 1\n" + text,
    "a port of text": lambda text: text.replace("port = ", "port = '8883' #"),
    "no such port": lambda text: text.replace("port = ", "port = 99999 #"),
    "a time without zone": lambda text: text.replace("until = ", "until = 2030-01-01T00:00:00 #"),
    "another name": lambda text: text.replace("cam-1", "../x"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_enrolment_is_one_clear_line(shared, damage):
    _, known = shared
    Path("e.toml").write_text(damage(known["cam-1"].encode().decode()))
    with pytest.raises(ConfigError) as error:
        enrolment.read_enrolment(Path("e.toml"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("part", ["ca", "certificate", "key"])
def test_damaged_certificates_and_keys_are_one_clear_line(shared, part):
    _, known = shared
    with pytest.raises(ConfigError, match="is damaged; copy it again"):
        replace(known["cam-1"], **{part: "x"}).make_ssl_context()


def test_an_enrolment_that_is_over_says_what_to_do(shared):
    _, known = shared
    with pytest.raises(ConfigError, match="expired on 2020-01-01; on the broker's machine"):
        replace(known["cam-1"], until=datetime(2020, 1, 1, tzinfo=UTC)).make_ssl_context()


def test_an_enrolment_is_read_as_it_was_written(shared):
    _, known = shared
    Path("e.toml").write_bytes(known["cam-1"].encode())
    assert enrolment.read_enrolment(Path("e.toml")) == known["cam-1"]
