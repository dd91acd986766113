"""What a reply from a device may be: names, shapes, types, counts and sizes, or it is refused."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ..core.algorithm import Reply
from ..core.codec import demand
from ..core.errors import CodecError
from ..core.samples import HALF
from ..core.tensors import Tensors
from ..data.federation import Federation
from ..jobs.client_store import Place
from ..jobs.plan import Job, Plan, train

NORM = 1000.0  # times that of what was sent: no training of ours comes near
ANYBODY = "0"
COUNTS = ("G", "P", "P_local", "before")  # right answers on test examples
VALIDATED = ("G_valid", "P_valid")
NAME = re.compile(r"[A-Za-z]\w{0,40}(/\w{1,40})?")  # of a metric; which there are, rounds decide
MANY = 32  # metrics of one reply


class Expected:
    """The form of good replies, derived from what the algorithm itself would send."""

    def __init__(self, plan: Plan, norm: float = NORM) -> None:
        self.plan, self.norm = plan, norm

    @cached_property
    def most(self) -> Reply:
        """What a client sends that holds every class: nobody sends more."""
        return self.sent_by(torch.arange(self.plan.federation.classes))

    @cached_property
    def least(self) -> frozenset[str]:
        """The names that any client sends, whatever its classes are."""
        one = [
            self.sent_by(torch.tensor([c])).tensors for c in (0, self.plan.federation.classes - 1)
        ]
        return frozenset(one[0].keys() & one[1].keys())

    def sent_by(self, y: Tensor) -> Reply:
        """The reply of somebody with blank examples of these classes, to the very first job."""
        plan, rows = self.plan, {ANYBODY: torch.arange(len(y))}
        x = torch.zeros(len(y), *plan.federation.shape, dtype=plan.federation.x.dtype)
        anybody = Federation("anybody", x, y, HALF, plan.federation.labels, rows, rows)
        how = replace(plan.training, epochs=1, steps=None, batch=len(y))
        dry = replace(plan, federation=anybody, training=how)
        with tempfile.TemporaryDirectory(prefix="heterophony-") as folder, torch.random.fork_rng():
            place = Place(Path(folder) / "clients", Path(folder) / "scratch")
            job = Job("train", 0, ANYBODY, dry.algorithm.send(dry.start(), ANYBODY))
            return train(dry, job, {}, place)[0]

    def check(self, reply: Reply, job: Job) -> Reply:
        """The reply with what the server knows better put right; CodecError says what is wrong."""
        if (reply.client, reply.kind, reply.turn) != (job.client, job.kind, job.turn):
            raise CodecError("the reply is to another job")
        if job.kind == "train":
            self.aside(reply.aside)
            self.tensors(reply.tensors, job)
        elif reply.tensors or reply.aside:
            raise CodecError("the reply to an evaluation holds tensors")
        self.metrics(reply.metrics, job)
        return self.weighed(reply, job)

    def tensors(self, found: Tensors, job: Job) -> None:
        """Nothing that is not expected, nothing of another form, all that everybody sends."""
        like = self.most.tensors
        for name, v in found.items():
            want = like.get(name)
            if want is None:
                raise CodecError(f"tensor {name!r} is not expected")
            if v.shape != want.shape or v.dtype != want.dtype:
                raise CodecError(
                    f"tensor {name!r} is {v.dtype} {tuple(v.shape)},"
                    f" expected {want.dtype} {tuple(want.shape)}"
                )
            if v.is_floating_point() and not bool(torch.isfinite(v).all()):
                raise CodecError(f"tensor {name!r} holds NaN or infinity")
        if missing := sorted(self.least - set(found)):
            raise CodecError(f"tensor {missing[0]!r} is missing")
        self.length(found, job.tensors, self.plan.federation.whole().sizes()[job.client])

    def aside(self, found: Tensors) -> None:
        """Exactly what G takes an average of, where the run asks for it; else nothing.

        How long it is does not matter: it is measured, and nobody learns from it.
        """
        like = self.most.aside
        if found and not like:
            raise CodecError("the reply holds tensors that must stay on the device")
        demand(found, like)
        for name, v in found.items():
            if v.is_floating_point() and not bool(torch.isfinite(v).all()):
                raise CodecError(f"tensor {name!r} holds NaN or infinity")

    def length(self, found: Tensors, sent: Tensors, samples: int) -> None:
        """What was sent and came back, by how long it was; the rest may be sums over examples."""
        common = {k for k in found if k in sent}
        before, after = norm(sent, common), norm(found, common)
        if after > self.norm * (1 + before):
            raise CodecError(
                f"the update is {after:.3g} long, over {self.norm:g} times what was sent"
            )
        beside, most = norm(found, found.keys() - common), self.norm * (1 + before) * (1 + samples)
        if beside > most:
            raise CodecError(f"what goes with the update is {beside:.3g} long, over {most:.3g}")

    def metrics(self, found: Mapping[str, float], job: Job) -> None:
        """Finite numbers of known names; counts within what there is to count."""
        federation = self.plan.federation.whole()
        tested, held_out = (federation.sizes(p)[job.client] for p in ("test", "validation"))
        limits = {**dict.fromkeys(COUNTS, tested), **dict.fromkeys(VALIDATED, held_out)}
        if len(found) > MANY:
            raise CodecError(f"the reply has {len(found)} metrics, over {MANY}")
        for name, value in found.items():
            if not NAME.fullmatch(name):
                raise CodecError(f"metric {name[:80]!r} is not a name")
            if not math.isfinite(value):
                raise CodecError(f"metric {name!r} is not finite")
            most = limits.get(name, math.inf)
            if name in limits and not (0 <= value <= most and value == int(value)):
                raise CodecError(f"metric {name!r} is {value:g}, of {most} examples")

    def weighed(self, reply: Reply, job: Job) -> Reply:
        """Its share in a mean is not for a device to say."""
        samples = self.plan.federation.whole().sizes()[job.client]
        if job.kind != "train":
            return reply
        if reply.samples != samples:
            raise CodecError(f"the reply speaks of {reply.samples} examples, not of {samples}")
        weight = samples if self.plan.weights == "samples" else 1
        most = max(1, samples) * 1000 * max(1, self.plan.training.epochs)
        if not 0 <= reply.examples <= most:
            raise CodecError(f"the reply speaks of {reply.examples} examples gone through")
        return replace(reply, weight=weight)


def norm(tensors: Tensors, names: Iterable[str]) -> float:
    """The length of all that is no whole number, as one vector."""
    real = [tensors[k].double() for k in names if tensors[k].is_floating_point()]
    return math.sqrt(sum(float(v.square().sum()) for v in real))
