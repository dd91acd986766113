"""An algorithm outside the package, on boards: its package is installed there, and never sent."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from helpers.boards import compute_one_at_a_time, mosquitto, on_boards, simulated, small
from heterophony.boards.board import BoardOptions, BoardRun, parse_config
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.core.errors import ConfigError

MODULE = """
from dataclasses import dataclass
import heterophony as hp

@dataclass(frozen=True)
class Careful(hp.Algorithm):
    part: float = hp.setting(0.5, "how far", low=0, high=1)

    def build(self, net):
        net.base.requires_grad_(False)  # every board has it already
        return net

    def merge(self, server, replies):
        return server.update(server.model + self.part * (hp.mean(replies) - server.model))
"""
NAME = "installed_here:Careful"


class TrustingBoard(BoardRun):
    """A board started with ``--trust``."""

    def __init__(self, *arguments):
        super().__init__(*arguments, BoardOptions(trust=True))


@pytest.fixture
def known(tmp_path) -> Iterator[dict[str, Enrolment]]:
    with mosquitto(tmp_path / "broker", "one", "two") as (_, known):
        yield known


def test_boards_that_have_the_package_have_the_bits_of_a_simulation(known, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "installed_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    compute_one_at_a_time(monkeypatch)
    config = small(NAME, trust=True, **{"algorithm.part": 0.25})
    alone, _ = simulated(config, tmp_path / "alone")
    kinds = dict.fromkeys(known, TrustingBoard)
    result, events = on_boards(config, known, tmp_path / "run", kinds=kinds)
    assert result.model_sha256 == alone.model_sha256
    assert result.algorithm == events[0]["algorithm"] == NAME
    assert events[0]["shared_parameters"] == alone.shared_parameters == 100 * 10 + 10  # the head
    # a board reads the configuration that the server sends; without the package it ends with this
    del sys.modules["installed_here"]
    monkeypatch.undo()
    with pytest.raises(ConfigError) as caught:
        parse_config(config.to_toml().encode(), trust=True)
    assert caught.value.exit_code == 3
    assert str(caught.value) == (
        "algorithm.name: there is no module 'installed_here' on this machine; install its package,"
        " or start in the folder that contains it"
    )
