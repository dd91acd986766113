"""The clients of a run and their data: one pool of examples, and each client's rows of that pool."""

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
from ..core.errors import ConfigError, DataError
from ..core.files import translate_disk_errors
from ..core.randomness import make_generator
from ..core.records import Record
from ..core.samples import ClientData, Samples, Scale
from ..core.scores import TaskName
from ..core.tasks import compute_target_variance
from ..core.tensors import tensor_to_bytes
from . import transforms
from .columns import Column, Columns, encode_columns, fit_columns
from .partitions import Share
from .partitions.by_client import digest_examples, write_partition
from .source import count_targets

TARGET_WORDS = {
    "classification": "classes",
    "regression": "targets",
    "multilabel": "labels",
    "sequence": "tokens",
}


@dataclass(frozen=True, eq=False)
class Federation:
    """The clients and their data.

    All clients share one pool of examples, so memory does not grow with their number.
    """

    name: str  # name of the data set
    x: Tensor  # the pool of examples, as stored
    y: Tensor
    scale: Scale  # how examples become network input, if there is no ``transform``
    labels: tuple[str, ...]  # the names of the classes, labels, tokens or targets
    train: Mapping[str, Tensor]  # client -> rows of the pool
    test: Mapping[str, Tensor]
    transform: transforms.Transform | None = None
    skew: transforms.Skew | None = None  # alters each client's examples
    new: tuple[str, ...] = ()  # clients that join after training; they are unused until then
    # client -> rows of the pool; empty if no examples are held out
    validation: Mapping[str, Tensor] = field(default_factory=dict)
    task: TaskName = "classification"
    remark: str = ""  # differences from the published data set of the same name
    columns: Columns = Columns()  # columns of a table: as read, then as fitted by ``encode_table``
    stored_sha256: str = ""  # for a table: digest of the rows before encoding
    record: Record | None = None  # layout of a row of the pool, for packed examples
    # the section [data] that builds the same federation; None for arrays and for changed copies
    recipe: Mapping[str, Any] | None = field(default=None, init=False)

    def __repr__(self) -> str:
        new = f" and {len(self.new)} new" if self.new else ""
        examples, shape = sum(self.sizes().values()), "×".join(map(str, self.shape))
        shape = shape if self.record is None else f"({self.record.describe()})"
        return (
            f"<Federation {self.name}: {len(self.clients)}{new} clients, {examples} training"
            f" examples of {shape}, {self.classes} {TARGET_WORDS[self.task]}>"
        )

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """The clients that train, without new clients: G and P are measured on them."""
        new = set(self.new)
        return tuple(c for c in self.train if c not in new)

    @cached_property
    def validates(self) -> bool:
        """Whether any client that trains holds out validation examples."""
        return any(self.sizes("validation").values())

    @property
    def classes(self) -> int:
        """The number of classes, labels, tokens or targets, depending on the task."""
        return len(self.labels)

    @cached_property
    def value_range(self) -> tuple[float, float]:
        """The smallest and the largest value of all examples, as stored; 0 and 0 if there are none."""
        if not self.x.numel():
            return (0, 0)
        low, high = torch.aminmax(self.x)
        return (low.item(), high.item())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.x.shape[1:])

    def take_examples(self, count: int) -> Tensor:
        """Return up to ``count`` training examples of the first client as network input."""
        samples = self.samples(self.clients[0], "train")
        return samples.batch(torch.arange(min(count, len(samples))))[0]

    def data(self, client: str) -> ClientData:
        """Return a client's training and test examples."""
        return ClientData(self.samples(client, "train"), self.samples(client, "test"), self.classes)

    def samples(self, client: str, part: str) -> Samples:
        """Return a client's examples of one part: ``train``, ``test`` or ``validation``."""
        owners = self.clients if client == POOLED_CLIENT else (client,)
        held = {c: getattr(self, part)[c] for c in owners}
        rows = torch.cat(list(held.values())) if client == POOLED_CLIENT else held[client]
        how = self._chosen_transform
        scale, image_transform = (how.train, how.moves) if part == "train" else (how.test, None)
        if self.skew is None:
            return Samples(self.x, self.y, scale, rows, image_transform)
        view = transforms.make_skew_view(self.skew, held, self.scale.unit, part)
        return transforms.SkewedSamples(self.x, self.y, scale, rows, image_transform, view=view)

    @cached_property
    def _chosen_transform(self) -> transforms.Transform:
        unchanged = transforms.Transform(transforms.UNCHANGED, self.scale, self.scale)
        return self.transform or unchanged

    def with_recipe(self, recipe: Mapping[str, Any] | None) -> Federation:
        """Return a copy of the federation that records the section [data] from which it is built."""
        copy = replace(self)
        object.__setattr__(copy, "recipe", recipe)
        return copy

    def with_transform(self, name: str, frozen: bool = False) -> Federation:
        """Return a copy of the federation with the named transform (``data.transform``)."""
        if self.record is not None and (name != transforms.UNCHANGED or frozen):
            raise DataError(
                f"data.transform = '{name}' needs examples that are one image, not"
                f" {self.record.describe()}; use data.transform = '{transforms.UNCHANGED}'"
            )
        return replace(
            self, transform=transforms.build_transform(name, self.x, self.classes, frozen)
        )

    def sizes(self, part: str = "train") -> dict[str, int]:
        """Return each client's number of examples in one part."""
        return dict(self._sizes_by_part[part])

    @cached_property
    def _sizes_by_part(self) -> dict[str, dict[str, int]]:
        """The client sizes by part, computed once: every round needs them, and there may be many clients."""
        parts = {"train": self.train, "test": self.test, "validation": self.validation}
        return {
            part: {c: len(rows[c]) if c in rows else 0 for c in self.clients}
            for part, rows in parts.items()
        }

    def count_labels(self, part: str = "train") -> NDArray[np.int64]:
        """Count the examples per client and class (clients × classes); see ``count_targets``."""
        rows: Mapping[str, Tensor] = getattr(self, part)
        held = [self.y[rows[c]].numpy() for c in self.clients]
        return np.stack([count_targets(y, self.task, self.classes) for y in held])

    @cached_property
    def target_variance(self) -> Tensor:
        """The variance of each regression target over all clients' test examples."""
        return compute_target_variance(self.y[torch.cat([self.test[c] for c in self.clients])])

    def include_new_clients(self) -> Federation:
        """Return a copy of the federation in which new clients train from the start."""
        return replace(self, new=())

    def set_aside_new_clients(self, share: float, seed: int) -> Federation:
        """Return a copy of the federation in which a random share of the clients become new clients.

        The number of new clients is rounded down, but at least one is new, and at least one trains.
        """
        clients = tuple(self.train)
        if not share:
            return self
        if len(clients) < 2:
            raise ConfigError(
                "data.new_clients: the only client would be a new one, so none would train;"
                " raise data.clients, or remove data.new_clients"
            )
        count = min(max(1, int(share * len(clients) + 1e-9)), len(clients) - 1)
        drawn = make_generator(seed, "new clients").choice(len(clients), count, replace=False)
        return replace(self, new=tuple(clients[i] for i in sorted(drawn)))

    def encode_table(self) -> Federation:
        """Return a copy of the federation with its table encoded as network input.

        The replacements of missing numbers, and the categories that become inputs, are fitted on the
        training rows of the clients that train.
        """
        if not self.columns:
            return self
        x = self.x.numpy()
        rows = torch.cat([self.train[c] for c in self.clients]).numpy()
        fitted = fit_columns(self.columns, x[rows])
        return replace(
            self,
            x=torch.from_numpy(encode_columns(self.columns, fitted, x)),
            columns=fitted,
            stored_sha256=digest_examples(x, self.y.numpy()),
        )

    @cached_property
    def sha256(self) -> str:
        """The digest of all examples and of each client's rows; equal federations have equal digests."""
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
            h.update(json.dumps(transforms.describe_skew(self.skew)).encode())
        if self.record is not None:
            h.update(json.dumps(["record", self.record.to_dict()]).encode())
        if self.task != "classification":
            h.update(json.dumps(["task", self.task]).encode())
        if self.new:
            h.update(json.dumps(["new", *self.new]).encode())
        for client, rows in self.validation.items():
            h.update(json.dumps(["validation", client]).encode() + tensor_to_bytes(rows))
        return h.hexdigest()

    def save_partition(self, path: Path, nets: Mapping[str, str] | None = None) -> None:
        """Write each client's rows to a ``.json`` or ``.npz`` for ``data.partition.kind = "file"``.

        ``nets`` has the name of each client's net, if nets differ; only JSON stores these names.
        """
        shares = {c: Share(self.train[c].numpy(), self.test[c].numpy(), c) for c in self.train}
        for c, rows in self.validation.items():
            shares[c] = replace(shares[c], validation=rows.numpy())
        digest = self.stored_sha256 or digest_examples(self.x.numpy(), self.y.numpy())
        write_partition(path, shares, digest, nets or {})

    def collect_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a stored federation: examples, labels, and the joined rows of all clients."""
        rows = [*self.train.values(), *self.test.values(), *self.validation.values()]
        return {"x": self.x.numpy(), "y": self.y.numpy(), "rows": torch.cat(rows).numpy()}

    def format_header(self) -> str:
        """Return, as JSON, the names, sizes and settings of a stored federation, without its arrays."""
        content = {
            "name": self.name,
            "labels": self.labels,
            "scale": asdict(self.scale),
            "transform": self.transform and asdict(self.transform),
            "train": self.include_new_clients().sizes(),
            "test": self.include_new_clients().sizes("test"),
            "validation": {c: len(rows) for c, rows in self.validation.items()},
            "skew": None if self.skew is None else transforms.describe_skew(self.skew),
            "new": self.new,
            "task": self.task,
            "columns": [asdict(c) for c in self.columns],
            "stored_sha256": self.stored_sha256,
            "record": self.record and self.record.to_dict(),
        }
        return json.dumps(content)

    def save(self, folder: Path) -> None:
        """Store the federation as ``.npy`` files that many processes can open."""
        write_federation(folder, self.format_header(), self.collect_arrays())

    @classmethod
    def open(cls, folder: Path) -> Federation:
        """Open a stored federation, memory-mapped: all processes share one copy of the examples."""
        about = json.loads((folder / "about.json").read_text())
        # mode "c" (copy on write): torch needs writable memory, and the file must not change
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
            transform=about["transform"] and transforms.Transform.from_dict(about["transform"]),
            skew=None if about["skew"] is None else transforms.build_skew(about["skew"]),
            new=tuple(about["new"]),
            validation=dict(zip(about["validation"], parts[2 * n :], strict=True)),
            task=about["task"],
            columns=Columns(
                Column(c["name"], tuple(c["categories"]), c["fill"]) for c in about["columns"]
            ),
            stored_sha256=about["stored_sha256"],
            record=about["record"] and Record.from_dict(about["record"]),
        )


def write_federation(folder: Path, about: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the files of a federation, which ``Federation.open`` reads."""
    with translate_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
        (folder / "about.json").write_text(about)


