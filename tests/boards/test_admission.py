"""Which greetings the server believes: what it can compute it computes, the rest has bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.commands import call
from heterophony import __version__
from heterophony.boards import server
from heterophony.boards.board_data import load_known_summaries
from heterophony.boards.broker.broker import check_enrolled_clients
from heterophony.boards.broker.certificates import (
    CertificateAuthority,
    CertificateStore,
    EnrolledClients,
    read_certificate_clients,
)
from heterophony.boards.protocol.messages import ClientSummary, Hello
from heterophony.boards.server import describe_dominant_client, find_objection
from heterophony.config.config import Config
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError, DataError, StoppedError

PARTITIONED = read_config(None, ["data.clients=4"])
OWN = read_config(
    None, ["data.name=own", "data.clients=4", "data.shape=[1,8,8]", "data.classes=10"]
)
GOOD = ClientSummary("0", 40, 10, 0, (4,) * 10, "ab" * 32, (1, 8, 8), 10)
LIES = {
    "a network of gigabytes": {"shape": (3, 900, 900)},
    "no values": {"shape": (1, 0, 8)},
    "all the weight": {"train": 2**53, "labels": (2**53, *[0] * 9)},
    "many tests": {"test": 2**53},
    "many held out": {"validation": 2**53},
    "no tests": {"test": 0},
}


def greeting(*clients: ClientSummary) -> Hello:
    return Hello("s1", 1, __version__, "ab" * 32, clients)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("config", [PARTITIONED, OWN], ids=["partitioned", "own"])
def test_what_cannot_be_true_is_refused_without_the_data(config, lie):
    assert find_objection(config, {}, greeting(GOOD)) == ""
    assert "client '0'" in find_objection(config, {}, greeting(replace(GOOD, **LIES[lie])))


def test_own_data_have_as_many_examples_as_their_classes_say():
    bad = greeting(replace(GOOD, train=4000))
    assert "counts by class do not add up" in find_objection(OWN, {}, bad)


@pytest.fixture(scope="module")
def find_summary():
    return load_known_summaries(PARTITIONED, [].append)


def test_of_partitioned_data_the_server_knows_the_truth_whoever_comes_first(find_summary):
    true = find_summary("0")
    assert find_objection(PARTITIONED, {}, greeting(true), find_summary) == ""
    words = "the data of client '0' differ from the configured data"
    lies = {
        "train": true.train + 1,
        "test": true.test + 1,
        "shape": (1, 9, 9),
        "type": "float32",
        "data_sha256": "0" * 64,
    }
    for name, value in lies.items():
        bad = greeting(replace(true, **{name: value}))
        assert words in find_objection(PARTITIONED, {}, bad, find_summary)


def test_data_that_the_server_does_not_have_are_not_checked_and_it_says_so(monkeypatch):
    said: list[str] = []
    assert load_known_summaries(OWN, said.append) is None
    assert said == []

    def fail(config: Config) -> None:
        raise DataError("digits is not here")

    monkeypatch.setattr(Config, "build_federation", fail)
    assert load_known_summaries(PARTITIONED, said.append) is None
    assert said == [
        "the boards' summaries of their data cannot be checked here: digits is not here"
    ]


def test_who_outweighs_all_others_is_named():
    shown = {str(i): replace(GOOD, name=str(i)) for i in range(4)}
    assert describe_dominant_client(OWN, shown) == ""
    shown["2"] = replace(shown["2"], train=9_000_000)
    warning = describe_dominant_client(OWN, shown)
    assert warning.startswith("client 2 says that it has 9000000 of all 9000120 training examples")
    uniform = replace(OWN, aggregation=replace(OWN.aggregation, weights="uniform"))
    assert describe_dominant_client(uniform, shown) == ""


# Enrolments that name clients ---------------------------------------------------------------


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory) -> Path:
    """The folder of a broker with pi-1, which may hold 0 and 1, and two that may hold any."""
    folder = tmp_path_factory.mktemp("enrolled")
    store, authority = CertificateStore(folder), CertificateAuthority.create()
    store.create_folders()
    for name, clients in {"pi-1": ["0", "1"], "pi-2": [], "pi-3": []}.items():
        issued = authority.issue_for_board(name, authority.valid_until, clients)
        assert read_certificate_clients(issued.certificate) == tuple(clients)
        store.add(name, issued.certificate)
    store.revoke("pi-3")
    return folder


@pytest.mark.parametrize(
    ("board", "clients", "why"),
    [
        ("pi-1", "0", ""),
        ("pi-1", "01", ""),
        ("pi-1", "02", "its enrolment does not name client '2'"),
        ("pi-2", "23", ""),
        ("pi-2", "12", "client '1' is named by the enrolment of board 'pi-1'"),
        ("pi-3", "2", "board 'pi-3' is no longer enrolled"),
    ],
)
def test_an_enrolment_that_names_clients_is_for_these_alone(enrolled, board, clients, why):
    assert EnrolledClients(enrolled).find_objection(board, list(clients), 4) == why


def test_no_board_claims_all_clients_unless_its_enrolment_names_them(enrolled, tmp_path):
    anywhere = EnrolledClients(tmp_path)
    assert not anywhere.can_be_read
    assert "it claims all 4 clients" in anywhere.find_objection("pi-2", list("0123"), 4)
    assert anywhere.find_objection("pi-2", list("012"), 4) == ""
    assert anywhere.find_objection("pi-2", ["0"], 1) == ""
    assert EnrolledClients(enrolled).find_objection("pi-1", ["0", "1"], 2) == ""


@pytest.mark.parametrize(
    ("clients", "words"), [(["0", ""], "cannot be a client's name"), (["0", "0"], "listed twice")]
)
def test_odd_names_in_an_enrolment_are_refused(clients, words):
    with pytest.raises(ConfigError, match=words):
        check_enrolled_clients(clients)


def test_the_server_holds_boards_to_their_enrolments(enrolled, tmp_path, monkeypatch):
    """What the command hands to the server, and what the server makes of it."""
    asked = {}

    def open_session(control, text, check_admission, *_):
        asked["check_admission"] = check_admission
        raise StoppedError("enough is seen")

    monkeypatch.setattr(server, "ServerSession", open_session)
    monkeypatch.chdir(tmp_path)
    known = SimpleNamespace(address="", port=1, board="server", make_ssl_context=lambda: None)
    monkeypatch.setattr("heterophony.boards.broker.enrolment.read_enrolment", lambda _: known)
    words = ["server", "--enrolment", enrolled / "server.toml", "-c", "data.clients=4"]
    assert call(*words, "-c", "participation.rate=1.0").exit_code == StoppedError.exit_code
    find, greet = load_known_summaries(PARTITIONED, [].append), asked["check_admission"]
    assert "does not name client '2'" in greet("pi-1", greeting(find("0"), find("2")))
    assert "differ from the configured" in greet("pi-1", greeting(replace(find("0"), train=7)))
    assert greet("pi-2", greeting(find("2"))) == ""
    assert greet("pi-1", greeting(find("0"))) == ""


def test_a_server_far_from_its_broker_says_what_it_cannot_check(tmp_path, monkeypatch):
    def serve(*how):
        raise StoppedError("enough is seen")

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr("heterophony.boards.broker.enrolment.read_enrolment", lambda _: None)
    monkeypatch.chdir(tmp_path)
    told = call("server", "--enrolment", "server.toml").stderr
    assert "server.toml is not in the broker's folder, so boards are not checked" in told
