"""One victim in one round, attacked by who knows its private parts and by who does not: a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..core.algorithm import Reply
from ..core.errors import ConfigError
from ..core.samples import Scale
from ..core.tensors import Tensors
from ..jobs.client_store import Keeping
from ..jobs.plan import Job, Plan
from .attacks import (
    DLG,
    Attack,
    Found,
    Inverting,
    Kind,
    Start,
    Target,
    best,
    chances,
    classes,
    fewest,
    noise,
)
from .gradients import (
    Observed,
    gradients,
    insider,
    last_bias,
    stranger,
    update,
)

UNKNOWN, KNOWN = "unknown", "known"  # the parts that stay, to the attacker


@dataclass(frozen=True)
class How:
    """How every victim is attacked."""

    attack: Kind = "inverting"
    iterations: int = 400
    tv: float = 0.01
    labels: Literal["known", "inferred", "joint"] = "known"  # joint: sought with the images
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

    def batch(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """The true images, as the net gets them, and their labels."""
        train = plan.federation.data(self.client).train
        return train.batch(torch.arange(self.image, self.image + self.images))


@dataclass(frozen=True)
class Inversion:
    """The work on one case, as an engine does it: what both kinds of attacker come to."""

    case: Case
    how: How

    def __call__(self, plan: Plan, job: Job, place: Keeping) -> Reply:
        victim, (x, y) = insider(plan, job, place), self.case.batch(plan)
        seen = update(victim, self.case.names, x, y, self.how.steps)
        bias = last_bias(victim.net)
        inferred = self.how.labels == "inferred" and bias in self.case.names
        labels = fewest(seen[str(bias)], len(y)) if inferred else y
        low, high = bounds(x, plan.federation.data(job.client).train.scale)
        makers: dict[str, Callable[[], Observed]] = {
            UNKNOWN: partial(stranger, plan, job),
            KNOWN: partial(insider, plan, job, place),
        }
        fights = {
            knowledge: Fight(
                self.case, self.how, plan, make, Seen(seen, x.shape, labels, low, high)
            )
            for knowledge, make in makers.items()
        }
        outcomes = {UNKNOWN: fights[UNKNOWN].ended()}
        # if nothing of what stays matters, it is the very same attack
        same = equal(*(fight.first() for fight in fights.values()))
        outcomes[KNOWN] = outcomes[UNKNOWN] if same else fights[KNOWN].ended()
        return reply(self.case, inferred, outcomes)


@dataclass(frozen=True)
class Seen:
    """What every attacker has: a gradient, and what it is a gradient of, but for the pixels."""

    gradient: Tensors
    shape: tuple[int, ...]
    labels: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class Fight:
    """One attacker and one case."""

    case: Case
    how: How
    plan: Plan
    make: Callable[[], Observed]
    seen: Seen

    def start(self, restart: int) -> Start:
        """It does not depend on the algorithm: equal gradients, equal images."""
        key = (self.plan.seed, "attack", *self.case.key[1:], restart)
        images = noise(self.seen.shape, *key).contiguous(memory_format=torch.channels_last)
        if self.how.labels != "joint":
            return Start(images, self.seen.labels)
        shape = (len(images), self.plan.federation.classes)
        return Start(images, noise(shape, *key, "labels"))

    def gradient(self, client: Observed) -> Callable[[Tensor, Tensor], Tensors]:
        return partial(gradients, client, self.case.names, differentiable=True)

    def first(self) -> Tensors:
        """What it computes first: who computes the same, attacks the same way."""
        start = self.start(0)
        return gradients(self.make(), self.case.names, start.images, chances(start.labels))

    def ended(self) -> tuple[int, Found]:
        """The best restart, by its match with what was seen."""
        seen, start = self.seen, self.start(0)
        if not seen.gradient.square() > 0:  # nothing that is sent was trained: no angle to match
            flat = ((seen.low + seen.high) / 2).expand(seen.shape)
            return 0, Found(flat, classes(start.labels), float("inf"), finite=False)
        tries = []
        for restart in range(self.how.restarts):
            target = Target(seen.gradient, self.gradient(self.make()), seen.low, seen.high)
            try:
                tries.append(self.how.attacker(target, self.start(restart)))
            except IndexError:
                if self.how.labels != "joint":
                    raise
                raise ConfigError(
                    f"--labels joint: {self.case.algorithm} looks things up by label, which must"
                    " then be a class; leave it out, or choose other --labels"
                ) from None
        return best(tries)


def equal(a: Tensors, b: Tensors) -> bool:
    return all(torch.equal(v, b[k]) for k, v in a.items())


def bounds(x: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
    """The input that black and white become."""
    black = torch.zeros(1, *x.shape[1:])
    return scale(black.clone()), scale(black + scale.unit)


# There and back -----------------------------------------------------------------------------


def reply(case: Case, inferred: bool, outcomes: dict[str, tuple[int, Found]]) -> Reply:
    """As engines carry it: tensors and numbers."""
    tensors, numbers = dict[str, Tensor](), {"t": case.round, "image": case.image}
    metrics: dict[str, float] = {**numbers, "inferred": inferred}
    for knowledge, (restart, found) in outcomes.items():
        tensors |= {f"{knowledge}/images": found.images, f"{knowledge}/labels": found.labels}
        own = {"restart": restart, "loss": found.loss, "finite": found.finite}
        metrics |= {f"{knowledge}/{k}": v for k, v in own.items()}
    return Reply(case.client, "other", Tensors(tensors), case.images, case.images, metrics)


def outcome(reply: Reply, knowledge: str) -> tuple[int, Found]:
    """The best restart of that attacker, and what it came to."""
    restart, loss, finite = (
        reply.metrics[f"{knowledge}/{k}"] for k in ("restart", "loss", "finite")
    )
    images, labels = (reply.tensors[f"{knowledge}/{k}"] for k in ("images", "labels"))
    return int(restart), Found(images, labels, loss, bool(finite))
