"""The names of clients: what names each example's client in the data, and what a client may be called.

A client's name is its id in a run. Clients are in natural order of their names (``sort_names``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.algorithm import POOLED_CLIENT
from ..core.errors import DataError
from ..core.names import NAME_PATTERN, NAME_RULE, sort_names
from .source import Source

CLIENT = "client"  # the column or array that names clients, unless ``data.users`` says another
T = TypeVar("T")
MISSING_TYPES = ("NoneType", "NAType", "NaTType")  # of Python and pandas


def name_users(source: Source, clients: Iterable[object], where: str) -> Source:
    """Return the source with the client of each example; the clients' names are in natural order."""
    given: list[object] = clients.tolist() if hasattr(clients, "tolist") else list(clients)
    if len(given) != len(source.y):
        raise DataError(
            f"{where}: must have one name per example: {len(source.y)} examples, {len(given)} names"
        )
    users, names = number_clients(given, where)
    return replace(source, users=users, user_names=names)


def number_clients(
    clients: Iterable[object], where: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the position of each example's client, and the clients' names in natural order."""
    known: dict[str, object] = {}
    found: list[str] = []
    for row, value in enumerate(clients, 1):
        name = parse_client_name(value, f"{where}, row {row}")
        if known.setdefault(name, value) != value:
            raise DataError(
                f"{where}, row {row}: {value!r} and {known[name]!r} would both be client '{name}';"
                " write it in one way"
            )
        found.append(name)
    names = sort_names(known)
    positions = {name: i for i, name in enumerate(names)}
    return np.array([positions[name] for name in found], dtype=np.int64), tuple(names)


def parse_client_name(value: Any, where: str) -> str:
    """Convert what names a client to text: a text or a number."""
    if type(value).__name__ in MISSING_TYPES or (isinstance(value, float) and value != value):
        value = ""
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")
    if isinstance(value, list | tuple | dict | set):
        raise DataError(f"{where}: the name of a client must be a text or a number, not {value!r}")
    if not (name := str(value)):
        raise DataError(f"{where}: the name of the client is missing")
    return check_client_name(name, where)


def check_client_name(name: str, where: str) -> str:
    """Return the name, or raise an error if no client can have it."""
    if name == POOLED_CLIENT:
        raise DataError(f"{where}: '{name}' stands for all clients together; rename the client")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"{where}: {name!r} is not text in UTF-8; rename the client") from None
    return name


def check_names_on_devices(names: Iterable[str]) -> None:
    """Refuse names that cannot be in topics, certificates and commands; simulations take any."""
    for name in names:
        if not NAME_PATTERN.fullmatch(name):
            raise DataError(
                f"'{name}' cannot be a client's name on devices; rename it in the data: {NAME_RULE}"
            )


def check_plain_name(name: str) -> str:
    """Return the name, or raise an error if no client with its own folder can have it."""
    if not NAME_PATTERN.fullmatch(name):
        raise DataError(f"'{name}' cannot be a client's name; {NAME_RULE}")
    return name


def name_own_clients(own: Iterable[tuple[object, T]]) -> dict[str, T]:
    """Return what each client holds by its name as text, in natural order; every name is of one."""
    by_name: dict[str, T] = {}
    for client, held in own:
        name = parse_client_name(client, "clients")
        if name in by_name:
            raise DataError(f"two clients have the name '{name}'; rename one of them")
        by_name[name] = held
    return {name: by_name[name] for name in sort_names(by_name)}
