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

from ..algorithms import get_algorithm_name
from ..core.algorithm import POOLED_CLIENT, Algorithm, Reply, Server
from ..core.client import Client, Memory, Training, state
from ..core.errors import DivergedError
from ..core.net import Net
from ..core.randomness import derive_seed, seeded
from ..core.samples import Samples
from ..core.tensors import Tensors
from ..data.federation import Federation
from ..population.device_speeds import Devices
from ..population.faults import Faults
from ..population.participation import Participation, select_from_reachable
from ..population.per_client_file import hash_file
from .client_store import ClientStore

EVALUATION_BATCH = 250  # as fast as larger ones, and workers stay small


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Equal plans give equal bits, wherever and by however many workers they are played."""

    algorithm: Algorithm
    model: Callable[[], Net]
    federation: Federation
    rounds: int
    participation: Participation
    training: Training = Training()
    seed: int = 0
    evaluate_every: int = 1  # rounds between evaluations
    weights: Literal["samples", "uniform"] = "samples"  # what a client counts in a mean
    buffers: Literal["local", "average"] = "local"  # do running statistics stay or travel?
    new_client_rounds: int = 1  # that whoever joins after training plays alone
    faults: Faults = Faults()
    devices: Devices = Devices()
    clients_on_devices: bool = (
        False  # are clients on devices, where what stays is not even averaged for G?
    )
    share_personal: bool = False  # there, is it sent aside all the same, where G needs it?
    name: str = ""  # of the algorithm, where it was chosen by name; default: by its class

    @property
    def algorithm_name(self) -> str:
        """Return the algorithm's name in events and results."""
        return self.name or get_algorithm_name(self.algorithm)

    @cached_property
    def template(self) -> Net:
        """The net as it is before round 0; clients get copies."""
        with seeded(self.seed, "init"):
            net = self.model()
            net.shape = self.federation.shape
            net = self.algorithm.build(net)
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    @property
    def buffer_names(self) -> frozenset[str]:
        """Names of what the net measures and does not learn."""
        return frozenset(k for k, _ in self.template.named_buffers())

    @property
    def start_sha256(self) -> str:
        """Of the net as it is before round 0, everything in it."""
        return state(self.template).digest()

    @property
    def personal_stays_on_device(self) -> bool:
        """Does what stays not even go aside, to be averaged for G?"""
        return self.clients_on_devices and not self.share_personal

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "template"}

    def create_initial_server(self) -> Server:
        """The server before the first round."""
        names = set(self.list_shared_names(self.template, 0))
        now = state(self.template)
        model = Tensors({k: v for k, v in now.items() if k in names})
        stays = Tensors(
            {k: v for k, v in now.items() if k not in names and not self.personal_stays_on_device}
        )
        return Server(0, self.federation.sizes(), model, average=stays)

    def select_clients(
        self, t: int, now: float = 0.0, present: Sequence[str] | None = None
    ) -> list[str]:
        """Who is asked to train in round ``t``, which begins at ``now`` of the simulated clock.

        ``present`` are those the engine can give work to: everybody, unless it says otherwise.
        """
        clients = self.federation.clients
        if self.algorithm.pooled:
            return [POOLED_CLIENT]
        here = clients if present is None else present
        reachable = self.faults.list_reachable(t, here, now, self.seed)
        if self.algorithm.everybody:
            return reachable
        return select_from_reachable(self.participation, t, clients, reachable, self.seed)

    def derive_draw_seed(self, turn: int) -> int:
        """The seed of what a client draws in one of its turns."""
        return derive_seed(self.seed, "turn", turn) if turn else self.seed

    @property
    def file_digests(self) -> dict[str, str]:
        """The sha256 of every file that says what goes wrong, and when."""
        named = [getattr(self.faults.availability, "file", None), self.devices.file]
        return {f: hash_file(f) for f in named if f}

    @property
    def fault_free(self) -> bool:
        """Does nothing go wrong, and no simulated time pass? Who holds all data is no device."""
        undisturbed = self.faults == Faults() and not self.devices.simulates_time
        return undisturbed or self.algorithm.pooled

    def list_shared_names(self, net: Net, t: int) -> list[str]:
        """Names of the tensors that travel in round ``t``."""
        return self.algorithm.shared(net, t, buffers=self.buffers == "average")

    def is_evaluated(self, t: int) -> bool:
        """Are G and P measured after ``t`` rounds? After the last one always."""
        return t % self.evaluate_every == 0 or t == self.rounds

    @property
    def effective_new_client_rounds(self) -> int:
        """Those of a newcomer; where one trains for everybody, it takes what there is."""
        return 0 if self.algorithm.pooled else self.new_client_rounds

    def build_client(
        self, job: Job, memory: Memory, place: ClientStore, kind: type[Client] = Client
    ) -> Client:
        """The client of a job: what it kept and what it received, in one net."""
        data = self.federation.data(job.client)

        def load_derived(name: str, make: Callable[[], Samples]) -> Samples:
            found = place.load_derived_samples(job.client, name, data.train.scale, make)
            # derived images are transformed in training as the originals are
            return replace(found, image_transform=data.train.image_transform)

        # whoever holds everybody's data draws as the first client would: alone, they are the same
        who = self.federation.clients[0] if job.client == POOLED_CLIENT else job.client
        return kind(
            who,
            job.t,
            deepcopy(self.template),
            data,
            job.tensors,
            memory,
            self.training,
            self.seed,
            self.rounds,
            self.list_shared_names,
            load_derived,
            self.derive_draw_seed(job.turn),
        )


