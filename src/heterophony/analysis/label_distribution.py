"""Who holds what, in numbers: examples per client and class, and how FedReG would balance them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..algorithms.fedreg import FedReG
from ..core.algorithm import Algorithm, Server
from ..core.tensors import Tensors
from ..data.federation import Federation


@dataclass(frozen=True)
class Balanced:
    """Every client's training examples after FedReG's rebalancing."""

    rule: str  # what a class is balanced to
    kept: NDArray[np.int64]  # of the client's own
    added: NDArray[np.int64]  # augmented copies

    @property
    def train(self) -> NDArray[np.int64]:
        return self.kept + self.added


@dataclass(frozen=True)
class Holdings:
    """What the pictures of a federation show."""

    name: str
    clients: tuple[str, ...]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]  # training examples, clients × classes
    test: NDArray[np.int64]  # test examples per client
    balanced: Balanced | None = None
    validation: NDArray[np.int64] | None = None  # examples held out per client, if any

    @property
    def train(self) -> NDArray[np.int64]:
        """Training examples per client."""
        sums: NDArray[np.int64] = self.counts.sum(axis=1)
        return sums

    @property
    def title(self) -> str:
        return f"{self.name}, {len(self.clients)} client{'s' * (len(self.clients) != 1)}"


def holdings(federation: Federation, algorithm: Algorithm) -> Holdings:
    """The federation's, with the sizes after rebalancing where the algorithm does that."""
    return Holdings(
        federation.name,
        federation.clients,
        federation.labels,
        federation.counts(),
        np.array(list(federation.sizes("test").values())),
        rebalanced(federation, algorithm),
        np.array(list(federation.sizes("validation").values())) if federation.validates else None,
    )


def rebalanced(federation: Federation, algorithm: Algorithm) -> Balanced | None:
    """How large every client's balanced set is."""
    if not isinstance(algorithm, FedReG) or algorithm.variant == "c":
        return None
    kept, added = [], []
    for target, counts in zip(targets(federation, algorithm), federation.counts(), strict=True):
        held = counts[counts > 0]
        kept.append(held.clip(max=target).sum())
        added.append((target - held).clip(min=0).sum())
    return Balanced(rule(algorithm), np.array(kept), np.array(added))


def targets(federation: Federation, algorithm: FedReG) -> list[int]:
    """How many examples every client's classes are balanced to, by the algorithm's own rule.

    The rule needs only counts, so no example is read and no image made.
    """
    server, found = Server(0, federation.sizes(), Tensors()), []
    for name, counts in zip(federation.clients, federation.counts(), strict=True):
        data = SimpleNamespace(counts=torch.from_numpy(counts))
        client: Any = SimpleNamespace(data=data, received=algorithm.send(server, name))
        found.append(algorithm.target(client))
    return found


def rule(algorithm: FedReG) -> str:
    """What a class is balanced to, in words."""
    which = algorithm.threshold.replace("_", " ")
    if algorithm.threshold_scope == "class_nonzero":
        return f"the {which} of the client's class counts"
    return f"the {which} of the clients' sizes, by class"
