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
from ..core.codec import check_same_structure
from ..core.errors import CodecError, NotFiniteError
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..core.tensors import Tensors
from ..data.federation import Federation
from ..jobs.client_store import FolderClientStore
from ..jobs.plan import Job, Plan
from ..jobs.work import train

MAX_NORM_RATIO = 1000.0  # times that of what was sent: no training of ours comes near
DUMMY_CLIENT = "0"
TEST_COUNT_METRICS = ("G", "P", "P_local", "before")  # right answers on test examples
VALIDATION_COUNT_METRICS = ("G_valid", "P_valid")
METRIC_NAME = re.compile(
    r"[A-Za-z]\w{0,40}(/\w{1,40})?"
)  # of a metric; which there are, rounds decide
MAX_METRICS = 32  # metrics of one reply


class ReplyValidator:
    """The form of good replies, derived from what the algorithm itself would send."""

    def __init__(self, plan: Plan, norm: float = MAX_NORM_RATIO) -> None:
        self.plan, self.max_norm_ratio = plan, norm

    @cached_property
    def largest_reply(self) -> Reply:
        """What a client sends that holds every class: nobody sends more."""
        return self.simulate_reply(torch.arange(self.plan.federation.classes))

    @cached_property
    def required_names(self) -> frozenset[str]:
        """The names that any client sends, whatever its classes are."""
        one = [
            self.simulate_reply(torch.tensor([c])).tensors
            for c in (0, self.plan.federation.classes - 1)
        ]
        return frozenset(one[0].keys() & one[1].keys())

    def simulate_reply(self, y: Tensor) -> Reply:
        """The reply of somebody with blank examples of these classes, to the very first job."""
        plan, rows = self.plan, {DUMMY_CLIENT: torch.arange(len(y))}
        x = torch.zeros(len(y), *plan.federation.shape, dtype=plan.federation.x.dtype)
        anybody = Federation(
            "anybody", x, y, BYTES_TO_PLUS_MINUS_ONE, plan.federation.labels, rows, rows
        )
        how = replace(plan.training, epochs=1, steps=None, batch=len(y))
        dry = replace(plan, federation=anybody, training=how)
        with tempfile.TemporaryDirectory(prefix="heterophony-") as folder, torch.random.fork_rng():
            place = FolderClientStore(Path(folder) / "clients", Path(folder) / "scratch")
            job = Job(
                kind="train",
                t=0,
                client=DUMMY_CLIENT,
                tensors=dry.algorithm.send(dry.create_initial_server(), DUMMY_CLIENT),
            )
            return train(dry, job, {}, place)[0]

    def check_reply(self, reply: Reply, job: Job) -> Reply:
        """The reply with what the server knows better put right; CodecError says what is wrong."""
        if (reply.client, reply.kind, reply.turn) != (job.client, job.kind, job.turn):
            raise CodecError("the reply is to another job")
        if job.kind == "train":
            self.check_aside(reply.aside)
            self.check_tensors(reply.tensors, job)
        elif reply.tensors or reply.aside:
            raise CodecError("the reply to an evaluation holds tensors")
        self.check_metrics(reply.metrics, job)
        return self.set_trusted_weight(reply, job)

    def check_tensors(self, found: Tensors, job: Job) -> None:
        """Nothing that is not expected, nothing of another form, all that everybody sends."""
        like = self.largest_reply.tensors
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
                raise NotFiniteError(f"tensor {name!r} holds NaN or infinity")
        if missing := sorted(self.required_names - set(found)):
            raise CodecError(f"tensor {missing[0]!r} is missing")
        self.check_norms(found, job.tensors, self.plan.federation.whole().sizes()[job.client])

    def check_aside(self, found: Tensors) -> None:
        """Exactly what G takes an average of, where the run asks for it; else nothing.

        How long it is does not matter: it is measured, and nobody learns from it.
        """
        like = self.largest_reply.aside
        if found and not like:
            raise CodecError("the reply holds tensors that must stay on the device")
        check_same_structure(found, like)
        for name, v in found.items():
            if v.is_floating_point() and not bool(torch.isfinite(v).all()):
                raise NotFiniteError(f"tensor {name!r} holds NaN or infinity")

    def check_norms(self, found: Tensors, sent: Tensors, samples: int) -> None:
        """What was sent and came back, by how long it was; the rest may be sums over examples."""
        common = {k for k in found if k in sent}
        before, after = compute_norm(sent, common), compute_norm(found, common)
        if after > self.max_norm_ratio * (1 + before):
            raise CodecError(
                f"the update is {after:.3g} long, over {self.max_norm_ratio:g} times what was sent"
            )
        beside, most = (
            compute_norm(found, found.keys() - common),
            self.max_norm_ratio * (1 + before) * (1 + samples),
        )
        if beside > most:
            raise CodecError(f"what goes with the update is {beside:.3g} long, over {most:.3g}")

    def check_metrics(self, found: Mapping[str, float], job: Job) -> None:
        """Finite numbers of known names; counts within what there is to count."""
        federation = self.plan.federation.whole()
        tested, held_out = (federation.sizes(p)[job.client] for p in ("test", "validation"))
        limits = {
            **dict.fromkeys(TEST_COUNT_METRICS, tested),
            **dict.fromkeys(VALIDATION_COUNT_METRICS, held_out),
        }
        if len(found) > MAX_METRICS:
            raise CodecError(f"the reply has {len(found)} metrics, over {MAX_METRICS}")
        for name, value in found.items():
            if not METRIC_NAME.fullmatch(name):
                raise CodecError(f"metric {name[:80]!r} is not a name")
            if not math.isfinite(value):
                raise CodecError(f"metric {name!r} is not finite")
            most = limits.get(name, math.inf)
            if name in limits and not (0 <= value <= most and value == int(value)):
                raise CodecError(f"metric {name!r} is {value:g}, of {most} examples")

    def set_trusted_weight(self, reply: Reply, job: Job) -> Reply:
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


def compute_norm(tensors: Tensors, names: Iterable[str]) -> float:
    """The length of all that is no whole number, as one vector."""
    real = [tensors[k].double() for k in names if tensors[k].is_floating_point()]
    return math.sqrt(sum(float(v.square().sum()) for v in real))
