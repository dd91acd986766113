"""One victim in one round, attacked by who knows its private parts and by who does not."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from torch import Tensor

from ..place import Place
from ..plan import Job, Plan
from ..samples import Scale
from ..tensors import Tensors
from .attacks import DLG, Attack, Found, Inverting, Kind, Target, begun, best
from .observing import Observed, gradients, insider, last_bias, stranger, update
from .quality import psnr, references, ssim

Record = dict[str, Any]
UNKNOWN, KNOWN = "unknown", "known"  # the parts that stay, to the attacker


@dataclass(frozen=True)
class How:
    """How every victim is attacked."""

    attack: Kind = "inverting"
    iterations: int = 400
    tv: float = 0.01
    labels: Literal["known", "inferred"] = "known"
    batch: int = 1  # images in one gradient
    steps: int = 1  # of the victim, before it sends
    restarts: int = 1

    @property
    def attacker(self) -> Attack:
        if self.attack == "dlg":
            return DLG(self.iterations)
        return Inverting(self.iterations, self.tv)


@dataclass(frozen=True)
class Case:
    """Some images of one client, in the gradient after so many rounds."""

    algorithm: str
    round: int
    client: str
    image: int  # the first one, by its position in the client's training data
    images: int
    names: tuple[str, ...]  # of the tensors that are seen

    @property
    def key(self) -> tuple[str, int, str, int]:
        """What tells it from every other one."""
        return self.algorithm, self.round, self.client, self.image


def attacked(plan: Plan, case: Case, how: How, job: Job, place: Place) -> list[Record]:
    """Everything that is found, image by image, for both kinds of attacker."""
    victim = insider(plan, job, place)
    train = plan.federation.data(case.client).train
    x, y = train.batch(torch.arange(case.image, case.image + case.images))
    seen = update(victim, case.names, x, y, how.steps)
    labels, told = y, "known"
    if how.labels == "inferred" and (bias := last_bias(victim.net)) in case.names:
        labels, told = seen[str(bias)].argmin().reshape(1), "inferred"
    true, out, outcomes = pixels(x, train.scale), list[Record](), dict[str, Met]()
    makers: dict[str, Callable[[], Observed]] = {
        UNKNOWN: partial(stranger, plan, job),
        KNOWN: partial(insider, plan, job, place),
    }
    for knowledge, make in makers.items():
        first = plays(make, case, seen, x, labels, plan.seed)
        same = outcomes.get(UNKNOWN)
        if same is not None and equal(same.first, first):
            met = same  # nothing of what stays matters: the very same attack
        else:
            met = Met(first, *fought(plan, case, how, make, seen, x, labels, train.scale))
        outcomes[knowledge] = met
        out += [
            {**record, "labels": told, "right": bool(torch.equal(labels, y))}
            for record in told_of(case, knowledge, met, true, plan.seed, train.scale)
        ]
    return out


@dataclass(frozen=True)
class Met:
    """What one attacker came to, and the first gradient it computed."""

    first: Tensors
    restart: int
    found: Found


def plays(
    make: Callable[[], Observed], case: Case, seen: Tensors, x: Tensor, y: Tensor, seed: int
) -> Tensors:
    """The attacker's gradient at its first start: who computes the same, attacks the same way."""
    target = Target(seen, lambda v: seen, tuple(x.shape), x, x)
    return gradients(make(), case.names, begun(target, *luck(seed, case, 0)), y)


def equal(a: Tensors, b: Tensors) -> bool:
    return all(torch.equal(v, b[k]) for k, v in a.items())


def fought(
    plan: Plan,
    case: Case,
    how: How,
    make: Callable[[], Observed],
    seen: Tensors,
    x: Tensor,
    y: Tensor,
    scale: Scale,
) -> tuple[int, Found]:
    """The best restart, by its match with what was seen."""
    low, high = bounds(x, scale)
    if not seen.square() > 0:  # nothing of what is sent was trained: there is no angle to match
        return 0, Found(((low + high) / 2).expand_as(x), float("inf"), finite=False)
    tries = []
    for restart in range(how.restarts):
        client = make()
        target = Target(
            seen,
            lambda v, client=client: gradients(client, case.names, v, y, differentiable=True),  # type: ignore[misc]
            tuple(x.shape),
            low,
            high,
        )
        tries.append(how.attacker(target, begun(target, *luck(plan.seed, case, restart))))
    return best(tries)


def luck(seed: int, case: Case, restart: int) -> tuple[object, ...]:
    """What an attack starts from does not depend on the algorithm: equal gradients, equal images."""
    return seed, "attack", case.round, case.client, case.image, restart


# Telling ------------------------------------------------------------------------------------


def told_of(
    case: Case, knowledge: str, met: Met, true: Tensor, seed: int, scale: Scale
) -> list[Record]:
    """A line for every image, with what flat images and noise would come to."""
    order = matched(true, found := pixels(met.found.images, scale))
    out = []
    for i, original in enumerate(true):
        image, made = case.image + i, found[order[i]]
        nothing = references(original, seed, "reference", case.client, image)
        out.append(
            {
                "event": "attack",
                "algorithm": case.algorithm,
                "round": case.round,
                "client": case.client,
                "image": image,
                "private": knowledge,
                "psnr": psnr(made, original),
                "ssim": ssim(made, original),
                "matching": met.found.loss if met.found.finite else None,
                "finite": met.found.finite,
                "restart": met.restart,
                "references": {
                    k: [psnr(v, original), ssim(v, original)] for k, v in nothing.items()
                },
                "sha256": Tensors({"image": made}).digest(),
                "original": packed(original),
                "picture": packed(made),
            }
        )
    return out


def matched(true: Tensor, found: Tensor) -> list[int]:
    """Images of one gradient come in no order: each goes to the original it is nearest to."""
    costs = [[-psnr(f, t) for f in found] for t in true]
    return [int(j) for j in linear_sum_assignment(costs)[1]]


def pixels(x: Tensor, scale: Scale) -> Tensor:
    """Input as values from 0 to 1, each image contiguous."""
    low, high = bounds(x, scale)
    return ((x - low) / (high - low)).clamp(0, 1).contiguous()


def bounds(x: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
    """The input that black and white become."""
    black = torch.zeros(1, *x.shape[1:])
    return scale(black.clone()), scale(black + scale.unit)


def packed(image: Tensor) -> str:
    """Bytes, channel by channel, as text."""
    return base64.b64encode((255 * image).round().byte().numpy().tobytes()).decode()
