"""Client data in a run on boards: summaries for the server, and shares that boards load."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..config.config import Config
from ..core.errors import ConfigError, DataError
from ..core.files import UnsuitableFileError, read_regular_file
from ..core.records import Record
from ..core.samples import ClientData, Scale
from ..core.tensors import tensor_to_bytes
from ..data.federation import Federation
from ..data.folders import OWN_DATA
from ..data.source import check_names_on_boards
from ..data.transforms import Transform
from .protocol.messages import ClientSummary


@dataclass(frozen=True, eq=False)
class RemoteFederation(Federation):
    """The server's federation in a run on boards: sizes and formats of the clients' data, no examples."""

    summaries: Mapping[str, ClientSummary] = field(default_factory=dict)

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients that boards have introduced."""
        return tuple(self.summaries)

    def sizes(self, part: str = "train") -> dict[str, int]:
        """Return the number of examples that boards report for each client."""
        return {c: int(getattr(summary, part)) for c, summary in self.summaries.items()}

    def count_labels(self, part: str = "train") -> NDArray[np.int64]:
        """Return the label counts that boards report for each client."""
        return np.array([summary.labels for summary in self.summaries.values()], dtype=np.int64)

    @cached_property
    def sha256(self) -> str:
        """The digest of the clients' names and of the data digests that their boards report."""
        lines = "\n".join(f"{c} {summary.data_sha256}" for c, summary in self.summaries.items())
        return hashlib.sha256(lines.encode()).hexdigest()

    def data(self, client: str) -> ClientData:
        """Raise DataError, because the data are on the client's board."""
        raise DataError(f"the data of client {client} are on its board")

    def take_examples(self, count: int) -> torch.Tensor:
        """Return blank examples as network input, because the server has no data."""
        stored = torch.zeros(count, *self.shape, dtype=self.x.dtype)
        return stored.float() if stored.dtype == torch.uint8 else stored

    def save_partition(self, path: Path, nets: Mapping[str, str] | None = None) -> None:
        """Write nothing: the server does not know which client holds which example."""


def make_remote_federation(
    name: str, summaries: Mapping[str, ClientSummary], labels: tuple[str, ...]
) -> RemoteFederation:
    """Build the server's federation from the summaries of the clients on boards."""
    first = next(iter(summaries.values()))
    x = torch.empty(0, *first.shape, dtype=getattr(torch, first.type))
    y = torch.empty(0, dtype=torch.int64)
    no_rows: dict[str, torch.Tensor] = {}
    return RemoteFederation(
        *(name, x, y, Scale(255.0, (0.5,), (0.5,)), labels, no_rows, no_rows),
        record=read_record(first),
        summaries=summaries,
    )


# returns the summary of a client's data by the client's name; None if there is no summary
FindSummary = Callable[[str], ClientSummary | None]


def summarize_client(federation: Federation, client: str) -> ClientSummary:
    """Return the summary that a board sends of a client's data: sizes, format and digest."""
    i = federation.clients.index(client)
    sizes = {part: federation.sizes(part)[client] for part in ("train", "test", "validation")}
    digest = hashlib.sha256()
    for part in [p for p in sizes if sizes[p]]:
        samples = federation.samples(client, part)
        digest.update(tensor_to_bytes(samples.get_all_stored()))
        digest.update(tensor_to_bytes(samples.labels))
    counts = tuple(int(n) for n in federation.count_labels()[i])
    record = federation.record
    return ClientSummary(
        client, **sizes, labels=counts, data_sha256=digest.hexdigest(), shape=federation.shape,
        classes=federation.classes, type=str(federation.x.dtype).removeprefix("torch."),
        record="" if record is None else json.dumps(record.to_dict()),
    )  # fmt: skip


def read_record(summary: ClientSummary) -> Record | None:
    """Return the layout of a client's packed examples; raise ValueError if it contradicts their shape."""
    if not summary.record:
        return None
    try:
        record = Record.from_dict(json.loads(summary.record))
        fits = (sum(field.words for field in record.fields),) == tuple(summary.shape)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        fits = False
    if not fits or summary.type != "int32":
        raise ValueError("reports arrays that its examples cannot hold")
    return record


def load_known_summaries(config: Config, say: Callable[[str], None]) -> FindSummary | None:
    """Return a function that computes the summaries of clients' data; None if the server has no data."""
    if config.data.name == OWN_DATA:
        return None
    try:
        federation = config.build_federation()
    except DataError as error:
        say(f"the boards' summaries of their data cannot be checked here: {error}")
        return None
    check_names_on_boards(federation.clients)
    known = set(federation.clients)
    return lambda client: summarize_client(federation, client) if client in known else None


PARTS = ("train", "test", "validation")
MAX_BYTES = 8 << 30