@dataclass(frozen=True)
class Job:
    """One client's work in one round."""

    kind: Literal["train", "evaluate", "join", "other"]
    t: int
    client: str
    tensors: Tensors
    generic_model: Tensors = field(
        default_factory=Tensors
    )  # not for "train": everybody's net, whole
    cost: int = 0  # examples to go through: the longest job starts first
    turn: int = 0  # of a client that is drawn several times in a round: all start from the same
    keeps_memory: bool = (
        True  # is what it holds afterwards kept? Of several turns, that of the last
    )
    custom_work: Callable[[Plan, Job, ClientStore], Reply] | None = (
        None  # of kind "other", as in an audit
    )


def work(plan: Plan, job: Job, place: ClientStore) -> Reply:
    """Do one job on one client: in a pool, on a cluster or on a device, always this."""
    begun = time.perf_counter()
    memory = place.load_memory(job.client, before=job.t)
    if job.custom_work is not None:
        reply = job.custom_work(plan, job, place)
    elif job.kind == "evaluate":
        kept = place.digest_memory(job.client, before=job.t) if job.t == plan.rounds else ""
        reply = replace(evaluate(plan, job, memory, place), kept=kept)
    elif job.kind == "join":
        reply = join(plan, job, place)
        reply = replace(reply, kept=place.digest_memory(job.client, before=job.t + 1))
    else:
        reply, memory = train(plan, job, memory, place)
        if job.keeps_memory:
            place.save_memory(job.client, job.t, memory)
    seconds = time.perf_counter() - begun
    return replace(reply, metrics={**reply.metrics, "seconds": seconds})


def train(plan: Plan, job: Job, memory: Memory, place: ClientStore) -> tuple[Reply, Memory]:
    """Local training; what goes up, and what stays."""
    client = plan.build_client(job, memory, place)
    up = train_locally(plan, job, client)
    stays, samples = client.stays(), len(client.data.train)
    metrics = dict(client.metrics)
    if plan.is_evaluated(job.t + 1) and not has_tuning(
        plan.algorithm
    ):  # untuned, it would not be its P
        own = partial(plan.algorithm.predict, client)
        metrics["P_local"] = count_correct(client, [own], client.data.test)[0]
    kept = {**client.memory, **({"net": stays} if stays else {})}
    aside = stays if needs_personal_average(plan, job, place) else Tensors()
    weight = samples if plan.weights == "samples" else 1
    reply = Reply(job.client, "train", up, samples, weight, metrics, aside)
    return replace(reply, turn=job.turn, examples=client.examples), kept


def needs_personal_average(plan: Plan, job: Job, place: ClientStore) -> bool:
    """Does what stays go aside, to be averaged for G? On devices only where G needs it, and may."""
    if not plan.algorithm.common or not plan.clients_on_devices:
        return plan.algorithm.common
    if plan.personal_stays_on_device:
        return False
    anybody = {"net": state(plan.template)}
    return needs_personal_parameters(
        plan, plan.build_client(replace(job, tensors=Tensors()), anybody, place)
    )


def train_locally(plan: Plan, job: Job, client: Client) -> Tensors:
    """What the algorithm does on a client; returns what goes up."""
    with seeded(plan.derive_draw_seed(job.turn), "local", job.t, job.client):
        up = Tensors(plan.algorithm.local(client))
    for name, v in up.items():
        if v.is_floating_point() and not bool(torch.isfinite(v).all()):
            raise DivergedError(
                f"client {job.client}, round {job.t}: '{name}' of its update holds NaN or infinity;"
                " lower local.lr"
            )
    return up


