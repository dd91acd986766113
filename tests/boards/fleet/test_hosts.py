"""The list of boards: what it may say, and one line for every mistake."""

from __future__ import annotations

import pytest

from heterophony.boards.fleet.hosts import assign_clients, read_fleet
from heterophony.core.errors import ConfigError

MISTAKES = {
    "": "no boards; add one, as in [boards.nano-1] with ssh = \"pi@10.0.0.5\"",
    "[boards.a]\nclient = 3": "boards.a: no key 'client'; did you mean 'clients'?",
    "[boards.a]\nclients = 0": "boards.a.clients: must be a number above 0, or names as in [\"0\", \"1\"], not 0",
    "[boards.a]\nssh = \"-oProxyCommand=x\"": "boards.a.ssh: '-oProxyCommand=x' is empty, or begins with '-'",
    "[boards.a]\nssh = 3": "boards.a.ssh: must be text, not 3",
    "[boards.a]\naccelerator = \"gpu\"": "boards.a.accelerator: must be cpu, cuda, cuda:1, mps or auto, not 'gpu'",
    "[boards.a]\ncpu_percent = 50": "boards.a.cpu_percent: needs systemd = true, which enforces it",
    "[boards.server]": "'server' cannot be a board's name",
    "[boards.a]\nclients = [\"0\"]\n[boards.b]\nclients = [\"0\"]": "client '0' is on board 'a' already",
    "[boards.a]\nclients = 1\n[boards.b]\nclients = [\"1\"]": "set names on all boards, numbers on all boards",
    "adress = \"x\"\n[boards.a]": "no key 'adress'; did you mean 'address'?",
    "address = \"a b\"\n[boards.a]": "'a b' is not a host name or address",
    "boards = 3": "no board",
    "[boards": "is not TOML",
}  # fmt: skip


@pytest.mark.parametrize(("text", "line"), MISTAKES.items())
def test_a_mistake_is_one_line_that_names_the_place(text, line, tmp_path):
    path = tmp_path / "hosts.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_fleet(path)
    assert line in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def read(tmp_path, text):
    (tmp_path / "hosts.toml").write_text(text)
    return read_fleet(tmp_path / "hosts.toml")


def test_a_board_has_the_keys_of_defaults_unless_it_has_its_own(tmp_path):
    fleet = read(tmp_path, '[defaults]\nnice = 5\n[boards.a]\n[boards.b]\nnice = 0\nssh = "pi@b"\n')
    assert [(b.name, b.ssh, b.nice) for b in fleet.boards] == [("a", "a", 5), ("b", "pi@b", 0)]
    assert [b.name for b in fleet.select(["b"])] == ["b"]
    with pytest.raises(ConfigError, match="no board 'c'"):
        fleet.select(["c"])


def test_clients_are_dealt_by_number_by_name_or_evenly(tmp_path):
    ten = [str(i) for i in range(10)]
    even = read(tmp_path, "[boards.a]\n[boards.b]\n[boards.c]")
    assert even.clients_by_board == {}
    assert {k: len(v) for k, v in assign_clients(even, ten).items()} == {"a": 3, "b": 3, "c": 4}
    numbers = read(tmp_path, "[boards.a]\nclients = 4\n[boards.b]\nclients = 6")
    assert assign_clients(numbers, ten) == {"a": tuple(ten[:4]), "b": tuple(ten[4:])}
    with pytest.raises(ConfigError, match="no board holds client '10'; the run has 11 clients"):
        assign_clients(numbers, [*ten, "10"])
    with pytest.raises(ConfigError, match="the run has no client '9'"):
        assign_clients(numbers, ten[:9])
    with pytest.raises(ConfigError, match="3 boards for 2 clients"):
        assign_clients(even, ten[:2])