def encode_share(federation: Federation, client: str) -> bytes:
    """Encode a client's share of the data set as bytes of an .npz file; equal data give equal bytes."""
    transform = federation.transform
    if transform is not None and transform.moves is not None and transform.moves.frozen:
        raise ConfigError(
            "data.frozen_augment: depends on the whole data set, so the data cannot be split into shares"
        )
    if federation.task == "regression":
        raise ConfigError(
            "data.task: R² depends on all clients' targets, so the data cannot be split into shares"
        )
    arrays: dict[str, NDArray[Any]] = {}
    for part in PARTS:
        if client in getattr(federation, part):
            samples = federation.samples(client, part)
            arrays[f"x_{part}"] = samples.get_all_stored().numpy()
            arrays[f"y_{part}"] = samples.labels.numpy()
    about = {
        "name": federation.name,
        "labels": federation.labels,
        "scale": asdict(federation.scale),
        "transform": transform and asdict(transform),
        "task": federation.task,
        "record": federation.record and federation.record.to_dict(),
    }
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def load_shares(folder: Path, clients: list[str]) -> Federation:
    """Load the shares of a board's clients as one federation."""
    shares = {client: read_share(folder / f"{client}.npz") for client in clients}
    first = shares[clients[0]]
    about = json.loads(first["about"].tobytes())
    x: list[NDArray[Any]] = []
    y: list[NDArray[Any]] = []
    rows: dict[str, dict[str, torch.Tensor]] = {part: {} for part in PARTS}
    begin = 0
    for client, arrays in shares.items():
        if arrays["about"].tobytes() != first["about"].tobytes():
            raise DataError(
                f"{folder}: the shares of {client} and {clients[0]} belong to different runs"
            )
        for part in PARTS:
            if f"x_{part}" in arrays:
                count = len(arrays[f"y_{part}"])
                rows[part][client] = torch.arange(begin, begin + count)
                begin += count
                x.append(arrays[f"x_{part}"])
                y.append(arrays[f"y_{part}"])
    return Federation(
        about["name"],
        torch.from_numpy(np.concatenate(x)),
        torch.from_numpy(np.concatenate(y)),
        Scale.from_dict(about["scale"]),
        tuple(about["labels"]),
        rows["train"],
        rows["test"],
        transform=about["transform"] and Transform.from_dict(about["transform"]),
        validation=rows["validation"],
        task=about["task"],
        record=about["record"] and Record.from_dict(about["record"]),
    )


def read_share(path: Path) -> Mapping[str, NDArray[Any]]:
    """Read the arrays in a client's share; raise DataError if the file is missing or not a share."""
    try:
        with np.load(io.BytesIO(read_regular_file(path, MAX_BYTES)), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        complete = {"x_train", "y_train", "x_test", "y_test", "about"} <= arrays.keys()
    except FileNotFoundError:
        raise DataError(
            f"there is no share {path}; copy it with: heterophony fleet HOSTS data"
        ) from None
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, UnsuitableFileError):
        complete = False
    if not complete:
        raise DataError(
            f"{path} is not a client's share; copy it again: heterophony fleet HOSTS data"
        )
    return arrays


SAMPLE_SECONDS = 1.0  # seconds between two readings of the power
ReadWatts = Callable[[], float]


class BoardSensors:
    """Reads the sensors of this board and process below ``root``: memory, temperature and energy."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self.root, self.clock = root, clock
        self.start = clock()
        self.peak = 0
        self.counters = list(root.glob("sys/class/powercap/intel-rapl:[0-9]/energy_uj"))
        self.last_counts = {path: self.read_number(path) for path in self.counters}
        self.read_watts = None if self.counters else find_power_sensor(root)
        self.joules = 0.0
        self.sampled_at = self.start
        self.lock = threading.Lock()
        if self.read_watts is not None:
            threading.Thread(target=self.sample_repeatedly, name="power", daemon=True).start()

    def read(self) -> dict[str, float]:
        """Return the board's measurements; those that the board cannot take are left out."""
        out = {"seconds": self.clock() - self.start, "cpu_seconds": time.process_time()}
        if (peak := self.read_status_bytes("VmHWM")) is not None:
            self.peak = max(self.peak, peak)  # the kernel's counter may have been reset
            out["peak_bytes"] = self.peak
        if (heat := self.read_temperature()) is not None:
            out["celsius"] = heat
        if self.counters or self.read_watts is not None:
            out["joules"] = self.update_energy()
        return out

    def read_status_bytes(self, key: str) -> int | None:
        """Return a memory size of this process, such as VmRSS or VmHWM (the peak), in bytes."""
        with suppress(OSError, ValueError, IndexError):
            for line in (self.root / "proc/self/status").read_text().splitlines():
                if line.startswith(f"{key}:"):
                    return int(line.split()[1]) * 1024
        return None

    def read_temperature(self) -> float | None:
        """Return the highest temperature of the board's zones, in °C."""
        zones = self.root.glob("sys/class/thermal/thermal_zone*/temp")
        found = [n / 1000 for zone in zones if (n := self.read_number(zone)) is not None]
        return max(found, default=None)

    def update_energy(self) -> float:
        """Add the energy that the board has used since the last reading; return the sum in joules."""
        with self.lock:
            for path in self.counters:
                before, now = self.last_counts[path], self.read_number(path)
                if before is not None and now is not None:
                    self.joules += (
                        max(0.0, now - before) / 1e6
                    )  # a counter that wrapped around adds nothing
                self.last_counts[path] = now
            if self.read_watts is not None:
                now = self.clock()
                with suppress(OSError, ValueError):
                    self.joules += self.read_watts() * (now - self.sampled_at)
                self.sampled_at = now
            return self.joules

    def sample_repeatedly(self) -> None:
        """Read the board's power every second and add up the energy, in a thread."""
        while True:
            time.sleep(SAMPLE_SECONDS)
            self.update_energy()

    @staticmethod
    def read_number(path: Path) -> float | None:
        """Read the number in a file of a sensor; return None if that fails."""
        with suppress(OSError, ValueError):
            return float(path.read_text())
        return None


