"""One record per image of a case: PSNR and SSIM of the reconstruction and of reference images."""

from __future__ import annotations

import base64
from collections import Counter
from typing import Any

from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from torch import Tensor

from ..core.algorithm import Reply
from ..core.samples import Scale
from ..core.tensors import Tensors
from ..jobs.plan import Plan
from .attack_job import (
    AttackCase,
    AttackSettings,
    compute_bounds,
    unpack_reply,
)
from .attacks import Reconstruction
from .quality import make_reference_images, psnr, ssim
from .summary import PRIVATE_KNOWLEDGE

Record = dict[str, Any]


def make_records(
    plan: Plan, case: AttackCase, settings: AttackSettings, reply: Reply
) -> list[Record]:
    """Make the records of all attackers."""
    scale = plan.federation.data(case.client).train.scale
    x, y = case.load_batch(plan)
    known = settings.labels == "inferred" and not reply.metrics["inferred"]
    common = {
        "event": "attack",
        "algorithm": case.algorithm,
        "round": case.round,
        "client": case.client,
        "labels": "known" if known else settings.labels,
    }
    out = []
    for knowledge in PRIVATE_KNOWLEDGE:
        restart, found = unpack_reply(reply, knowledge)
        loss = found.loss if found.finite else None
        attack = {"restart": restart, "finite": found.finite, "matching": loss}
        for image in compare_images(case, found, to_pixels(x, scale), y, scale, plan.seed):
            out.append({**common, "private": knowledge, **attack, **image})
    return out


def compare_images(
    case: AttackCase, found: Reconstruction, true: Tensor, y: Tensor, scale: Scale, seed: int
) -> list[Record]:
    """Compare each original image with its reconstruction."""
    pixels = to_pixels(found.images, scale)
    order, right = match_images(true, pixels), match_labels(y, found.labels)
    out = []
    for i, original in enumerate(true):
        image, reconstruction = case.first_image + i, pixels[order[i]]
        references = make_reference_images(original, seed, "reference", case.client, image)
        out.append(
            {
                "image": image,
                "psnr": psnr(reconstruction, original),
                "ssim": ssim(reconstruction, original),
                "right": right[i],
                "references": {
                    k: [psnr(v, original), ssim(v, original)] for k, v in references.items()
                },
                "sha256": Tensors({"image": reconstruction}).digest(),
                "original": encode_image(original),
                "picture": encode_image(reconstruction),
            }
        )
    return out


def match_images(true: Tensor, found: Tensor) -> list[int]:
    """Assign reconstructions to originals for the highest PSNR: a gradient has no image order."""
    costs = [[-psnr(f, t) for f in found] for t in true]
    return [int(j) for j in linear_sum_assignment(costs)[1]]


def match_labels(true: Tensor, found: Tensor) -> list[bool]:
    """Say which labels were found; each found label counts once, in any order."""
    left, out = Counter(found.tolist()), []
    for label in true.tolist():
        out.append(left[label] > 0)
        left[label] -= 1
    return out


def to_pixels(x: Tensor, scale: Scale) -> Tensor:
    """Convert inputs of the net to pixel values from 0 to 1, each image contiguous."""
    low, high = compute_bounds(x, scale)
    return ((x - low) / (high - low)).clamp(0, 1).contiguous()


def encode_image(image: Tensor) -> str:
    """Encode the pixels as base64, channel by channel, one byte each."""
    return base64.b64encode((255 * image).round().byte().numpy().tobytes()).decode()
