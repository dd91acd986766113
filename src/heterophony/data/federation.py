"""Who holds what: one pool of examples, and for each client the rows that are its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from .partitions import Partition, Share, Terms, halves, shares
from .partitions.file import digest, save
from .partitions.rule import Split
from .skew import Seen, Skew, seen_by, skew, told
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
    names: Mapping[str, str] = field(default_factory=dict)  # of users behind the clients, if known
    skew: Skew | None = None  # how each client sees its examples, if not as they are
    new: tuple[str, ...] = ()  # those who join after training; until then nobody knows of them

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Those who are there from the start: all who train, and all that G and P speak of."""
        new = set(self.new)
        return tuple(c for c in self.train if c not in new)

    @property
    def classes(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.x.shape[1:])

    def data(self, client: str) -> Data:
        """One client's own examples."""
        return Data(self.samples(client, "train"), self.samples(client, "test"), self.classes)

    def samples(self, client: str, part: str) -> Samples:
        """One client's examples of one part, as the client sees them."""
        whose = self.clients if client == EVERYBODY else (client,)
        held = {c: getattr(self, part)[c] for c in whose}
        rows = torch.cat(list(held.values())) if client == EVERYBODY else held[client]
        how = self.transform or Transform(UNCHANGED, self.scale, self.scale)
        scale, moves = (how.train, how.moves) if part == "train" else (how.test, None)
        if self.skew is None:
            return Samples(self.x, self.y, scale, rows, moves)
        view = seen_by(self.skew, held, self.scale.unit, part)
        return Seen(self.x, self.y, scale, rows, moves, view=view)

    def transformed(self, name: str, frozen: bool = False) -> Federation:
        """The same examples, become input as in the work of that name."""
        return replace(self, transform=transform(name, self.x, self.classes, frozen))

    def sizes(self, part: str = "train") -> dict[str, int]:
        """How many examples each client has."""
        rows: Mapping[str, Tensor] = getattr(self, part)
        return {c: len(rows[c]) for c in self.clients}

    def counts(self, part: str = "train") -> NDArray[np.int64]:
        """Examples per client and class."""
        rows: Mapping[str, Tensor] = getattr(self, part)
        held = [self.y[rows[c]] for c in self.clients]
        return np.stack([torch.bincount(y, minlength=self.classes).numpy() for y in held])

    def whole(self) -> Federation:
        """The same data with everybody there from the start."""
        return replace(self, new=())

    def keeping_out(self, share: float, seed: int) -> Federation:
        """The same data, with a share of the clients to join only after training.

        As with participation, a share is rounded down, but never to nobody; one stays at least.
        """
        everybody = tuple(self.train)
        if not share:
            return self
        if len(everybody) < 2:
            raise ConfigError(
                "data.new_clients: nobody would be left to train: there is one client only"
            )
        count = min(max(1, int(share * len(everybody) + 1e-9)), len(everybody) - 1)
        drawn = generator(seed, "new clients").choice(len(everybody), count, replace=False)
        return replace(self, new=tuple(everybody[i] for i in sorted(drawn)))

    @cached_property
    def sha256(self) -> str:
        """Of all examples and of who holds which: equal federations give equal digests."""
        about: list[object] = [asdict(self.scale), self.labels]
        if self.transform is not None:
            about.append(asdict(self.transform))
        h = hashlib.sha256(json.dumps(about).encode())
        for tensor in (self.x, self.y):
            h.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + raw(tensor))
        for client in self.train:
            h.update(json.dumps(client).encode() + raw(self.train[client]) + b"|")
            h.update(raw(self.test[client]))
        if self.skew is not None:
            h.update(json.dumps(told(self.skew)).encode())
        if self.new:
            h.update(json.dumps(["new", *self.new]).encode())
        return h.hexdigest()

    def save_partition(self, path: Path) -> None:
        """Who holds which rows, as a ``.json`` or ``.npz`` that a partition can be read from."""
        rows = {c: (self.train[c].numpy(), self.test[c].numpy()) for c in self.train}
        held = {c: Share(*both, self.names.get(c, "")) for c, both in rows.items()}
        save(path, held, digest(self.x.numpy(), self.y.numpy()))

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
                "train": self.whole().sizes(),
                "test": self.whole().sizes("test"),
                "names": dict(self.names),
                "skew": None if self.skew is None else told(self.skew),
                "new": self.new,
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
            transform=about["transform"] and Transform.of(about["transform"]),
            names=about["names"],
            skew=None if about["skew"] is None else skew(about["skew"]),
            new=tuple(about["new"]),
        )


def deal(
    source: Source,
    clients: int,
    partition: Partition,
    train_fraction: float,
    seed: int,
    split: Split = "merged",
    feature_skew: Skew | None = None,
) -> Federation:
    """The data set dealt to clients 0, 1, …; each has a part to train and a part to test."""
    if clients < 1:
        raise ConfigError(f"data.clients: must be at least 1, not {clients}")
    if clients > len(source.y):
        raise DataError(
            f"{clients} clients cannot share {len(source.y)} examples of {source.name};"
            " lower data.clients"
        )
    own = getattr(partition, "seed", None)
    terms = Terms(clients, train_fraction, split, seed if own is None else own)
    dealt = {str(i): share for i, share in enumerate(shares(partition, source, terms))}
    if len(dealt) != clients:
        raise DataError(f"the partition dealt to {len(dealt)} clients, not to {clients}")
    for i, share in dealt.items():
        if not len(share.train) or not len(share.test):
            raise DataError(
                f"client {i} got {len(share.train)} examples to train and {len(share.test)} to"
                " test; it needs at least one of each: lower data.clients"
            )
    x, y = torch.from_numpy(source.x), torch.from_numpy(source.y)
    if feature_skew is not None:
        feature_skew.suits(x)
        if feature_skew.seed is None:
            feature_skew = replace(feature_skew, seed=seed)
    return Federation(
        source.name,
        x,
        y,
        source.scale,
        source.labels,
        {i: torch.from_numpy(np.asarray(share.train, np.int64)) for i, share in dealt.items()},
        {i: torch.from_numpy(np.asarray(share.test, np.int64)) for i, share in dealt.items()},
        names={i: share.name for i, share in dealt.items() if share.name},
        skew=feature_skew,
    )


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
