"""Augmented copies of stored images for FedReG: every image has its own draw (kornia transforms)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ...core.errors import DataError
from .rebalancing import Augmentation

with warnings.catch_warnings():  # kornia warns of its own deprecations while it is imported
    warnings.simplefilter("ignore")
    from kornia import augmentation as kornia
    from kornia.augmentation.auto import AutoAugment


def augment_images(x: Tensor, kind: Augmentation, unit: float, magnitude: float = 1.0) -> Tensor:
    """Return one augmented copy of each image, stored as the originals are; ``copy`` changes nothing.

    ``magnitude`` scales how far ``simple`` moves, turns and colours images.
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
    """Flip, crop with a shift, rotate, change colours (not of grey images), move: in this order.

    The works name the steps, not how far they go: ``magnitude`` 1 is a guess, usual for CIFAR-10.
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
    """Apply one of AutoAugment's policies.

    kornia draws one sub-policy per batch, so images are grouped by their sub-policy first. Grey
    images are given as three equal channels.
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
AUGMENTATIONS: tuple[Augmentation, ...] = ("simple", *AUTO_AUGMENTATIONS)  # that change images
