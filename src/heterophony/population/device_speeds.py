"""The speeds of clients' devices, from which the simulated time is computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf

from ..core.errors import ConfigError, DataError
from ..core.fields import check_settings, setting
from ..core.randomness import make_generator
from .per_client_file import RowsByClient, read_per_client_file

FILE_COLUMNS = ("sample_seconds", "bytes_per_second")
MAX_SECONDS_PER_UNIT = 1e6  # per example or byte: slower than any device, and sums stay finite


@dataclass(frozen=True)
class Devices:
    """Seconds per example and bytes per second. With the defaults, no time is simulated."""

    sample_seconds: float = setting(
        0.0, "seconds to train on one example", low=0, high=MAX_SECONDS_PER_UNIT
    )
    bytes_per_second: float | None = setting(
        None,
        "speed of the network in each direction; default: no limit",
        low=1 / MAX_SECONDS_PER_UNIT,
    )
    spread: float = setting(
        0.0, "how much devices differ: sigma of a log-normal factor", low=0, high=10
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
        """Tell whether time is simulated."""
        return bool(self.sample_seconds or self.bytes_per_second or self.file)

    @cached_property
    def file_rows(self) -> RowsByClient:
        return read_per_client_file(self.file, FILE_COLUMNS) if self.file else {}

    def check_clients(self, clients: Iterable[str]) -> None:
        """Check, before a run, that the file fits its clients; raise DataError if not."""
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
        """Return a client's seconds per example and bytes per second; they never change in a run."""
        if client in self.file_rows:
            seconds, rate = self.file_rows[client][0]
            return seconds, rate
        computing, network = make_generator(seed, "device", client).standard_normal(2).tolist()
        rate = self.bytes_per_second or inf
        return self.sample_seconds * exp(self.spread * computing), rate * exp(self.spread * network)

    def compute_round_seconds(
        self, client: str, down: int, examples: int, up: int, seed: int
    ) -> float:
        """Compute the seconds that a client needs to receive, train and send."""
        per_example, rate = self.get_speed(client, seed)
        return down / rate + examples * per_example + up / rate
