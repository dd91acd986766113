"""Rebalance a client's training data: FedReG cuts large classes and augments small ones."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...core.client import Client
from ...core.samples import ClientData, Samples

Augmentation = Literal["simple", "auto", "auto_imagenet", "auto_svhn", "copy"]
# What a head counts by in the mean. The text says the examples that are kept (D^e), the algorithm
# boxes the balanced ones (D^r); "origin" counts all that the client has (D^o).
HeadWeights = Literal["split", "origin", "rebalanced"]


def get_balanced_data(
    client: Client, target: int, augment: Augmentation, magnitude: float
) -> Samples:
    """Return the client's balanced set, which is made once and kept."""

    def rebalanced(data: ClientData) -> Samples:  # its name is part of its seed
        return rebalance(data.train, target, augment, magnitude)

    return client.once(rebalanced)


def rebalance(
    samples: Samples, target: int, augment: Augmentation, magnitude: float = 1.0
) -> Samples:
    """Return ``target`` examples of every class that the client holds: originals, then copies."""
    originals, sources = choose_examples(samples, target)
    x = samples.get_stored(originals)
    if len(sources):
        from .augmentation import augment_images  # kornia takes seconds to import: only where used

        stored = samples.get_stored(sources)
        x = torch.cat([x, augment_images(stored, augment, samples.scale.unit, magnitude)])
    return Samples(x, samples.labels[torch.cat([originals, sources])], samples.scale)


def choose_examples(samples: Samples, target: int) -> tuple[Tensor, Tensor]:
    """Return the positions of the examples to keep, and of those to copy, both by class.

    A large class is cut at random. A small class is kept whole and filled up with augmented
    copies, whose originals are drawn with replacement.
    """
    kept, copied = [], []
    for c in samples.labels.unique():
        mine = (samples.labels == c).nonzero().flatten()
        kept.append(mine[torch.randperm(len(mine))[:target]] if len(mine) >= target else mine)
        missing = max(0, target - len(mine))
        copied.append(mine[torch.randint(len(mine), (missing,))])
    return torch.cat(kept), torch.cat(copied)


def count_kept_and_copied(counts: Tensor, target: int) -> tuple[int, int]:
    """Count what ``rebalance`` would keep and copy, from a client's examples by class."""
    held = counts[counts > 0]
    return int(held.clamp(max=target).sum()), int((target - held).clamp(min=0).sum())


def count_for_head(counts: Tensor, target: int, weights: HeadWeights) -> Tensor:
    """Count by class what the client's head counts by: balanced examples, or its own among them."""
    if weights == "rebalanced":
        return (counts > 0) * target
    return counts.clamp(max=target)


def build_seed_key(seed: int, client: str) -> tuple[object, ...]:
    """Return the seed of a client's balanced set in a run: ``Client.once(rebalanced)`` draws by it."""
    return seed, "once", client, "rebalanced"
