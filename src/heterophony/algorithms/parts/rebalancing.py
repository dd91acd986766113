"""FedReG's balanced data: class targets, augmented copies, weights of the heads, ablations and phases."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn

from ...core.algorithm import Client, Server
from ...core.errors import ConfigError, DataError
from ...core.samples import ClientData, Samples
from ...core.tensors import Tensors
from ...core.training import Training

with warnings.catch_warnings():  # kornia warns of its own deprecations when it is imported
    warnings.simplefilter("ignore")
    from kornia import augmentation as kornia
    from kornia.augmentation.auto import AutoAugment


def augment_images(x: Tensor, kind: Augmentation, unit: float, magnitude: float = 1.0) -> Tensor:
    """Return one augmented copy of each image, in the format of the originals; ``copy`` changes nothing.

    ``magnitude`` scales how much ``simple`` moves, turns and recolours images.
    """
    if kind == "copy":
        return x.clone()
    if x.dim() != 4 or x.shape[1] not in (1, 3):
        raise DataError(
            f"augment = '{kind}' needs images of 1 or 3 channels, not examples of shape "
            f"{tuple(x.shape[1:])}; use augment = 'copy' to repeat examples unchanged"
        )
    if x.numel() and (x.min() < 0 or x.max() > unit):
        raise DataError(
            f"augment = '{kind}' needs images with values of 0 to {unit:g}, not "
            f"{x.min().item():g} to {x.max().item():g}; store bytes, or use augment = 'copy'"
        )
    augment = partial(augment_simple, magnitude=magnitude)
    with torch.no_grad():
        out = AUTO_AUGMENTATIONS.get(kind, augment)(x.float() / unit).clamp(0, 1) * unit
    return out.to(x.dtype) if x.is_floating_point() else out.round().to(x.dtype)


def augment_simple(x: Tensor, magnitude: float) -> Tensor:
    """Augment images: flip, crop with a shift, rotate, change colours (unless grey), translate.

    The papers list the steps but not their sizes: ``magnitude`` 1 is a guess, usual for CIFAR-10.
    """
    colour, hue, moved = 0.2 * magnitude, 0.05 * magnitude, 0.1 * magnitude
    steps: list[nn.Module] = [
        kornia.RandomHorizontalFlip(p=0.5),
        kornia.RandomCrop((x.shape[2], x.shape[3]), padding=round(4 * magnitude)),
        kornia.RandomRotation(degrees=10.0 * magnitude, p=1.0),
        kornia.ColorJitter(colour, colour, colour, hue, p=1.0),
        kornia.RandomAffine(0.0, translate=(moved, moved), scale=(1 - moved, 1 + moved), p=1.0),
    ]
    for step in steps:
        if not (isinstance(step, kornia.ColorJitter) and x.shape[1] == 1):
            x = step(x)
    return x


def augment_auto(x: Tensor, policy: str) -> Tensor:
    """Augment images by one of AutoAugment's policies.

    kornia draws one sub-policy per batch, so images are first grouped by their sub-policy. Grey
    images are passed as three equal channels.
    """
    colour = x.expand(-1, 3, -1, -1)
    policies = list(AutoAugment(policy).children())
    drawn = torch.randint(len(policies), (len(x),))
    out = colour.clone()
    for i, apply in enumerate(policies):
        mine = (drawn == i).nonzero().flatten()
        if len(mine):
            out[mine] = apply(colour[mine])
    return out[:, : x.shape[1]]


AUTO_AUGMENTATIONS: dict[Augmentation, Callable[[Tensor], Tensor]] = {
    "auto": partial(augment_auto, policy="cifar10"),
    "auto_imagenet": partial(augment_auto, policy="imagenet"),
    "auto_svhn": partial(augment_auto, policy="svhn"),
}
# augmentations that change images
AUGMENTATIONS: tuple[Augmentation, ...] = "simple", *AUTO_AUGMENTATIONS


SIZE = "fedreg/size"  # name of the tensor that sends clients the statistic of all sizes
Threshold = Literal["mean", "max", "median", "second_min", "min"]
ThresholdScope = Literal["class_nonzero", "client_size"]


def compute_statistic(counts: Tensor, threshold: Threshold) -> Tensor:
    """Compute FedReG's threshold, a statistic of counts such as their mean or the second smallest."""
    ordered = counts.sort().values.double()
    places = {"max": -1, "min": 0, "second_min": min(1, len(ordered) - 1)}
    if threshold in places:
        return ordered[places[threshold]]
    return ordered.mean() if threshold == "mean" else ordered.quantile(0.5)


def compute_class_target(counts: Tensor, threshold: Threshold, size: Tensor | None) -> int:
    """Compute the target size to which each class of a client is balanced.

    ``counts`` are the client's examples by class. ``size`` is the statistic of all clients' sizes,
    if that is the scope: it is divided evenly among the classes that the client holds.
    """
    held = counts[counts > 0]
    if size is None:
        return max(1, int(compute_statistic(held, threshold)))
    return max(1, int(size / len(held)))


def make_size_tensor(server: Server, threshold: Threshold, scope: ThresholdScope) -> Tensors:
    """Make the tensor that sends FedReG's clients the statistic of all their sizes; empty in class scope."""
    if scope == "class_nonzero":
        return Tensors()
    sizes = torch.tensor(list(server.samples.values()))
    return Tensors({SIZE: compute_statistic(sizes, threshold)})


