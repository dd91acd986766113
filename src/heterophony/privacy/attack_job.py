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
from ..jobs.client_store import ClientStore
from ..jobs.plan import Job, Plan
from .attacks import (
    DLG,
    Attack,
    AttackName,
    AttackTarget,
    InvertingGradients,
    Reconstruction,
    StartingPoint,
    draw_noise,
    infer_labels,
    select_best,
    to_classes,
    to_probabilities,
)
from .gradients import (
    RecordingClient,
    compute_gradients,
    compute_update,
    find_last_bias,
    make_insider,
    make_stranger,
)

PRIVATE_UNKNOWN, PRIVATE_KNOWN = "unknown", "known"  # the parts that stay, to the attacker


@dataclass(frozen=True)
class AttackSettings:
    """How every victim is attacked."""

    attack: AttackName = "inverting"
    iterations: int = 400
    tv: float = 0.01
    labels: Literal["known", "inferred", "joint"] = "known"  # joint: sought with the images
    batch: int = 1  # images in one gradient
    steps: int = 1  # of the victim, before it sends
    restarts: int = 1

    @property
    def attack_method(self) -> Attack:
        if self.attack == "dlg":
            return DLG(self.iterations)
        return InvertingGradients(self.iterations, self.tv)


@dataclass(frozen=True)
class AttackCase:
    """Some images of one client, in the gradient after so many rounds."""

    algorithm: str
    round: int
    client: str
    first_image: int  # the first one, by its position in the client's training data
    image_count: int
    tensor_names: tuple[str, ...]  # of the tensors that are seen

    @property
    def key(self) -> tuple[str, int, str, int]:
        """What tells it from every other one."""
        return self.algorithm, self.round, self.client, self.first_image

    def load_batch(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """The true images, as the net gets them, and their labels."""
        train = plan.federation.data(self.client).train
        return train.batch(torch.arange(self.first_image, self.first_image + self.image_count))


@dataclass(frozen=True)
class GradientInversion:
    """The work on one case, as an engine does it: what both kinds of attacker come to."""

    case: AttackCase
    settings: AttackSettings

    def __call__(self, plan: Plan, job: Job, place: ClientStore) -> Reply:
        victim, (x, y) = make_insider(plan, job, place), self.case.load_batch(plan)
        seen = compute_update(victim, self.case.tensor_names, x, y, self.settings.steps)
        bias = find_last_bias(victim.net)
        inferred = self.settings.labels == "inferred" and bias in self.case.tensor_names
        labels = infer_labels(seen[str(bias)], len(y)) if inferred else y
        low, high = compute_bounds(x, plan.federation.data(job.client).train.scale)
        makers: dict[str, Callable[[], RecordingClient]] = {
            PRIVATE_UNKNOWN: partial(make_stranger, plan, job),
            PRIVATE_KNOWN: partial(make_insider, plan, job, place),
        }
        fights = {
            knowledge: CaseAttack(
                self.case,
                self.settings,
                plan,
                make,
                AttackerKnowledge(seen, x.shape, labels, low, high),
            )
            for knowledge, make in makers.items()
        }
        outcomes = {PRIVATE_UNKNOWN: fights[PRIVATE_UNKNOWN].run_restarts()}
        # if nothing of what stays matters, it is the very same attack
        same = are_equal(*(fight.compute_first_gradient() for fight in fights.values()))
        outcomes[PRIVATE_KNOWN] = (
            outcomes[PRIVATE_UNKNOWN] if same else fights[PRIVATE_KNOWN].run_restarts()
        )
        return pack_reply(self.case, inferred, outcomes)


@dataclass(frozen=True)
class AttackerKnowledge:
    """What every attacker has: a gradient, and what it is a gradient of, but for the pixels."""

    gradient: Tensors
    shape: tuple[int, ...]
    labels: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class CaseAttack:
    """One attacker and one case."""

    case: AttackCase
    settings: AttackSettings
    plan: Plan
    make_client: Callable[[], RecordingClient]
    knowledge: AttackerKnowledge

    def draw_start(self, restart: int) -> StartingPoint:
        """It does not depend on the algorithm: equal gradients, equal images."""
        key = (self.plan.seed, "attack", *self.case.key[1:], restart)
        images = draw_noise(self.knowledge.shape, *key).contiguous(
            memory_format=torch.channels_last
        )
        if self.settings.labels != "joint":
            return StartingPoint(images, self.knowledge.labels)
        shape = (len(images), self.plan.federation.classes)
        return StartingPoint(images, draw_noise(shape, *key, "labels"))

    def make_gradient_function(
        self, client: RecordingClient
    ) -> Callable[[Tensor, Tensor], Tensors]:
        return partial(compute_gradients, client, self.case.tensor_names, differentiable=True)

    def compute_first_gradient(self) -> Tensors:
        """What it computes first: who computes the same, attacks the same way."""
        start = self.draw_start(0)
        return compute_gradients(
            self.make_client(), self.case.tensor_names, start.images, to_probabilities(start.labels)
        )

    def run_restarts(self) -> tuple[int, Reconstruction]:
        """The best restart, by its match with what was seen."""
        seen, start = self.knowledge, self.draw_start(0)
        if not seen.gradient.square() > 0:  # nothing that is sent was trained: no angle to match
            flat = ((seen.low + seen.high) / 2).expand(seen.shape)
            return 0, Reconstruction(flat, to_classes(start.labels), float("inf"), finite=False)
        tries = []
        for restart in range(self.settings.restarts):
            target = AttackTarget(
                seen.gradient, self.make_gradient_function(self.make_client()), seen.low, seen.high
            )
            try:
                tries.append(self.settings.attack_method(target, self.draw_start(restart)))
            except IndexError:
                if self.settings.labels != "joint":
                    raise
                raise ConfigError(
                    f"--labels joint: {self.case.algorithm} looks things up by label, which must"
                    " then be a class; leave it out, or choose other --labels"
                ) from None
        return select_best(tries)


def are_equal(a: Tensors, b: Tensors) -> bool:
    return all(torch.equal(v, b[k]) for k, v in a.items())


def compute_bounds(x: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
    """The input that black and white become."""
    black = torch.zeros(1, *x.shape[1:])
    return scale(black.clone()), scale(black + scale.unit)


# There and back -----------------------------------------------------------------------------


def pack_reply(
    case: AttackCase, inferred: bool, outcomes: dict[str, tuple[int, Reconstruction]]
) -> Reply:
    """As engines carry it: tensors and numbers."""
    tensors, numbers = dict[str, Tensor](), {"t": case.round, "image": case.first_image}
    metrics: dict[str, float] = {**numbers, "inferred": inferred}
    for knowledge, (restart, found) in outcomes.items():
        tensors |= {f"{knowledge}/images": found.images, f"{knowledge}/labels": found.labels}
        own = {"restart": restart, "loss": found.loss, "finite": found.finite}
        metrics |= {f"{knowledge}/{k}": v for k, v in own.items()}
    return Reply(
        case.client, "other", Tensors(tensors), case.image_count, case.image_count, metrics
    )


def unpack_reply(reply: Reply, knowledge: str) -> tuple[int, Reconstruction]:
    """The best restart of that attacker, and what it came to."""
    restart, loss, finite = (
        reply.metrics[f"{knowledge}/{k}"] for k in ("restart", "loss", "finite")
    )
    images, labels = (reply.tensors[f"{knowledge}/{k}"] for k in ("images", "labels"))
    return int(restart), Reconstruction(images, labels, loss, bool(finite))
