"""Who holds what: one pool of examples, and for each client the rows that are its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm import EVERYBODY
from ..errors import ConfigError, DataError
from ..files import disk
from ..randomness import generator
from ..samples import Data, Samples, Scale
from ..tensors import raw
from .partition import Partition, halves
from .source import Source
from .transforms import UNCHANGED, Transform, transform


@dataclass(frozen=True, eq=False)
class Federation:
    """The clients and their data. Memory does not grow with the number of clients."""

    name: str
    x: Tensor
    y: Tensor
    scale: Scale
    labels: tuple[str, ...]
    train: Mapping[str, Tensor]  # client -> rows of the pool
    test: Mapping[str, Tensor]
    transform: Transform | None = None  # a work's own, in the place of ``scale``

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.train)

    @property
    def classes(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.x.shape[1:])

    def data(self, client: str) -> Data:
        """One client's own examples."""
        if client == EVERYBODY:
            train, test = (torch.cat(list(rows.values())) for rows in (self.train, self.test))
        else:
            train, test = self.train[client], self.test[client]
        how = self.transform or Transform(UNCHANGED, self.scale, self.scale)
        return Data(
            Samples(self.x, self.y, how.train, train, how.moves),
            Samples(self.x, self.y, how.test, test),
            self.classes,
        )

    def transformed(self, name: str, frozen: bool = False) -> Federation:
        """The same examples, become input as in the work of that name."""
        return replace(self, transform=transform(name, self.x, self.classes, frozen))

    def sizes(self, part: str = "train") -> dict[str, int]:
        """How many examples each client has."""
        return {k: len(v) for k, v in getattr(self, part).items()}

    def counts(self, part: str = "train") -> NDArray[np.int64]:
        """Examples per client and class."""
        rows: Mapping[str, Tensor] = getattr(self, part)
        each = [torch.bincount(self.y[v], minlength=self.classes).numpy() for v in rows.values()]
        return np.stack(each)

    @cached_property
    def sha256(self) -> str:
        """Of all examples and of who holds which: equal federations give equal digests."""
        about: list[object] = [asdict(self.scale), self.labels]
        if self.transform is not None:
            about.append(asdict(self.transform))
        h = hashlib.sha256(json.dumps(about).encode())
        for tensor in (self.x, self.y):
            h.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + raw(tensor))
        for client in self.clients:
            h.update(json.dumps(client).encode() + raw(self.train[client]) + b"|")
            h.update(raw(self.test[client]))
        return h.hexdigest()

    def save(self, folder: Path) -> None:
        """As plain ``.npy`` files, to be opened by any number of processes."""
        with disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / "x.npy", self.x.numpy(), allow_pickle=False)
            np.save(folder / "y.npy", self.y.numpy(), allow_pickle=False)
            rows = [*self.train.values(), *self.test.values()]
            np.save(folder / "rows.npy", torch.cat(rows).numpy(), allow_pickle=False)
            about = {
                "name": self.name,
                "labels": self.labels,
                "scale": asdict(self.scale),
                "transform": self.transform and asdict(self.transform),
                "train": self.sizes(),
                "test": self.sizes("test"),
            }
            (folder / "about.json").write_text(json.dumps(about))

    @classmethod
    def open(cls, folder: Path) -> Federation:
        """The saved federation, memory-mapped: all processes share one copy of the examples."""
        about = json.loads((folder / "about.json").read_text())
        # mode "c" (copy on write): torch may have it, and no process can change the file
        x, y, rows = (
            torch.from_numpy(np.load(folder / f"{k}.npy", mmap_mode="c", allow_pickle=False))
            for k in ("x", "y", "rows")
        )
        sizes = [*about["train"].values(), *about["test"].values()]
        parts, n = list(rows.split(sizes)), len(about["train"])
        return cls(
            about["name"],
            x,
            y,
            Scale.of(about["scale"]),
            tuple(about["labels"]),
            dict(zip(about["train"], parts[:n], strict=True)),
            dict(zip(about["test"], parts[n:], strict=True)),
            about["transform"] and Transform.of(about["transform"]),
        )


def deal(
    source: Source, clients: int, partition: Partition, train_fraction: float, seed: int
) -> Federation:
    """The data set dealt to clients 0, 1, …; each splits its part into training and test."""
    if clients < 1:
        raise ConfigError(f"data.clients: must be at least 1, not {clients}")
    if clients > len(source.y):
        raise DataError(
            f"{clients} clients cannot share {len(source.y)} examples of {source.name};"
            " lower data.clients"
        )
    draw = generator(seed, "partition")
    dealt = partition.deal(source.y, len(source.labels), clients, draw)
    train, test = {}, {}
    for i, rows in enumerate(dealt):
        if len(rows) < 2:
            raise DataError(
                f"client {i} got {len(rows)} example{'s' * (len(rows) != 1)}; it needs at least 2,"
                " one to train and one to test: lower data.clients or raise"
                " data.partition.min_size"
            )
        first, second = halves(rows, train_fraction, generator(seed, "split", i))
        train[str(i)], test[str(i)] = torch.from_numpy(first), torch.from_numpy(second)
    x, y = torch.from_numpy(source.x), torch.from_numpy(source.y)
    return Federation(source.name, x, y, source.scale, source.labels, train, test)


def gather(
    source: Source, sizes: Sequence[int], trains: Sequence[int | None], fraction: float, seed: int
) -> Federation:
    """Clients who bring their own data, one after the other in the source.

    Client i has ``sizes[i]`` examples; the first ``trains[i]`` are for training, or, where that
    is None, a random ``fraction`` of them.
    """
    train, test = {}, {}
    ends = np.cumsum(sizes)
    for i, (rows, known) in enumerate(
        zip(np.split(np.arange(ends[-1]), ends[:-1]), trains, strict=True)
    ):
        if len(rows) < 2 or known == 0 or known == len(rows):
            raise DataError(
                f"client {i} has {len(rows)} examples; it needs at least one to train and one to test"
            )
        if known is None:
            first, second = halves(rows, fraction, generator(seed, "split", i))
        else:
            first, second = rows[:known], rows[known:]
        train[str(i)], test[str(i)] = torch.from_numpy(first), torch.from_numpy(second)
    x, y = torch.from_numpy(source.x), torch.from_numpy(source.y)
    return Federation(source.name, x, y, source.scale, source.labels, train, test)
