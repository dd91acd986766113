"""From a data set to clients: dealt by a partition, or brought by the clients themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from ..core.errors import ConfigError, DataError
from ..core.randomness import make_generator
from .federation import Federation
from .partitions import Partition, Terms, compute_shares, split_train_test
from .partitions.base import SplitMode
from .skew import Skew
from .source import Source
from .validation import hold_out_validation


def partition_source(
    source: Source,
    clients: int,
    partition: Partition,
    train_fraction: float,
    seed: int,
    split: SplitMode = "merged",
    feature_skew: Skew | None = None,
    validation_fraction: float = 0.0,
) -> Federation:
    """The data set dealt to clients 0, 1, …; each has a part to train and a part to test.

    So much of the former is held out for validation.
    """
    if clients < 1:
        raise ConfigError(f"data.clients: must be at least 1, not {clients}")
    if clients > len(source.y):
        raise DataError(
            f"{clients} clients cannot share {len(source.y)} examples of {source.name};"
            " lower data.clients"
        )
    own = getattr(partition, "seed", None)
    terms = Terms(clients, train_fraction, split, seed if own is None else own)
    dealt = {str(i): share for i, share in enumerate(compute_shares(partition, source, terms))}
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
        feature_skew.check_examples(x)
        if feature_skew.seed is None:
            feature_skew = replace(feature_skew, seed=seed)
    train, test, validation = (
        {i: torch.from_numpy(np.asarray(getattr(s, part), np.int64)) for i, s in dealt.items()}
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
        names={i: share.name for i, share in dealt.items() if share.name},
        skew=feature_skew,
        validation=validation if any(map(len, validation.values())) else {},
    )
    return hold_out_validation(federation, validation_fraction, terms.seed)


def split_into_clients(
    source: Source,
    sizes: Sequence[int],
    trains: Sequence[int | None],
    fraction: float,
    seed: int,
    validation_fraction: float = 0.0,
    names: Sequence[str] = (),
) -> Federation:
    """Clients who bring their own data, one after the other in the source.

    Client i has ``sizes[i]`` examples; the first ``trains[i]`` are for training, or, where that
    is None, a random ``fraction`` of them. Without names, clients are numbered.
    """
    train, test = {}, {}
    ends = np.cumsum(sizes)
    for i, (rows, known) in enumerate(
        zip(np.split(np.arange(ends[-1]), ends[:-1]), trains, strict=True)
    ):
        who = names[i] if names else i
        if len(rows) < 2 or known == 0 or known == len(rows):
            raise DataError(
                f"client {who} has {len(rows)} examples;"
                " it needs at least one to train and one to test"
            )
        if known is None:
            first, second = split_train_test(rows, fraction, make_generator(seed, "split", who))
        else:
            first, second = rows[:known], rows[known:]
        train[str(who)], test[str(who)] = torch.from_numpy(first), torch.from_numpy(second)
    x, y = torch.from_numpy(source.x), torch.from_numpy(source.y)
    brought = Federation(source.name, x, y, source.scale, source.labels, train, test)
    return hold_out_validation(brought, validation_fraction, seed)
