"""The names of runs, devices and clients: their form on the network, and their order."""

from __future__ import annotations

import re
from collections.abc import Iterable

# of what becomes part of MQTT topics, certificates and commands
NAME_PATTERN = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,64}")
NAME_RULE = "use 1 to 64 letters, digits, '.', '_' or '-', not beginning with '.'"


def sort_names(names: Iterable[str]) -> list[str]:
    """Sort names in natural order, numbers in them by value: 2 before 10, site-2 before site-10."""
    return sorted(names, key=make_natural_sort_key)


def make_natural_sort_key(name: str) -> tuple[list[tuple[int, str]], str]:
    """Make the key of the natural order; of site-02 and site-2, the first in the alphabet is first."""
    parts = re.split(r"([0-9]+)", name)  # text and numbers in turn
    numbers = [part.lstrip("0") for part in parts[1::2]]
    key = [(0, part) for part in parts]
    key[1::2] = [(len(number), number) for number in numbers]  # as int(), for any length
    return key, name
