"""Simulated clients: when they are available and how fast they are, by rules or from a file."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf
from pathlib import Path
from typing import Any, Literal

from ..core.errors import ConfigError, DataError
from ..core.files import JSON_LIMIT, read_regular_file
from ..core.randomness import derive_seed, make_generator
from ..core.settings import CheckedSettings, check_settings, setting

RowsByClient = dict[str, list[tuple[float, ...]]]


def read_per_client_file(file: str, columns: Sequence[str]) -> RowsByClient:
    """Read a file of availability or speeds: each client's rows of ``columns``; an empty value is infinity.

    A CSV file has a column ``client`` in addition to ``columns``. A JSON file has an object that maps each
    client to a row or a list of rows; each row is an array or an object.
    """
    text = read_file_bytes(file).decode(errors="replace")
    try:
        content = (
            json.loads(text) if file.endswith(".json") else group_csv_by_client(file, text, columns)
        )
    except (ValueError, RecursionError):
        raise DataError(f"{file} is not JSON") from None
    except csv.Error as error:
        raise DataError(f"{file} is not CSV: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{file}: must be an object with an entry for each client")
    return {
        str(c): [parse_row(file, c, r, columns) for r in list_client_rows(value)]
        for c, value in content.items()
    }


def hash_file(file: str) -> str:
    """Compute the SHA-256 of a file of availability or speeds."""
    return hashlib.sha256(read_file_bytes(file)).hexdigest()


def read_file_bytes(file: str) -> bytes:
    """Read a file of availability or speeds as bytes; raise DataError if that fails."""
    try:
        return read_regular_file(Path(file), JSON_LIMIT)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None


def group_csv_by_client(
    file: str, text: str, columns: Sequence[str]
) -> dict[str, list[Mapping[str, Any]]]:
    """Group the rows of a CSV file by its column ``client``; raise DataError if a column is missing."""
    lines = csv.DictReader(text.splitlines(), skipinitialspace=True)
    missing = [c for c in ("client", *columns) if c not in (lines.fieldnames or ())]
    if missing:
        raise DataError(f"{file}: its first line does not have the column '{missing[0]}'")
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        rows.setdefault(str(line["client"]), []).append(line)
    return rows


def list_client_rows(value: Any) -> Iterable[Any]:
    """List a client's rows in a JSON file, where the client's value may be a list of rows or a single row."""
    if isinstance(value, list) and all(isinstance(v, list | dict) for v in value):
        return value
    return [value]


def parse_row(file: str, client: str, given: Any, columns: Sequence[str]) -> tuple[float, ...]:
    """Convert a client's row in a file to numbers; raise DataError unless each number is at least 0."""
    problem = f"{file}: client {client} needs rows of {', '.join(columns)}, numbers of at least 0"
    try:
        values = [given[c] for c in columns] if isinstance(given, dict) else given
        if isinstance(values, str):  # iterating over a string would give its characters
            raise TypeError
        numbers = tuple(inf if v in (None, "") else float(v) for v in values)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise DataError(problem) from None
    if len(numbers) != len(columns) or not all(v >= 0 for v in numbers):
        raise DataError(problem)
    return numbers


TimeUnit = Literal["rounds", "seconds"]


class Availability:
    """A rule that decides whether a client is available in round ``t``, at ``now`` of the simulated time."""

    def __repr__(self) -> str:
        return type(self).__name__

    def reachable(self, client: str, t: int, now: float, seed: int) -> bool:
        """Return True if the client is available: it can be selected in round ``t``."""
        raise NotImplementedError

    def wait(self, client: str, now: float, seed: int) -> float:
        """Return the simulated seconds until the client is available; 0 if the rule does not use time."""
        return 0.0

    def know(self, clients: Iterable[str]) -> None:
        """Check a run's clients before it starts; raise DataError if the rule does not match them."""


@dataclass(frozen=True)
class RandomAvailability(Availability):
    """Each client is available with the same probability in every round."""

    share: float

    def reachable(self, client: str, t: int, now: float, seed: int) -> bool:
        return draw_uniform(seed, "availability", t, client) < self.share


@dataclass(frozen=True)
class Diurnal(CheckedSettings, Availability):
    """Each client is available during a part of every day; each client's day starts at a random time."""

    period: float = setting(24.0, "length of a day, in rounds or simulated seconds", above=0)
    share: float = setting(0.5, "part of the day in which a client can be reached", above=0, high=1)
    unit: TimeUnit = setting("rounds", "unit of `period`: rounds or seconds")

    def compute_time_of_day(self, client: str, when: float, seed: int) -> float:
        """Compute which fraction of the client's day has passed, from 0 to 1."""
        return (when / self.period + draw_uniform(seed, "day", client)) % 1

    def reachable(self, client: str, t: int, now: float, seed: int) -> bool:
        return (
            self.compute_time_of_day(client, t if self.unit == "rounds" else now, seed) < self.share
        )

    def wait(self, client: str, now: float, seed: int) -> float:
        return (
            0.0
            if self.unit == "rounds"
            else (1 - self.compute_time_of_day(client, now, seed)) * self.period
        )


