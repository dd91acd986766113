"""``federate``: build clients with data from a name, a path, arrays, or each client's own arrays."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from ..config.sections import DataSection
from ..core.errors import ConfigError, DataError, choose
from ..core.fields import construct
from ..core.scores import TaskName
from ..core.status_line import name_slow_work
from ..data.federation import Federation
from ..data.partitioning import partition_source, split_into_clients
from ..data.partitions import PARTITIONS, Dirichlet, Natural, Partition
from ..data.partitions.base import SplitMode
from ..data.skew import Skew
from ..data.source import Source, decide_classes
from ..data.sources import count_named_clients, read_source, wrap_arrays
from ..data.sources.arrays import unpack_datasets
from ..data.sources.huggingface import is_datasets_object, read_datasets_object


def federate(
    data: str | Path | Sequence[Any] | Mapping[str, Any] | Dataset[Any],
    *,
    clients: int | None = None,
    partition: Partition | str | None = None,
    seed: int = 0,
    train_fraction: float = 0.75,
    path: str | None = None,
    transform: str = "half",
    frozen_augment: bool = False,
    split: SplitMode = "merged",
    feature_skew: Skew | None = None,
    new_clients: float = 0.0,
    validation_fraction: float = 0.0,
    classes: int | Sequence[str] | None = None,
    task: TaskName = "classification",
) -> Federation:
    """Build a federation: clients, and the data that each one holds.

    ``data`` is a name (``"fmnist"``), a path to an ``.npz``, a ``.csv`` or a folder, arrays ``(x, y)`` to be
    partitioned (default: 20 clients, Dirichlet 0.1), or a list with every client's own ``(x, y)`` or
    ``(x_train, y_train, x_test, y_test)``. A torch ``Dataset`` can replace ``(x, y)``, and a pair of
    them the four arrays; so can a ``Dataset`` or ``DatasetDict`` of Hugging Face with images and
    labels. ``transform`` is how stored images become input: ``"half"`` (scaled to [-1, 1]), or as in ``"fedavg2rep"`` or ``"feddecomp"``, which also transform training images at
    random; with ``frozen_augment``, each one in the same way for the whole run. ``new_clients`` is
    the share of clients, drawn by the seed, that join only after training. ``validation_fraction`` is
    the share of every client's training examples that is held out, to choose a round by.
    ``classes`` is their number, or their names: needed if labels of arrays are not 0, 1, … without
    gaps. ``task`` says what is learned from arrays: ``"classification"`` (one label per example),
    ``"regression"`` (numbers), ``"multilabel"`` (rows of 0 and 1) or ``"sequence"`` (a token for
    each token of x). Partitions by label then use groups of examples: see docs/how-to/tasks.md.
    """
    shares = {"new_clients": new_clients, "validation_fraction": validation_fraction, "task": task}
    construct(DataSection, shares, "data")
    named = count_named_clients(str(data)) if isinstance(data, str | Path) else 0
    if named and partition is None:
        partition, clients = Natural(), named if clients is None else clients
    clients = 20 if clients is None else clients
    if isinstance(data, list) and not is_datasets_object(data):
        own = [unpack_datasets(d, task) for d in data]
        federation = federate_own_data(
            own, train_fraction, seed, validation_fraction, classes, task
        )
    else:
        rule = resolve_partition(partition)
        how = (rule, train_fraction, seed, split, feature_skew, validation_fraction)
        with name_slow_work(f"reading {data}" if isinstance(data, str | Path) else "partitioning"):
            federation = partition_source(resolve_source(data, path, classes, task), clients, *how)
    if federation.remark:
        warnings.warn(federation.remark, stacklevel=2)
    return federation.transformed(transform, frozen_augment).keeping_out(new_clients, seed)


def resolve_partition(partition: Any) -> Partition:
    """Return the partition that an object or a name (``"iid"``) means; default: Dirichlet 0.1."""
    if partition is None:
        return Dirichlet()
    if isinstance(partition, str):
        cls = choose(PARTITIONS, partition.lower(), "partition")
        by_name: Partition = construct(cls, {}, "partition")
        return by_name
    if isinstance(partition, type) or not (
        hasattr(partition, "deal") or hasattr(partition, "allot")
    ):
        what = partition.__name__ if isinstance(partition, type) else repr(partition)
        raise ConfigError(
            f"partition: must be an object such as hp.IID() or hp.Dirichlet(0.1), or a name such as"
            f" 'iid', not {what}"
        )
    rule: Partition = partition
    return rule


def resolve_source(
    data: Any, path: str | None, classes: int | Sequence[str] | None, task: TaskName
) -> Source:
    """Return the data set behind a name, a path, arrays or torch Datasets."""
    if isinstance(data, str | Path):
        return read_source(str(data), path, classes, task)
    if is_datasets_object(data):
        return read_datasets_object(data)
    given = unpack_datasets(data, task)
    if len(given) not in (2, 4):
        raise DataError("give (x, y) or (x_train, y_train, x_test, y_test)")
    official = len(given[1]) if len(given) == 4 else None
    source = wrap_arrays(*concatenate_train_and_test(given), official=official, task=task)
    return decide_classes(source, classes)


def federate_own_data(
    parts: Sequence[Sequence[Any]],
    train_fraction: float,
    seed: int,
    validation_fraction: float,
    classes: int | Sequence[str] | None,
    task: TaskName,
) -> Federation:
    """Build a federation of clients that have their own arrays."""
    if not parts or any(isinstance(p, Mapping) or len(p) not in (2, 4) for p in parts):
        raise DataError("every client needs (x, y) or (x_train, y_train, x_test, y_test)")
    both = [concatenate_train_and_test(p) for p in parts]
    shapes = [(x.shape[1:], x.dtype) for x, _ in both]
    for i, (shape, dtype) in enumerate(shapes):
        if (shape, dtype) != shapes[0]:
            raise DataError(
                f"client {i} has examples of shape {shape} and type {dtype},"
                f" client 0 of {shapes[0][0]} and {shapes[0][1]}"
            )
    x, y = (np.concatenate([b[i] for b in both]) for i in (0, 1))
    whole = decide_classes(wrap_arrays(x, y, task=task), classes)
    trains = [len(p[1]) if len(p) == 4 else None for p in parts]
    sizes = [len(y) for _, y in both]
    return split_into_clients(whole, sizes, trains, train_fraction, seed, validation_fraction)


def concatenate_train_and_test(data: Sequence[Any]) -> tuple[Any, Any]:
    """Return examples and labels, training before test."""
    plain = [np.asarray(a) for a in data]
    for x, y in zip(plain[::2], plain[1::2], strict=True):
        if x.shape[:1] != y.shape[:1]:
            raise DataError(f"examples {x.shape} and labels {y.shape} differ in number")
    try:
        return np.concatenate(plain[::2]), np.concatenate(plain[1::2])
    except ValueError:
        raise DataError(
            f"training examples {plain[0].shape} and test examples {plain[2].shape} must have the same shape"
        ) from None