def join(plan: Plan, job: Job, place: ClientStore) -> Reply:
    """A newcomer: measured as it arrives, then after rounds of its own, which nobody merges.

    Every round begins with what the server sends, which is always the same; what stays goes on.
    """
    arrived = plan.build_client(job, {}, place)
    before = count_correct(arrived, [partial(plan.algorithm.predict, arrived)], arrived.data.test)[
        0
    ]
    memory: Memory = {}
    for t in range(job.t, job.t + plan.effective_new_client_rounds):
        client = plan.build_client(replace(job, t=t), memory, place)
        train_locally(plan, replace(job, t=t), client)
        memory = {**client.memory, "net": state(client.net)}
    place.save_memory(job.client, job.t, memory)
    joined = replace(job, tensors=select_tensors_after_joining(plan.algorithm, job.tensors, memory))
    reply = evaluate(plan, joined, memory, place)
    return replace(reply, kind="join", metrics={**reply.metrics, "before": before})


def select_tensors_after_joining(algorithm: Algorithm, sent: Tensors, memory: Memory) -> Tensors:
    """What a newcomer takes from the server to predict: its net is the one it trained, all of it.

    Where an algorithm tunes, that begins with what the server sends, as for everybody.
    """
    return sent.only("*/*") if memory and not has_tuning(algorithm) else sent


def evaluate(plan: Plan, job: Job, memory: Memory, place: ClientStore) -> Reply:
    """How many of its own test examples the client's model, and everybody's, get right.

    And, of the same models, how many of those that it holds out for validation.
    """
    algorithm, client = plan.algorithm, plan.build_client(job, memory, place)
    models = dict[str, Callable[[Tensor], Tensor]]()
    if job.t == plan.rounds or algorithm.ready(job.t):
        with seeded(plan.seed, "tune", job.t, job.client):
            algorithm.tune(client)
        models["P"] = partial(algorithm.predict, client)
    nobody = plan.build_client(replace(job, tensors=Tensors()), {"net": job.generic_model}, place)
    if algorithm.common and is_generic_model_known(plan, nobody):
        if has_same_base(algorithm, client, nobody):
            cache_last_output(client.net.base)
            nobody.net.base = client.net.base
        models["G"] = partial(algorithm.generic, nobody)
    right = count_correct(client, list(models.values()), client.data.test)
    metrics = dict(zip(models, right, strict=True))
    if plan.federation.validates:  # read here, so that no algorithm ever sees them
        held_out = plan.federation.samples(job.client, "validation")
        right = count_correct(client, list(models.values()), held_out)
        metrics |= {f"{k}_valid": n for k, n in zip(models, right, strict=True)}
    tested = len(client.data.test)
    return Reply(job.client, "evaluate", Tensors(), tested, tested, metrics)


def count_correct(
    client: Client, models: Sequence[Callable[[Tensor], Tensor]], samples: Samples
) -> list[int]:
    """Right answers of each of the client's models on these examples; none where there are none."""
    client.net.eval()
    counts = [0] * len(models)
    with torch.inference_mode():
        for x, y in samples.batches(EVALUATION_BATCH) if len(samples) else ():
            for i, model in enumerate(models):
                counts[i] += int((model(x).argmax(1) == y).sum())
    return counts


def is_generic_model_known(plan: Plan, nobody: Client) -> bool:
    """Is everybody's net known as far as G needs it? On devices only what is sent is."""
    nobody.net.eval()
    return not plan.personal_stays_on_device or not needs_personal_parameters(plan, nobody)


def needs_personal_parameters(plan: Plan, nobody: Client) -> bool:
    """Does G need what does not travel? That is made NaN: it shows in what comes out."""
    nobody.net.eval()
    travels = set(plan.list_shared_names(nobody.net, nobody.t))
    stays = [v for k, v in nobody.net.state_dict().items() if k not in travels]
    if not stays:
        return False
    with torch.inference_mode():
        for v in stays:
            if v.is_floating_point():
                v.fill_(torch.nan)
        x, _ = next(iter(nobody.data.test.batches(EVALUATION_BATCH)))
        return not bool(torch.isfinite(plan.algorithm.generic(nobody, x)).all())


def has_tuning(algorithm: Algorithm) -> bool:
    """Does a client's model change before it predicts?"""
    return type(algorithm).tune is not Algorithm.tune


def has_same_base(algorithm: Algorithm, client: Client, nobody: Client) -> bool:
    """Do G and P rest on one and the same base? Then its features are computed once."""
    bases = [state(c.net).only("base.*") for c in (client, nobody)]
    return not has_tuning(algorithm) and all(
        torch.equal(v, bases[1][k]) for k, v in bases[0].items()
    )


def cache_last_output(module: nn.Module) -> None:
    """Let a module answer the same input, with the same weights, without computing it again."""
    compute = module.forward
    last: list[tuple[Tensor, Tensor | None, Tensor]] = []

    def forward(x: Tensor) -> Tensor:
        weight = next(module.parameters(), None)  # functional_call puts other weights in its place
        if not (last and last[0][0] is x and last[0][1] is weight):
            last[:] = [(x, weight, compute(x))]
        return last[0][2]

    module.forward = forward
