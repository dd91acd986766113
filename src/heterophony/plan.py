"""Everything that decides the result of a run, and the one function that every engine runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .algorithm import Algorithm, Reply, Server
from .algorithms import CLASSES
from .client import Client, Memory, Training, state
from .data.federation import Federation
from .errors import DivergedError
from .net import Net
from .participation import Participation
from .place import Place
from .randomness import seeded
from .tensors import Tensors

EVALUATION_BATCH = 250  # as fast as larger ones, and workers stay small


@dataclass(frozen=True)
class Plan:
    """Equal plans give equal bits, wherever and by however many workers they are played."""

    algorithm: Algorithm
    model: Callable[[], Net]
    federation: Federation
    rounds: int
    participation: Participation
    training: Training = Training()
    seed: int = 0
    every: int = 1  # rounds between evaluations

    @property
    def name(self) -> str:
        """The algorithm's registered name; of one that is not registered, its class's."""
        cls = type(self.algorithm).__name__
        return {v: k for k, v in CLASSES.items()}.get(cls, cls.lower())

    @cached_property
    def template(self) -> Net:
        """The net as it is before round 0; clients get copies."""
        with seeded(self.seed, "init"):
            net = self.algorithm.build(self.model())
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "template"}

    def start(self) -> Server:
        """The server before the first round."""
        names = set(self.algorithm.shared(self.template, 0))
        now = state(self.template)
        model = Tensors({k: v for k, v in now.items() if k in names})
        stays = Tensors({k: v for k, v in now.items() if k not in names})
        return Server(0, self.federation.sizes(), model, average=stays)

    def chosen(self, t: int) -> list[str]:
        """Who trains in round ``t``."""
        clients = self.federation.clients
        if self.algorithm.everybody:
            return list(clients)
        return self.participation.chosen(t, clients, self.seed)

    def measured(self, t: int) -> bool:
        """Are G and P measured after ``t`` rounds? After the last one always."""
        return t % self.every == 0 or t == self.rounds

    def client(self, job: Job, memory: Memory, place: Place) -> Client:
        """The client of a job: what it kept and what it received, in one net."""
        data = self.federation.data(job.client)
        scale = data.train.scale
        return Client(
            job.client,
            job.t,
            deepcopy(self.template),
            data,
            job.tensors,
            memory,
            self.training,
            self.seed,
            self.algorithm.shared,
            lambda name, make: place.derived(job.client, name, scale, make),
        )


@dataclass(frozen=True)
class Job:
    """One client's work in one round."""

    kind: Literal["train", "evaluate"]
    t: int
    client: str
    tensors: Tensors
    average: Tensors = field(default_factory=Tensors)  # with "evaluate" only
    cost: int = 0  # examples to go through: the longest job starts first


def work(plan: Plan, job: Job, place: Place) -> Reply:
    """Do one job on one client: in a pool, on a cluster or on a device, always this."""
    begun = time.perf_counter()
    memory = place.memory(job.client, before=job.t)
    if job.kind == "evaluate":
        reply = evaluate(plan, job, memory, place)
    else:
        reply, memory = train(plan, job, memory, place)
        place.keep(job.client, job.t, memory)
    seconds = time.perf_counter() - begun
    return replace(reply, metrics={**reply.metrics, "seconds": seconds})


def train(plan: Plan, job: Job, memory: Memory, place: Place) -> tuple[Reply, Memory]:
    """Local training; what goes up, and what stays."""
    client = plan.client(job, memory, place)
    with seeded(plan.seed, "local", job.t, job.client):
        up = Tensors(plan.algorithm.local(client))
    for name, v in up.items():
        if v.is_floating_point() and not bool(torch.isfinite(v).all()):
            raise DivergedError(
                f"client {job.client}, round {job.t}: '{name}' of its update holds NaN or infinity;"
                " lower local.lr"
            )
    stays = client.stays()
    metrics = {f"loss/{phase}": value for phase, value in client.losses.items()}
    if plan.measured(job.t + 1):
        metrics["P_local"] = correct(client, [partial(plan.algorithm.predict, client)])[0]
    kept = {**client.memory, **({"net": stays} if stays else {})}
    aside = stays if plan.algorithm.common else Tensors()
    return Reply(job.client, up, len(client.data.train), metrics, aside), kept


def evaluate(plan: Plan, job: Job, memory: Memory, place: Place) -> Reply:
    """How many of its own test examples the client's model, and everybody's, get right."""
    algorithm, client = plan.algorithm, plan.client(job, memory, place)
    with seeded(plan.seed, "tune", job.t, job.client):
        algorithm.tune(client)
    models = [partial(algorithm.predict, client)]
    if algorithm.common:
        nobody = plan.client(job, {"net": job.average}, place)
        nobody.net.eval()
        if one_base(algorithm, client):
            client.net.base = nobody.net.base = Once(client.net.base)
        models.append(partial(algorithm.generic, nobody))
    counts = correct(client, models)
    metrics = dict(zip(("P", "G"), counts, strict=False))
    return Reply(job.client, Tensors(), len(client.data.test), metrics)


def correct(client: Client, models: Sequence[Callable[[Tensor], Tensor]]) -> list[int]:
    """Right answers of each model on the client's test examples."""
    client.net.eval()
    counts = [0] * len(models)
    with torch.inference_mode():
        for x, y in client.data.test.batches(EVALUATION_BATCH):
            for i, model in enumerate(models):
                counts[i] += int((model(x).argmax(1) == y).sum())
    return counts


def one_base(algorithm: Algorithm, client: Client) -> bool:
    """Do G and P rest on one and the same base? Then its features are computed once."""
    untouched = type(algorithm).tune is Algorithm.tune
    return untouched and not any(k.startswith("base.") for k in client.stays())


class Once(nn.Module):
    """A module that answers the same input object without computing it again."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.last: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.last is None or self.last[0] is not x:
            self.last = x, self.module(x)
        return self.last[1]
