"""Turn a data set into a federation: partition it, and hold out test and validation examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ConfigError, DataError
from ..core.randomness import make_generator
from .federation import Federation
from .partitions import Partition, Terms, compute_shares, split_train_test
from .partitions.by_client import FromFile
from .source import Source, group_examples, make_number_names, name_own_clients
from .transforms import Skew


def hold_out_validation(federation: Federation, fraction: float, seed: int) -> Federation:
    """Hold out a fraction of each client's training examples.

    New clients hold out examples too, so that a client trains on the same examples whenever it joins.
    """
    if not fraction:
        return federation
    if federation.validation:
        raise ConfigError(
            "data.validation_fraction: the partition itself lists validation examples; remove it"
        )
    train, validation = {}, {}
    for client, rows in federation.train.items():
        draw = make_generator(seed, "validation", client)
        held_out = torch.isin(rows, draw_held_out(rows, fraction, draw))
        train[client], validation[client] = rows[~held_out], rows[held_out]
    if not any(map(len, validation.values())):
        raise DataError(
            "data.validation_fraction: every client has at most one training example, so none"
            " can be held out; lower data.clients, or remove data.validation_fraction"
        )
    return replace(federation, train=train, validation=validation)


def draw_held_out(rows: Tensor, fraction: float, draw: np.random.Generator) -> Tensor:
    """Draw a client's rows to hold out for validation, never all of its rows.

    A repeated row counts once: it must not be both trained on and held out.
    """
    distinct = np.unique(rows.numpy())
    count = min(max(1, int(fraction * len(distinct) + 1e-9)), len(distinct) - 1)
    return torch.from_numpy(draw.choice(distinct, count, replace=False))


def partition_source(
    source: Source,
    partition: Partition,
    terms: Terms,
    feature_skew: Skew | None = None,
    validation_fraction: float = 0.0,
) -> Federation:
    """Partition a data set among clients, each with training and test examples.

    Clients are named by the partition or numbered, and are in natural order.
    ``validation_fraction`` of each client's training examples is held out for validation.
    """
    clients, seed = terms.clients, terms.seed
    if clients < 1:
        raise ConfigError(f"data.clients: must be at least 1, not {clients}")
    if clients > len(source.y):
        raise DataError(
            f"{clients} clients cannot share {len(source.y)} examples of {source.name};"
            " lower data.clients"
        )
    own_seed = getattr(partition, "seed", None)
    if own_seed is not None:
        terms = replace(terms, seed=own_seed)
    by_file = isinstance(partition, FromFile)  # its digest is of the original targets
    grouped = source if by_file else replace_targets_by_groups(source)
    found = compute_shares(partition, grouped, terms)
    if len(found) != clients:
        raise DataError(f"the partition made {len(found)} clients, but data.clients is {clients}")
    shares = name_own_clients([(s.name or str(i), s) for i, s in enumerate(found)])
    for i, share in shares.items():
        if not len(share.train) or not len(share.test):
            raise DataError(
                f"client {i} got {len(share.train)} examples to train and {len(share.test)} to"
                " test; it needs at least one of each: lower data.clients"
            )
    x, y = torch.from_numpy(source.x), torch.from_numpy(source.y)
    train, test, validation = (
        {i: torch.from_numpy(np.asarray(getattr(s, part), np.int64)) for i, s in shares.items()}
        for part in ("train", "test", "validation")
    )
    federation = Federation(
        source.name,
        x,
        y,
        source.scale,
        source.labels,
        train,
        test,
        skew=resolve_skew(feature_skew, x, seed),
        validation=validation if any(map(len, validation.values())) else {},
        task=source.task,
        remark=source.remark,
        columns=source.columns,
        record=source.record,
    )
    return hold_out_validation(federation, validation_fraction, terms.seed)


def resolve_skew(skew: Skew | None, x: Tensor, seed: int) -> Skew | None:
    """Return the feature skew with a seed; raise DataError if it cannot be applied to the examples."""
    if skew is None:
        return None
    skew.check_examples(x)
    return replace(skew, seed=seed) if skew.seed is None else skew


def replace_targets_by_groups(source: Source) -> Source:
    """Return a source whose targets are replaced by groups, so that partitions by label can use any task."""
    if source.task == "classification":
        return source
    groups, count = group_examples(source.y, source.task)
    return replace(source, y=groups, labels=make_number_names(count), task="classification")


def split_into_clients(
    source: Source,
    sizes: Sequence[int],
    train_sizes: Sequence[int | None],
    train_fraction: float,
    seed: int,
    validation_fraction: float = 0.0,
    names: Sequence[str] = (),
) -> Federation:
    """Make a federation from a source that holds the clients' data one after another.

    Client i has the next ``sizes[i]`` examples. The first ``train_sizes[i]`` of them are for
    training or, if that is None, a random ``train_fraction``. Without names, clients are numbered.
    """
    train, test = {}, {}
    ends = np.cumsum(sizes)
    for i, (rows, train_size) in enumerate(
        zip(np.split(np.arange(ends[-1]), ends[:-1]), train_sizes, strict=True)
    ):
        client = names[i] if names else i
        if len(rows) < 2 or train_size == 0 or train_size == len(rows):
            raise DataError(
                f"client {client} has {len(rows)} examples;"
                " it needs at least one to train and one to test"
            )
        if train_size is None:
            draw = make_generator(seed, "split", client)
            first, second = split_train_test(rows, train_fraction, draw)
        else:
            first, second = rows[:train_size], rows[train_size:]
        train[str(client)], test[str(client)] = torch.from_numpy(first), torch.from_numpy(second)
    x, y = torch.from_numpy(source.x), torch.from_numpy(source.y)
    federation = Federation(
        *(source.name, x, y, source.scale, source.labels, train, test),
        task=source.task,
        record=source.record,
    )
    return hold_out_validation(federation, validation_fraction, seed)