def compute_own_target(client: Client, threshold: Threshold) -> int:
    """Compute a client's class target from its own counts and the statistic that the server sent."""
    return compute_class_target(client.data.counts, threshold, client.received.get(SIZE))


def compute_class_targets(counts: Tensor, threshold: Threshold, scope: ThresholdScope) -> list[int]:
    """Compute all clients' class targets from their example counts (clients × classes)."""
    sizes = counts.sum(1)
    size = compute_statistic(sizes, threshold) if scope == "client_size" else None
    return [compute_class_target(row, threshold, size) for row in counts]


def describe_class_target(threshold: Threshold, scope: ThresholdScope) -> str:
    """Describe in words the target size to which a class is balanced."""
    statistic = threshold.replace("_", " ")
    if scope == "class_nonzero":
        return f"the {statistic} of the client's class counts"
    return f"the {statistic} of the clients' sizes, by class"


Augmentation = Literal["simple", "auto", "auto_imagenet", "auto_svhn", "copy"]
# The examples by whose number a head is weighted: in the papers' text, the kept ones (D^e); in their
# algorithm boxes, the balanced ones (D^r); with "origin", all examples of the client (D^o).
HeadWeights = Literal["split", "origin", "rebalanced"]


def get_balanced_data(
    client: Client, target: int, augment: Augmentation, magnitude: float
) -> Samples:
    """Return a client's balanced training set, which is made once and stored."""

    def rebalanced(data: ClientData) -> Samples:  # the function's name is part of the seed
        return rebalance(data.train, target, augment, magnitude)

    return client.once(rebalanced)


def rebalance(
    samples: Samples, target: int, augment: Augmentation, magnitude: float = 1.0
) -> Samples:
    """Return ``target`` examples of each class that the client holds: originals, then augmented copies."""
    originals, sources = choose_balanced_examples(samples, target)
    x = samples.get_stored(originals)
    if len(sources):
        stored = samples.get_stored(sources)
        x = torch.cat([x, augment_images(stored, augment, samples.scale.unit, magnitude)])
    return Samples(x, samples.labels[torch.cat([originals, sources])], samples.scale)


def choose_balanced_examples(samples: Samples, target: int) -> tuple[Tensor, Tensor]:
    """Choose a client's balanced examples: positions to keep, and positions to copy, both by class.

    A large class is cut at random. A small class is kept whole and filled up with augmented copies,
    whose originals are drawn with replacement.
    """
    kept, copied = [], []
    for c in samples.labels.unique():
        mine = (samples.labels == c).nonzero().flatten()
        kept.append(mine[torch.randperm(len(mine))[:target]] if len(mine) >= target else mine)
        missing = max(0, target - len(mine))
        copied.append(mine[torch.randint(len(mine), (missing,))])
    return torch.cat(kept), torch.cat(copied)


def count_kept_and_copied(counts: Tensor, target: int) -> tuple[int, int]:
    """Count the examples that balancing would keep and copy, given a client's example counts by class."""
    held = counts[counts > 0]
    return int(held.clamp(max=target).sum()), int((target - held).clamp(min=0).sum())


def count_head_examples(counts: Tensor, target: int, weights: HeadWeights) -> Tensor:
    """Count, by class, the examples that weight a client's head: all balanced ones, or kept originals."""
    if weights == "rebalanced":
        return (counts > 0) * target
    return counts.clamp(max=target)


def build_seed_key(seed: int, client: str) -> tuple[object, ...]:
    """Return the key that seeds the random draws of a client's balanced set, as ``Client.once`` builds it."""
    return seed, "once", client, "rebalanced"


Ablation = Literal["full", "no_split_weights", "no_own_head", "no_balancing", "no_own_phase"]
Variant = Literal[Ablation, "a", "b", "c", "d"]
# Line 11 of the thesis' Algorithm 2 also updates the shared head; all other sources freeze it.
TrainedHeads = Literal["own_head", "both_heads"]

# Letters are accepted too and stored as written, so that run folders with letters can resume.
ABLATIONS_BY_LETTER: dict[str, Ablation] = {
    "a": "no_split_weights",
    "b": "no_own_head",
    "c": "no_balancing",
    "d": "no_own_phase",
}


def name_ablation(variant: Variant) -> Ablation:
    """Return the name of FedReG's ablation, which may be given by its letter."""
    return ABLATIONS_BY_LETTER.get(variant, cast(Ablation, variant))


PhaseOrder = Literal["sequential", "interleaved"]


def train_phases(
    phases: Sequence[Callable[..., None]], order: PhaseOrder, training: Training
) -> None:
    """Train in phases, one after the other, or interleaved: each for one epoch at a time."""
    if order == "sequential":
        for fit in phases:
            fit()
        return
    for epoch in range(training.epochs):
        for fit in phases:
            fit(epochs=1, turn=epoch)


def check_phase_order(order: PhaseOrder, training: Training) -> None:
    """Raise ConfigError if FedReG's phases alternate by epoch, but local training counts steps."""
    if order == "interleaved" and training.steps is not None:
        raise ConfigError(
            "algorithm.phases: 'interleaved' changes the phase after every epoch, but training.steps"
            " counts mini-batches; set training.epochs instead"
        )
