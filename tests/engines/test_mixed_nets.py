"""Clients with different nets: the serial bits on every engine, after a kill, and on boards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

import heterophony as hp
from helpers.boards import compute_one_at_a_time, mosquitto, on_boards, simulated, small
from helpers.support import digits, identical, memory, played, untimed
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.config.nets import list_mixed_algorithms
from heterophony.runs.events import Event

NETS = ["mlp", "digitsnet", "smallcnn"]
WIDTHS = ["digitsnet", "digitsnet@0.5", "digitsnet@0.25"]
HOW = {"rounds": 2, "participation": 0.5}
MIXED = list_mixed_algorithms()


def choose_nets(name: str) -> list[str]:
    return WIDTHS if name == "heterofl" else NETS


def run(name: str, **how: object) -> hp.Result:
    clients = digits(clients=12, examples=600, alpha=1.0)
    return played(name, clients, model=choose_nets(name), **{**HOW, **how})


@cache
def alone(name: str) -> hp.Result:
    return run(name)


def test_the_algorithms_that_take_different_nets():
    assert MIXED == [
        "feddistill", "fedgh", "fedkd", "fedproto", "fedtgp", "fml", "heterofl", "lgfedavg", "local",
    ]  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_a_pool_gives_the_serial_bits(name):
    assert untimed(run(name, engine="pool", workers=2)) == untimed(alone(name))
    assert len(alone(name).plan.nets) == 3


@pytest.mark.parametrize("name", MIXED)
def test_groups_of_equal_nets_have_the_bits_of_each_client_alone(name):
    assert identical(run(name, fast="off"), alone(name))


@pytest.mark.parametrize("name", MIXED)
def test_an_interrupted_run_continues_with_the_same_bits(name, tmp_path):
    def interrupt(event: Event) -> None:
        if event["event"] == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(name, out=tmp_path / "run", on_event=interrupt)
    assert identical(run(name, out=tmp_path / "run", resume=True), alone(name))


@pytest.mark.parametrize("name", MIXED)
def test_personal_and_generic_models_can_be_loaded(name):
    result = alone(name)
    x = result.plan.federation.x[:3]
    for client in "012":
        assert result.personal(client)(x).shape == (3, 10)
    if name in ("fedkd", "fml", "heterofl"):
        assert result.generic()(x).shape == (3, 10)
        assert result.G is not None
    else:
        assert result.G is None


def test_a_client_with_one_net_has_the_bits_of_a_run_where_all_have_it():
    mixed = alone("local")
    for i, name in enumerate(NETS):
        same = played("local", mixed.plan.federation, model=name, **HOW)
        for client in mixed.plan.federation.clients[i::3]:
            nets = [memory(r, client).get("net", hp.Tensors()) for r in (mixed, same)]
            assert nets[0].digest() == nets[1].digest()


def test_a_new_client_joins_with_its_net(tmp_path):
    clients = hp.federate("digits", clients=6, new_clients=0.4)
    result = played("fml", clients, model=NETS, rounds=1)
    (event,) = [e for e in result.events if e["event"] == "new_clients"]
    assert len(event["P"]) == len(event["G"]) == 2


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> Iterator[dict[str, Enrolment]]:
    with mosquitto(tmp_path_factory.mktemp("broker"), "one", "two") as (_, known):
        yield known


@pytest.mark.parametrize("name", MIXED)
def test_boards_have_the_bits_of_a_simulation(name, known, tmp_path, monkeypatch):
    compute_one_at_a_time(monkeypatch)
    groups = [
        f"{{name = '{net}', clients = {list('0123'[i::3])}}}"
        for i, net in enumerate(choose_nets(name))
    ]
    config = small(name, **{"model.group": f"[{', '.join(groups)}]"})
    expected, here = simulated(config, tmp_path / "alone")
    result, there = on_boards(config, known, tmp_path / name)
    assert result.model_sha256 == expected.model_sha256
    measured = [[(e["G"], e["P"]) for e in r if e["event"] == "evaluation"] for r in (here, there)]
    assert measured[0] == measured[1]


def test_p_is_measured_by_net():
    summary = alone("fml").summary
    nets = alone("fml").plan.net_of
    assert list(summary.nets) == NETS
    for name, found in summary.nets.items():
        members = [c for client, c in summary.clients.items() if nets[client] == name]
        assert found.clients == len(members) == 4
        assert sum(c.correct for c in members) / sum(c.total for c in members) == found.P
    assert "nets" not in played("local", rounds=0).summary.to_dict()
