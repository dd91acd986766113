"""The file that lists a fleet's boards, their shares of the clients, and steps on all of them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError, HeterophonyError, suggest_or_list
from ...core.files import NAME_PATTERN, NAME_RULE, read_text_file

ACCELERATOR_PATTERN = re.compile(r"cpu|auto|mps|cuda(:\d+)?")
HOST_PATTERN = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
MAX_BOARDS = 1000


@dataclass(frozen=True)
class Board:
    """One board of a fleet: how to reach it, its clients, and the resources that it may use."""

    name: str
    ssh: str  # as typed after `ssh`
    clients: tuple[str, ...] | int | None = None  # names, or a number; None: an even share
    data: str = ""  # folder with the clients' own data on the board
    accelerator: str = "cpu"
    python: str = "python3"  # command; one in a virtual environment uses that environment
    folder: str = "heterophony"  # on the board, below the home folder
    torch: str = ""  # the version to install, as in 2.8.0; default: by architecture
    memory_mb: int | None = None  # limit for its process
    cpu_percent: int | None = None  # share of one core, enforced by systemd
    nice: int = 0
    systemd: bool = False


@dataclass(frozen=True)
class Fleet:
    """The boards of a fleet in the order of its file, and the settings that they share."""

    path: Path
    boards: tuple[Board, ...]
    address: str = ""  # the broker's address for the boards; default: this machine's
    port: int | None = None
    ssh_config: Path | None = None  # in place of ~/.ssh/config
    index_url: str = ""  # an additional package index for wheels
    clients_by_board: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def lan(self) -> bool:
        """Whether the broker must listen to other machines."""
        return self.address not in ("127.0.0.1", "localhost", "::1")

    def select(self, names: Sequence[str]) -> tuple[Board, ...]:
        """Return the boards with these names, in the order of the file; without names, all boards."""
        known = {board.name: board for board in self.boards}
        for name in names:
            if name not in known:
                raise ConfigError(f"{self.path}: no board '{name}'{suggest_or_list(name, known)}")
        return tuple(b for b in self.boards if not names or b.name in names)


def read_fleet(path: Path) -> Fleet:
    """Read the file that describes a fleet; raise ConfigError for the first mistake in it."""
    try:
        content = tomllib.loads(read_text_file(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    boards = content.pop("boards", None)
    if not isinstance(boards, dict) or not boards:
        raise ConfigError(
            f'{path}: no boards; add one, as in [boards.nano-1] with ssh = "pi@10.0.0.5"'
        )
    if len(boards) > MAX_BOARDS:
        raise ConfigError(f"{path}: {len(boards)} boards; at most {MAX_BOARDS} are possible")
    defaults = content.pop("defaults", {})
    check_table(path, "defaults", defaults)
    parsed = tuple(parse_board(path, name, defaults, table) for name, table in boards.items())
    fleet = Fleet(path, parsed, **parse_top_level(path, content))
    check_client_names(fleet)
    return replace(fleet, clients_by_board=list_named_clients(fleet))


def parse_top_level(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return the top-level settings of a fleet's file; raise ConfigError if one is wrong."""
    rules = {"address": str, "port": int, "ssh_config": str, "index_url": str}
    for key, value in content.items():
        if key not in rules:
            raise ConfigError(
                f"{path}: no key '{key}'{suggest_or_list(key, [*rules, 'boards', 'defaults'])}"
            )
        check_type(path, key, value, rules[key])
    if "address" in content and not HOST_PATTERN.fullmatch(content["address"]):
        raise ConfigError(f"{path}: address: {content['address']!r} is not a host name or address")
    if not 0 <= content.get("port", 0) <= 65535:
        raise ConfigError(f"{path}: port: must be 0 to 65535, not {content['port']}")
    if "ssh_config" in content:
        content["ssh_config"] = path.parent / Path(content["ssh_config"]).expanduser()
    return content


def parse_board(path: Path, name: str, defaults: dict[str, Any], table: Any) -> Board:
    """Build a board from its table in the fleet's file; its keys override the keys of ``[defaults]``."""
    where = f"boards.{name}"
    if not NAME_PATTERN.fullmatch(name) or name == "server":
        raise ConfigError(
            f"{path}: {name!r} cannot be a board's name; {NAME_RULE}, and not 'server'"
        )
    check_table(path, where, table)
    values = {"ssh": name, **defaults, **table}
    if isinstance(values.get("clients"), list):
        values["clients"] = tuple(values["clients"])
    board = Board(name, **values)
    check_board(path, where, board)
    return board


def check_table(path: Path, where: str, table: Any) -> None:
    """Raise ConfigError if a board's table has an unknown key, or a value of a wrong type."""
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {where}: must be a table, as in [{where}]")
    known = [f.name for f in fields(Board) if f.name != "name"]
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{path}: {where}: no key '{key}'{suggest_or_list(key, known)}")
        if key == "clients":
            check_clients_key(path, where, value)
            continue
        kind = {"systemd": bool, "nice": int, "memory_mb": int, "cpu_percent": int}.get(key, str)
        check_type(path, f"{where}.{key}", value, kind)


def check_clients_key(path: Path, where: str, value: Any) -> None:
    """Raise ConfigError if a board's clients are neither a number nor names."""
    if type(value) is int and value > 0:
        return
    if isinstance(value, list) and value and all(isinstance(c, str) for c in value):
        for client in value:
            if not NAME_PATTERN.fullmatch(client):
                raise ConfigError(
                    f"{path}: {where}.clients: {client!r} cannot be a client's name; {NAME_RULE}"
                )
        return
    raise ConfigError(
        f'{path}: {where}.clients: must be a number above 0, or names as in ["0", "1"], not {value!r}'
    )


