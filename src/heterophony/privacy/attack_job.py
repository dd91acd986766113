"""The attack on one client in one round, as a job for an engine.

Each case is attacked three times. Two attackers do not know the client's personal parameters: one
draws new values, one uses the initial values. The third attacker knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from . import attacks
from .summary import GUESSED_FRESH, GUESSED_INITIAL, PRIVATE_KNOWN


@dataclass(frozen=True)
class AttackSettings:
    """The settings of all attacks of an audit."""

    attack: attacks.AttackName = "inverting"
    iterations: int = 400
    tv: float = 0.01
    labels: Literal["known", "inferred", "joint"] = "known"  # joint: optimised with the images
    batch: int = 1  # images in one gradient
    steps: int = 1  # steps that the victim trains before it sends
    restarts: int = 1

    @property
    def attack_method(self) -> attacks.Attack:
        """The attack with these settings."""
        if self.attack == "dlg":
            return attacks.DLG(self.iterations)
        return attacks.InvertingGradients(self.iterations, self.tv)


@dataclass(frozen=True)
class AttackCase:
    """The target of an attack: the gradient that a client sends for some consecutive training images."""

    algorithm: str
    round: int
    client: str
    first_image: int  # position in the client's training data
    image_count: int
    tensor_names: tuple[str, ...]  # names of the tensors that the client sends

    @property
    def key(self) -> tuple[str, int, str, int]:
        """The key that identifies the case within an audit."""
        return self.algorithm, self.round, self.client, self.first_image

    def load_batch(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """Load the true images of the case as inputs of the net, and their labels."""
        train = plan.federation.data(self.client).train
        return train.batch(torch.arange(self.first_image, self.first_image + self.image_count))


@dataclass(frozen=True)
class GradientInversion:
    """The job that runs the attacks of all attackers on one case, called by an engine."""

    case: AttackCase
    settings: AttackSettings

    def __call__(self, plan: Plan, job: Job, store: ClientStore) -> Reply:
        victim, (x, y) = attacks.build_insider(plan, job, store), self.case.load_batch(plan)
        computed = attacks.compute_update(victim, self.case.tensor_names, x, y, self.settings.steps)
        observed = attacks.observe_update(
            plan, job, store, computed, victim.lr, self.settings.steps
        )
        bias = attacks.find_last_bias(victim.net)
        inferred = self.settings.labels == "inferred" and bias in self.case.tensor_names
        labels = attacks.infer_labels(observed[str(bias)], len(y)) if inferred else y
        low, high = compute_bounds(x, plan.federation.data(job.client).train.scale)
        makers: dict[str, Callable[[], attacks.RecordingClient]] = {
            GUESSED_FRESH: partial(attacks.build_outsider, plan, job, GUESSED_FRESH),
            GUESSED_INITIAL: partial(attacks.build_outsider, plan, job, GUESSED_INITIAL),
            PRIVATE_KNOWN: partial(attacks.build_insider, plan, job, store),
        }
        by_knowledge = {
            knowledge: CaseAttack(
                self.case,
                self.settings,
                plan,
                make,
                AttackerKnowledge(observed, x.shape, labels, low, high),
            )
            for knowledge, make in makers.items()
        }
        try:
            return pack_attack_reply(self.case, inferred, run_different_attacks(by_knowledge))
        except IndexError:
            if self.settings.labels != "joint":
                raise
            raise ConfigError(
                f"--labels joint: {self.case.algorithm} needs classes as labels; leave this algorithm out, or choose other --labels"
            ) from None


@dataclass(frozen=True)
class AttackerKnowledge:
    """The knowledge that all attackers have: the observed gradient, and the images' shape, labels and range."""

    gradient: Tensors
    shape: tuple[int, ...]
    labels: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class CaseAttack:
    """The attack of one attacker on one case."""

    case: AttackCase
    settings: AttackSettings
    plan: Plan
    make_client: Callable[[], attacks.RecordingClient]
    knowledge: AttackerKnowledge

    def draw_start(self, restart: int) -> attacks.StartingPoint:
        """Draw the random images, and labels if they are optimised, with which the attack starts.

        They do not depend on the algorithm, so equal gradients give equal reconstructions.
        """
        key = (self.plan.seed, "attack", *self.case.key[1:], restart)
        images = attacks.draw_noise(self.knowledge.shape, *key).contiguous(
            memory_format=torch.channels_last
        )
        if self.settings.labels != "joint":
            return attacks.StartingPoint(images, self.knowledge.labels)
        shape = (len(images), self.plan.federation.classes)
        return attacks.StartingPoint(images, attacks.draw_noise(shape, *key, "labels"))

    def make_gradient_function(
        self, client: attacks.RecordingClient
    ) -> Callable[[Tensor, Tensor], Tensors]:
        """Return the function by which an attack computes the gradient of images and labels."""
        return partial(
            attacks.compute_gradients, client, self.case.tensor_names, differentiable=True
        )

    def compute_first_gradient(self) -> Tensors:
        """Compute the gradient of the attack's first images; attackers whose gradients are equal run the same attack."""
        start = self.draw_start(0)
        return attacks.compute_gradients(
            self.make_client(),
            self.case.tensor_names,
            start.images,
            attacks.to_probabilities(start.labels),
        )

    def run_restarts(self) -> tuple[int, attacks.Reconstruction]:
        """Run all restarts of the attack; return the number and the result of the restart with the lowest loss."""
        known, start = self.knowledge, self.draw_start(0)
        if (
            not known.gradient.square() > 0
        ):  # no sent tensor was trained: there is no angle to match
            flat = ((known.low + known.high) / 2).expand(known.shape)
            return 0, attacks.Reconstruction(
                flat, attacks.to_class_labels(start.labels), float("inf"), finite=False
            )
        reconstructions = []
        for restart in range(self.settings.restarts):
            target = attacks.AttackTarget(
                known.gradient,
                self.make_gradient_function(self.make_client()),
                known.low,
                known.high,
            )
            reconstructions.append(self.settings.attack_method(target, self.draw_start(restart)))
        return attacks.select_best(reconstructions)


