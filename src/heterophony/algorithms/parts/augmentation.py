"""Augmented copies of stored images for FedReG: every image has its own draw (kornia transforms)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...core.errors import DataError

with warnings.catch_warnings():  # kornia warns of its own deprecations while it is imported
    warnings.simplefilter("ignore")
    from kornia import augmentation as kornia
    from kornia.augmentation.auto import AutoAugment


def augment_images(x: Tensor, kind: str, unit: float) -> Tensor:
    """Return one augmented copy of each image, stored as the originals are; ``copy`` changes nothing."""
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
    with torch.no_grad():
        out = AUGMENTATIONS[kind](x.float() / unit).clamp(0, 1) * unit
    return out.to(x.dtype) if x.is_floating_point() else out.round().to(x.dtype)


def augment_simple(x: Tensor) -> Tensor:
    """Flip, crop with a shift, rotate, change colours (not of grey images), move: in this order."""
    steps: list[nn.Module] = [
        kornia.RandomHorizontalFlip(p=0.5),
        kornia.RandomCrop((x.shape[2], x.shape[3]), padding=4),
        kornia.RandomRotation(degrees=10.0, p=1.0),
        kornia.ColorJitter(0.2, 0.2, 0.2, 0.05, p=1.0),
        kornia.RandomAffine(degrees=0.0, translate=(0.1, 0.1), scale=(0.9, 1.1), p=1.0),
    ]
    for step in steps:
        if not (isinstance(step, kornia.ColorJitter) and x.shape[1] == 1):
            x = step(x)
    return x


def augment_auto(x: Tensor) -> Tensor:
    """Apply AutoAugment's CIFAR-10 policy.

    kornia draws one sub-policy per batch, so images are grouped by their sub-policy first. Grey
    images are given as three equal channels.
    """
    colour = x.expand(-1, 3, -1, -1)
    policies = list(AutoAugment("cifar10").children())
    drawn = torch.randint(len(policies), (len(x),))
    out = colour.clone()
    for i, policy in enumerate(policies):
        mine = (drawn == i).nonzero().flatten()
        if len(mine):
            out[mine] = policy(colour[mine])
    return out[:, : x.shape[1]]


AUGMENTATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "simple": augment_simple,
    "auto": augment_auto,
}
