"""The commands of the documents of version 0.2 are still understood."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from helpers.documents import find_problem

COMMANDS = Path(__file__).with_name("commands_of_0.2.txt").read_text().splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_version_0_2_is_understood(command):
    assert find_problem(shlex.split(command)) == ""