def find_power_sensor(root: Path) -> ReadWatts | None:
    """Return a function that reads the board's power in watts; None if there is no known sensor.

    Jetson boards have an INA3221, whose first channel measures the whole board: power in mW under
    JetPack 4, voltage and current in later versions. Other boards may report power in µW by hwmon.
    """
    for path in sorted(root.glob("sys/bus/i2c/drivers/ina3221x/*/iio:device*/in_power0_input")):
        return lambda: float(path.read_text()) / 1e3
    for volts in sorted(root.glob("sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*/in1_input")):
        amperes = volts.with_name("curr1_input")
        if amperes.exists():
            return lambda: float(volts.read_text()) * float(amperes.read_text()) / 1e6
    for path in sorted(root.glob("sys/class/hwmon/hwmon*/power1_input")):
        return lambda: float(path.read_text()) / 1e6
    return None


RESERVE = 32 << 20  # memory kept free for messages and the system
MAX_CLIENTS = 1024  # limit per board, set by the protocol
ReadBytes = Callable[[], int]


class MemoryGuard:
    """Measures the memory that a board's jobs need, and refuses jobs for which too little is free."""

    def __init__(
        self,
        limit: int | None,
        clients: int,
        data_bytes: int,
        read_used: ReadBytes,
        read_free: ReadBytes,
    ) -> None:
        self.limit = limit  # bytes that the process may use; None: all that the board has
        self.clients, self.data_bytes = clients, data_bytes
        self.read_used, self.read_free = read_used, read_free
        self.job_bytes = 0  # most bytes that a job has needed so far
        self.before = 0

    def compute_free(self) -> int:
        """Return the bytes of memory that the board's process may still allocate."""
        free = self.read_free()
        return free if self.limit is None else min(free, self.limit - self.read_used())

    def begin_job(self, client: str) -> None:
        """Start to measure a job; raise ConfigError if too little memory may be free for it."""
        self.before = self.read_used()
        free = self.compute_free()
        if free < self.job_bytes + RESERVE:
            needed = f"a job needs {max(self.job_bytes, RESERVE) / 1e6:.0f} MB"
            measured = ", as measured" if self.job_bytes else " at least"
            raise ConfigError(
                f"too little memory for client {client}: {needed}{measured}, {max(free, 0) / 1e6:.0f} MB are"
                f" left; this board has room for {self.count_possible_clients()} of its"
                f" {self.clients} clients: give it fewer, or stop other programs"
            )

    def end_job(self, peak: int) -> None:
        """Record the peak memory of the board's process during the job that has ended."""
        self.job_bytes = max(self.job_bytes, peak - self.before)

    def count_possible_clients(self) -> int:
        """Estimate how many clients of the mean size of its own fit into the board's memory beside a running job."""
        per_client = max(1, self.data_bytes // max(1, self.clients))
        room = self.compute_free() - self.job_bytes - RESERVE
        return min(MAX_CLIENTS, max(0, self.clients + room // per_client))


def read_free_bytes() -> int:
    """Return the free memory of the board in bytes, within the limit of this process's control group."""
    free = 1 << 62
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup") / Path("/proc/self/cgroup").read_text().split("::", 1)[
            1
        ].strip().lstrip("/")
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            free = min(free, int(most) - int((group / "memory.current").read_text()))
    return free


def reset_peak_memory() -> None:
    """Reset the kernel's counter of this process's peak memory, if that is permitted."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