@dataclass(frozen=True)
class Trace(Availability):
    """Clients in the file are available from ``start`` until just before ``end``; other clients always are."""

    file: str = setting("", "CSV (client, start, end) or JSON (client: [[start, end], …])")
    unit: TimeUnit = setting("rounds", "unit of the file: rounds or seconds")

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.file:
            raise ConfigError("file: missing; name a CSV or JSON file")

    @cached_property
    def intervals(self) -> RowsByClient:
        """Each client's intervals of availability, as (start, end)."""
        return read_per_client_file(self.file, ("start", "end"))

    def know(self, clients: Iterable[str]) -> None:
        unknown = self.intervals.keys() - set(clients)
        if unknown:
            raise DataError(f"{self.file}: there is no client '{min(unknown)}'")
        for client, intervals in self.intervals.items():
            if any(start == inf or start > end for start, end in intervals):
                raise DataError(f"{self.file}: client {client} has an interval that ends before"
                                " it starts, or never starts")  # fmt: skip

    def reachable(self, client: str, t: int, now: float, seed: int) -> bool:
        when = t if self.unit == "rounds" else now
        intervals = self.intervals.get(client)
        return intervals is None or any(start <= when < end for start, end in intervals)

    def wait(self, client: str, now: float, seed: int) -> float:
        if self.unit == "rounds":
            return 0.0
        return min((s - now for s, end in self.intervals.get(client, []) if now < s < end),
                   default=inf)  # fmt: skip


def draw_uniform(*key: object) -> float:
    """Draw a uniform number from [0, 1) that depends only on the key, such as (seed, round, client)."""
    return (derive_seed(*key) >> 10) / 2**53


FILE_COLUMNS = ("sample_seconds", "bytes_per_second")
MAX_SECONDS_PER_UNIT = 1e6  # per example or byte: slower than any client, but sums stay finite


@dataclass(frozen=True)
class Speeds:
    """Simulated speeds of clients: seconds per example, bytes per second. By default, no time is simulated."""

    sample_seconds: float = setting(
        0.0, "seconds to train on one example", low=0, high=MAX_SECONDS_PER_UNIT
    )
    bytes_per_second: float | None = setting(
        None,
        "bytes per second of the network in each direction; default: no limit",
        low=1 / MAX_SECONDS_PER_UNIT,
    )
    spread: float = setting(
        0.0, "how much clients differ: sigma of a log-normal factor", low=0, high=10
    )
    file: str | None = setting(
        None,
        "CSV (client, sample_seconds, bytes_per_second) or JSON; overrides the speeds of its clients",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.spread and not (self.sample_seconds or self.bytes_per_second):
            raise ConfigError(
                "spread: has no effect unless sample_seconds or bytes_per_second is set"
            )

    @property
    def simulates_time(self) -> bool:
        """Return True if the run simulates time."""
        return bool(self.sample_seconds or self.bytes_per_second or self.file)

    @cached_property
    def file_rows(self) -> RowsByClient:
        """The speeds of the clients in the file, one row per client."""
        return read_per_client_file(self.file, FILE_COLUMNS) if self.file else {}

    def check_clients(self, clients: Iterable[str]) -> None:
        """Check a run's clients before it starts; raise DataError if the speeds file does not match them."""
        unknown = self.file_rows.keys() - set(clients)
        if unknown:
            raise DataError(f"{self.file}: there is no client '{min(unknown)}'")
        for client, rows in self.file_rows.items():
            if (
                len(rows) != 1
                or rows[0][0] > MAX_SECONDS_PER_UNIT
                or rows[0][1] < 1 / MAX_SECONDS_PER_UNIT
            ):
                raise DataError(
                    f"{self.file}: client {client} needs one row of {FILE_COLUMNS[0]} (at most"
                    f" {MAX_SECONDS_PER_UNIT:g}) and {FILE_COLUMNS[1]} (at least"
                    f" {1 / MAX_SECONDS_PER_UNIT:g}, or empty for no limit)"
                )

    def get_speed(self, client: str, seed: int) -> tuple[float, float]:
        """Return a client's simulated seconds per example and bytes per second, constant in a run."""
        if client in self.file_rows:
            seconds, rate = self.file_rows[client][0]
            return seconds, rate
        computing, network = make_generator(seed, "device", client).standard_normal(2).tolist()
        rate = self.bytes_per_second or inf
        return self.sample_seconds * exp(self.spread * computing), rate * exp(self.spread * network)

    def compute_round_seconds(
        self, client: str, down: int, examples: int, up: int, seed: int
    ) -> float:
        """Compute the simulated seconds that a client needs to receive, train and send."""
        per_example, rate = self.get_speed(client, seed)
        return down / rate + examples * per_example + up / rate
