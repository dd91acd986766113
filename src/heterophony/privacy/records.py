"""What a case came to, as a line for every image, with what flat images and noise would come to."""

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
    PRIVATE_KNOWN,
    PRIVATE_UNKNOWN,
    AttackCase,
    AttackSettings,
    compute_bounds,
    unpack_reply,
)
from .attacks import Reconstruction
from .quality import make_reference_images, psnr, ssim

Record = dict[str, Any]


def make_records(plan: Plan, case: AttackCase, how: AttackSettings, reply: Reply) -> list[Record]:
    """The lines of both attackers."""
    scale = plan.federation.data(case.client).train.scale
    x, y = case.load_batch(plan)
    known = how.labels == "inferred" and not reply.metrics["inferred"]
    common = {
        "event": "attack",
        "algorithm": case.algorithm,
        "round": case.round,
        "client": case.client,
        "labels": "known" if known else how.labels,
    }
    out = []
    for knowledge in (PRIVATE_UNKNOWN, PRIVATE_KNOWN):
        restart, found = unpack_reply(reply, knowledge)
        loss = found.loss if found.finite else None
        ending = {"restart": restart, "finite": found.finite, "matching": loss}
        for line in compare_images(case, found, to_pixels(x, scale), y, scale, plan.seed):
            out.append({**common, "private": knowledge, **ending, **line})
    return out


def compare_images(
    case: AttackCase, found: Reconstruction, true: Tensor, y: Tensor, scale: Scale, seed: int
) -> list[Record]:
    """Each original, and what was made of it."""
    made = to_pixels(found.images, scale)
    order, right = match_images(true, made), match_labels(y, found.labels)
    out = []
    for i, original in enumerate(true):
        image, mine = case.first_image + i, made[order[i]]
        nothing = make_reference_images(original, seed, "reference", case.client, image)
        out.append(
            {
                "image": image,
                "psnr": psnr(mine, original),
                "ssim": ssim(mine, original),
                "right": right[i],
                "references": {
                    k: [psnr(v, original), ssim(v, original)] for k, v in nothing.items()
                },
                "sha256": Tensors({"image": mine}).digest(),
                "original": encode_image(original),
                "picture": encode_image(mine),
            }
        )
    return out


def match_images(true: Tensor, found: Tensor) -> list[int]:
    """Images of one gradient come in no order: each goes to the original it is nearest to."""
    costs = [[-psnr(f, t) for f in found] for t in true]
    return [int(j) for j in linear_sum_assignment(costs)[1]]


def match_labels(true: Tensor, found: Tensor) -> list[bool]:
    """Whose labels are among those found, in whatever order, each as often as it was found."""
    left, out = Counter(found.tolist()), []
    for label in true.tolist():
        out.append(left[label] > 0)
        left[label] -= 1
    return out


def to_pixels(x: Tensor, scale: Scale) -> Tensor:
    """Input as values from 0 to 1, each image contiguous."""
    low, high = compute_bounds(x, scale)
    return ((x - low) / (high - low)).clamp(0, 1).contiguous()


def encode_image(image: Tensor) -> str:
    """Bytes, channel by channel, as text."""
    return base64.b64encode((255 * image).round().byte().numpy().tobytes()).decode()