def run_different_attacks(
    by_knowledge: Mapping[str, CaseAttack],
) -> dict[str, tuple[int, attacks.Reconstruction]]:
    """Run the attack of every attacker; attackers with equal gradients at the start share one attack."""
    done: list[tuple[Tensors, tuple[int, attacks.Reconstruction]]] = []
    results = {}
    for knowledge, attack in by_knowledge.items():
        gradient = attack.compute_first_gradient()
        same = next((found for first, found in done if are_same_gradients(first, gradient)), None)
        results[knowledge] = same or attack.run_restarts()
        done.append((gradient, results[knowledge]))
    return results


def are_same_gradients(a: Tensors, b: Tensors) -> bool:
    """Return True if the gradients of two attackers are equal, bit for bit."""
    return all(torch.equal(v, b[k]) for k, v in a.items())


def compute_bounds(x: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
    """Return a black and a white image as inputs of the net, the bounds of an attack's pixels."""
    black = torch.zeros(1, *x.shape[1:])
    return scale(black.clone()), scale(black + scale.unit)


# Packing a reply ---------------------------------------------------------------------------


def pack_attack_reply(
    case: AttackCase, inferred: bool, results: dict[str, tuple[int, attacks.Reconstruction]]
) -> Reply:
    """Pack the results of all attackers on a case into a reply, which every engine can send."""
    tensors, numbers = dict[str, Tensor](), {"t": case.round, "image": case.first_image}
    metrics: dict[str, float] = {**numbers, "inferred": inferred}
    for knowledge, (restart, found) in results.items():
        tensors |= {f"{knowledge}/images": found.images, f"{knowledge}/labels": found.labels}
        numbers_of_attack = {"restart": restart, "loss": found.loss, "finite": found.finite}
        metrics |= {f"{knowledge}/{k}": v for k, v in numbers_of_attack.items()}
    return Reply(
        case.client, "other", Tensors(tensors), case.image_count, case.image_count, metrics
    )


def unpack_attack_reply(reply: Reply, knowledge: str) -> tuple[int, attacks.Reconstruction]:
    """Return the number of an attacker's best restart, and its reconstruction, from a reply."""
    restart, loss, finite = (
        reply.metrics[f"{knowledge}/{k}"] for k in ("restart", "loss", "finite")
    )
    images, labels = (reply.tensors[f"{knowledge}/{k}"] for k in ("images", "labels"))
    return int(restart), attacks.Reconstruction(images, labels, loss, bool(finite))
