"""Clients' data in a run on boards: what the server knows of them, and shares that boards load."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
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
from ..core.samples import ClientData, Scale
from ..core.tensors import tensor_to_bytes
from ..data.client_folders import OWN_DATA
from ..data.federation import Federation
from ..data.source import check_names_on_boards
from ..data.transforms import Transform
from .protocol.messages import ClientSummary


@dataclass(frozen=True, eq=False)
class RemoteFederation(Federation):
    """A federation that knows its clients and none of their examples."""

    summaries: Mapping[str, ClientSummary] = field(default_factory=dict)

    @cached_property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.summaries)

    def sizes(self, part: str = "train") -> dict[str, int]:
        return {c: int(getattr(summary, part)) for c, summary in self.summaries.items()}

    def counts(self, part: str = "train") -> NDArray[np.int64]:
        return np.array([summary.labels for summary in self.summaries.values()], dtype=np.int64)

    @cached_property
    def sha256(self) -> str:
        """The digest of the digests that the clients report."""
        lines = "\n".join(f"{c} {summary.data_sha256}" for c, summary in self.summaries.items())
        return hashlib.sha256(lines.encode()).hexdigest()

    def data(self, client: str) -> ClientData:
        raise DataError(f"the data of client {client} are on its board")

    def save_partition(self, path: Path) -> None:
        """Write nothing: the server does not know who holds which example."""


def make_remote_federation(
    name: str, summaries: Mapping[str, ClientSummary], labels: tuple[str, ...]
) -> RemoteFederation:
    """Build the federation of these clients, whose examples all have the first one's format."""
    first = next(iter(summaries.values()))
    x = torch.empty(0, *first.shape, dtype=getattr(torch, first.type))
    y = torch.empty(0, dtype=torch.int64)
    no_rows: dict[str, torch.Tensor] = {}
    return RemoteFederation(
        name, x, y, Scale(255.0, (0.5,), (0.5,)), labels, no_rows, no_rows, summaries=summaries
    )


FindSummary = Callable[[str], ClientSummary | None]  # by the client's name; None: there is none


def summarize_client(federation: Federation, client: str) -> ClientSummary:
    """Return how much data a client has, of which kind, and a digest of it."""
    i = federation.clients.index(client)
    sizes = {part: federation.sizes(part)[client] for part in ("train", "test", "validation")}
    digest = hashlib.sha256()
    for part in [p for p in sizes if sizes[p]]:
        samples = federation.samples(client, part)
        digest.update(tensor_to_bytes(samples.get_all_stored()))
        digest.update(tensor_to_bytes(samples.labels))
    counts = tuple(int(n) for n in federation.counts()[i])
    return ClientSummary(
        client, **sizes, labels=counts, data_sha256=digest.hexdigest(), shape=federation.shape,
        classes=federation.classes, type=str(federation.x.dtype).removeprefix("torch."),
    )  # fmt: skip


def load_known_summaries(config: Config, say: Callable[[str], None]) -> FindSummary | None:
    """Load a partitioned data set to check what boards say; None if only they have the data."""
    if config.data.name == OWN_DATA:
        return None
    try:
        federation = config.build_federation()
    except DataError as error:
        say(f"what boards say about their data cannot be checked here: {error}")
        return None
    check_names_on_boards(federation.clients)
    known = set(federation.clients)
    return lambda client: summarize_client(federation, client) if client in known else None


PARTS = ("train", "test", "validation")
MAX_BYTES = 8 << 30


def encode_share(federation: Federation, client: str) -> bytes:
    """Return the bytes of a client's share; equal data give equal bytes."""
    transform = federation.transform
    if transform is not None and transform.moves is not None and transform.moves.frozen:
        raise ConfigError(
            "data.frozen_augment: depends on the whole data set, so it cannot be sent as shares"
        )
    if federation.task == "regression":
        raise ConfigError(
            "data.task: R² depends on all clients' targets, so they cannot be sent as shares"
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
    }
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def load_shares(folder: Path, clients: list[str]) -> Federation:
    """Load the shares of these clients as a federation of their own."""
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
                f"{folder}: the shares of {client} and {clients[0]} are of different runs"
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
    )


def read_share(path: Path) -> Mapping[str, NDArray[Any]]:
    """Read one share; a file of another kind is one line."""
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