def check_type(path: Path, where: str, value: Any, kind: type) -> None:
    """Raise ConfigError if the value of a key in the fleet's file has a wrong type."""
    if type(value) is not kind:
        words = {str: "text", int: "a whole number", bool: "true or false"}
        raise ConfigError(f"{path}: {where}: must be {words[kind]}, not {value!r}")


def check_board(path: Path, where: str, board: Board) -> None:
    """Raise ConfigError if a board's key has a wrong value."""
    for key in ("ssh", "python", "folder", "data", "torch"):
        value: str = getattr(board, key)
        if (
            not value.isprintable()
            or value.startswith("-")
            or (not value and key in ("ssh", "python", "folder"))
        ):
            raise ConfigError(f"{path}: {where}.{key}: {value!r} is empty, or begins with '-'")
    if not ACCELERATOR_PATTERN.fullmatch(board.accelerator):
        raise ConfigError(
            f"{path}: {where}.accelerator: must be cpu, cuda, cuda:1, mps or auto, not {board.accelerator!r}"
        )
    for key, low, high in (
        ("memory_mb", 64, 1 << 30),
        ("cpu_percent", 1, 100_000),
        ("nice", 0, 19),
    ):
        number = getattr(board, key)
        if number is not None and not low <= number <= high:
            raise ConfigError(f"{path}: {where}.{key}: must be {low} to {high}, not {number}")
    if board.cpu_percent is not None and not board.systemd:
        raise ConfigError(f"{path}: {where}.cpu_percent: needs systemd = true, which enforces it")


# Clients ------------------------------------------------------------------------------------
def check_client_names(fleet: Fleet) -> None:
    """Raise ConfigError if a client is on two boards, or if boards list clients in different ways."""
    kinds = {type(b.clients).__name__ for b in fleet.boards if not b.data}
    if len(kinds) > 1:
        raise ConfigError(
            f"{fleet.path}: clients: set names on all boards, numbers on all boards, or leave the key out on all boards"
        )
    owner: dict[str, str] = {}
    for board in fleet.boards:
        for client in board.clients if isinstance(board.clients, tuple) else ():
            if client in owner:
                raise ConfigError(
                    f"{fleet.path}: boards.{board.name}.clients: client '{client}' is on board"
                    f" '{owner[client]}' already"
                )
            owner[client] = board.name


def list_named_clients(fleet: Fleet) -> dict[str, tuple[str, ...]]:
    """Return the clients that the fleet's file assigns to each board; numbers are assigned from client 0 onwards."""
    found: dict[str, tuple[str, ...]] = {}
    begin = 0
    for board in fleet.boards:
        if isinstance(board.clients, tuple):
            found[board.name] = board.clients
        elif isinstance(board.clients, int):
            found[board.name] = tuple(str(i) for i in range(begin, begin + board.clients))
            begin += board.clients
    return found


def assign_clients(fleet: Fleet, clients: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the clients of each board; divide them evenly if the fleet's file does not assign them."""
    named = fleet.clients_by_board
    if not named:
        if len(fleet.boards) > len(clients):
            raise ConfigError(
                f"{fleet.path}: {len(fleet.boards)} boards for {len(clients)} clients;"
                f" raise data.clients, or list fewer boards"
            )
        count = len(fleet.boards)
        bounds = [len(clients) * i // count for i in range(count + 1)]
        return {
            board.name: tuple(clients[a:b])
            for board, (a, b) in zip(fleet.boards, pairwise(bounds), strict=True)
        }
    held = [c for names in named.values() for c in names]
    if missing := [c for c in clients if c not in held]:
        counted = any(isinstance(board.clients, int) for board in fleet.boards)
        odd = counted and missing[0] not in map(str, range(len(clients)))
        how = ": 0, 1, …; list the names of the clients, or leave clients out" if odd else ""
        raise ConfigError(
            f"{fleet.path}: no board holds client '{missing[0]}'; the run has {len(clients)} clients,"
            f" the boards hold {len(held)}{how}"
        )
    if unknown := [c for c in held if c not in clients]:
        raise ConfigError(
            f"{fleet.path}: the run has no client '{unknown[0]}'; it has {len(clients)} clients,"
            f" the boards hold {len(held)}"
        )
    return dict(named)


MAX_THREADS = 32
Step = Callable[[Board], str]  # returns a short description of what was done


@dataclass
class Outcome:
    """The result of a step on a fleet: what was done on each board, or why the step failed there."""

    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class View:
    """Shows the progress of a step on a fleet; this base class shows nothing."""

    def begin(self, title: str, boards: Sequence[str]) -> None:
        """Show that a step starts on these boards."""

    def update(self, board: str, state: str, text: str) -> None:
        """Show that a board is ``working``, ``done`` or ``failed``."""

    def end(self) -> None:
        """Show that the step has finished on all boards."""


def do_on_boards(title: str, boards: Sequence[Board], step: Step, view: View) -> Outcome:
    """Run a step on all boards in parallel; a failure on one does not stop the others."""
    outcome = Outcome()

    def do(board: Board) -> str:
        view.update(board.name, "working", "")
        return step(board)

    view.begin(title, [b.name for b in boards])
    try:
        with ThreadPoolExecutor(min(MAX_THREADS, max(1, len(boards)))) as threads:
            futures = {threads.submit(do, board): board.name for board in boards}
            for future in as_completed(futures):
                name = futures[future]
                try:
                    outcome.done[name] = future.result()
                    view.update(name, "done", outcome.done[name])
                except HeterophonyError as error:
                    outcome.failed[name] = str(error)
                    view.update(name, "failed", outcome.failed[name])
    finally:
        view.end()
    return outcome