LabelCounts = NDArray[np.int64]  # clients × classes
FloatArray = NDArray[np.float64]


def entropy(counts: LabelCounts) -> FloatArray:
    """Compute the entropy of each client's labels in bits: 0 for one class, at most log2(classes)."""
    return compute_entropy_bits(normalise_counts(counts))


def total_variation(counts: LabelCounts) -> FloatArray:
    """Compute the total variation distance of each client's labels from the overall ones: 0 … 1."""
    overall = normalise_counts(counts.sum(axis=0))
    return np.asarray(np.abs(normalise_counts(counts) - overall).sum(axis=1) / 2)


def jensen_shannon(counts: LabelCounts) -> FloatArray:
    """Compute the Jensen-Shannon divergence (bits) of each client's labels from the overall ones."""
    own, overall = normalise_counts(counts), normalise_counts(counts.sum(axis=0))
    divergence = (
        compute_entropy_bits((own + overall) / 2)
        - (compute_entropy_bits(own) + compute_entropy_bits(overall)) / 2
    )
    return np.asarray(np.maximum(divergence, 0.0))  # rounding may make a divergence negative


def normalise_counts(counts: LabelCounts) -> FloatArray:
    """Convert label counts to proportions; counts that are all 0 stay 0."""
    totals = counts.sum(axis=-1, keepdims=True)
    return np.asarray(counts / np.maximum(totals, 1))


def compute_entropy_bits(p: FloatArray) -> FloatArray:
    """Compute the entropy of label distributions, in bits."""
    return np.asarray(-np.sum(p * np.log2(np.where(p > 0, p, 1.0)), axis=-1) + 0.0)
