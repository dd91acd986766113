"""Who holds what: one pool of examples, and for each client the rows that are its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.algorithm import POOLED_CLIENT
from ..core.errors import ConfigError
from ..core.files import translate_disk_errors
from ..core.randomness import make_generator
from ..core.samples import ClientData, Samples, Scale
from ..core.tensors import tensor_to_bytes
from .partitions import Share
from .partitions.file import digest_examples, write_partition
from .skew import Skew, SkewedSamples, build_skew, describe_skew, make_skew_view
from .transforms import UNCHANGED, Transform, build_transform


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
    validation: Mapping[str, Tensor] = field(default_factory=dict)  # all clients, or none

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Those who are there from the start: all who train, and all that G and P speak of."""
        new = set(self.new)
        return tuple(c for c in self.train if c not in new)

    @cached_property
    def validates(self) -> bool:
        """Does anybody who is there from the start hold out examples, to choose by?"""
        return any(self.sizes("validation").values())

    @property
    def classes(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.x.shape[1:])

    def data(self, client: str) -> ClientData:
        """One client's own examples."""
        return ClientData(self.samples(client, "train"), self.samples(client, "test"), self.classes)

    def samples(self, client: str, part: str) -> Samples:
        """One client's examples of one part, as the client sees them."""
        whose = self.clients if client == POOLED_CLIENT else (client,)
        held = {c: getattr(self, part)[c] for c in whose}
        rows = torch.cat(list(held.values())) if client == POOLED_CLIENT else held[client]
        how = self.transform or Transform(UNCHANGED, self.scale, self.scale)
        scale, moves = (how.train, how.moves) if part == "train" else (how.test, None)
        if self.skew is None:
            return Samples(self.x, self.y, scale, rows, moves)
        view = make_skew_view(self.skew, held, self.scale.unit, part)
        return SkewedSamples(self.x, self.y, scale, rows, moves, view=view)

    def transformed(self, name: str, frozen: bool = False) -> Federation:
        """The same examples, become input as in the work of that name."""
        return replace(self, transform=build_transform(name, self.x, self.classes, frozen))

    def sizes(self, part: str = "train") -> dict[str, int]:
        """How many examples each client has."""
        return dict(self._sizes_by_part[part])

    @cached_property
    def _sizes_by_part(self) -> dict[str, dict[str, int]]:
        """By part; every round asks, and thousands of tensors are slow to ask."""
        parts = {"train": self.train, "test": self.test, "validation": self.validation}
        return {
            part: {c: len(rows[c]) if c in rows else 0 for c in self.clients}
            for part, rows in parts.items()
        }

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
        drawn = make_generator(seed, "new clients").choice(len(everybody), count, replace=False)
        return replace(self, new=tuple(everybody[i] for i in sorted(drawn)))

    @cached_property
    def sha256(self) -> str:
        """Of all examples and of who holds which: equal federations give equal digests."""
        about: list[object] = [asdict(self.scale), self.labels]
        if self.transform is not None:
            about.append(asdict(self.transform))
        h = hashlib.sha256(json.dumps(about).encode())
        for tensor in (self.x, self.y):
            h.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + tensor_to_bytes(tensor))
        for client in self.train:
            h.update(json.dumps(client).encode() + tensor_to_bytes(self.train[client]) + b"|")
            h.update(tensor_to_bytes(self.test[client]))
        if self.skew is not None:
            h.update(json.dumps(describe_skew(self.skew)).encode())
        if self.new:
            h.update(json.dumps(["new", *self.new]).encode())
        for client, rows in self.validation.items():
            h.update(json.dumps(["validation", client]).encode() + tensor_to_bytes(rows))
        return h.hexdigest()

    def save_partition(self, path: Path) -> None:
        """Who holds which rows, as a ``.json`` or ``.npz`` that a partition can be read from."""
        held = {
            c: Share(self.train[c].numpy(), self.test[c].numpy(), self.names.get(c, ""))
            for c in self.train
        }
        for c, rows in self.validation.items():
            held[c] = replace(held[c], validation=rows.numpy())
        write_partition(path, held, digest_examples(self.x.numpy(), self.y.numpy()))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All examples, and everybody's rows one after the other."""
        rows = [*self.train.values(), *self.test.values(), *self.validation.values()]
        return {"x": self.x.numpy(), "y": self.y.numpy(), "rows": torch.cat(rows).numpy()}

    def about(self) -> str:
        """All that the arrays do not say, as JSON."""
        content = {
            "name": self.name,
            "labels": self.labels,
            "scale": asdict(self.scale),
            "transform": self.transform and asdict(self.transform),
            "train": self.whole().sizes(),
            "test": self.whole().sizes("test"),
            "validation": {c: len(rows) for c, rows in self.validation.items()},
            "names": dict(self.names),
            "skew": None if self.skew is None else describe_skew(self.skew),
            "new": self.new,
        }
        return json.dumps(content)

    def save(self, folder: Path) -> None:
        """As plain ``.npy`` files, to be opened by any number of processes."""
        write_federation(folder, self.about(), self.arrays())

    @classmethod
    def open(cls, folder: Path) -> Federation:
        """The saved federation, memory-mapped: all processes share one copy of the examples."""
        about = json.loads((folder / "about.json").read_text())
        # mode "c" (copy on write): torch may have it, and no process can change the file
        x, y, rows = (
            torch.from_numpy(np.load(folder / f"{k}.npy", mmap_mode="c", allow_pickle=False))
            for k in ("x", "y", "rows")
        )
        sizes = [n for part in ("train", "test", "validation") for n in about[part].values()]
        parts, n = list(rows.split(sizes)), len(about["train"])
        return cls(
            about["name"],
            x,
            y,
            Scale.from_dict(about["scale"]),
            tuple(about["labels"]),
            dict(zip(about["train"], parts[:n], strict=True)),
            dict(zip(about["test"], parts[n : 2 * n], strict=True)),
            transform=about["transform"] and Transform.from_dict(about["transform"]),
            names=about["names"],
            skew=None if about["skew"] is None else build_skew(about["skew"]),
            new=tuple(about["new"]),
            validation=dict(zip(about["validation"], parts[2 * n :], strict=True)),
        )


def write_federation(folder: Path, about: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """A federation's parts as files that ``Federation.open`` opens."""
    with translate_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
        (folder / "about.json").write_text(about)
