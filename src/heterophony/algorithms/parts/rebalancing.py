"""Rebalance a client's training data: FedReG cuts large classes and augments small ones."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.samples import Samples


def rebalance(samples: Samples, target: int, augment: str) -> Samples:
    """Return ``target`` examples of every class that the client holds: originals, then copies."""
    originals, sources = choose_examples(samples, target)
    x = samples.get_stored(originals)
    if len(sources):
        from .augmentation import augment_images  # kornia takes seconds to import: only where used

        copies = augment_images(samples.get_stored(sources), augment, samples.scale.unit)
        x = torch.cat([x, copies])
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


def build_seed_key(seed: int, client: str) -> tuple[object, ...]:
    """Return the seed of a client's balanced set in a run: ``Client.once(rebalanced)`` draws by it."""
    return seed, "once", client, "rebalanced"
