"""The plan of a run: everything that decides its result; and a job: one client's work in one round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch

from ..algorithms import get_algorithm_name
from ..core.accelerator import Compute, computing, get_compute
from ..core.algorithm import POOLED_CLIENT, Algorithm, Reply, Server, build_parts, list_kinds
from ..core.client import Client, count_examples
from ..core.errors import ConfigError
from ..core.groups import is_small_and_plain, try_training
from ..core.net import Net, copy_module
from ..core.randomness import derive_seed, seeded
from ..core.samples import ClientData, Samples, place_data, place_samples
from ..core.tasks import Criterion, Metric, Task, get_task
from ..core.tensors import Kind, Memory, Tensors, mark_given, matches_any, state
from ..core.training import Training
from ..data.federation import Federation
from ..population.attacks import Attack, Faults
from ..population.availability import Speeds, hash_file
from ..population.participation import (
    Participation,
    Poisson,
    RandomParticipation,
    Skewed,
    Uniform,
    select_from_reachable,
)
from ..protection.base import Protection, RunFacts
from .client_store import ClientStore

NO_FAULTS = Faults()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Equal plans give results that are equal bit for bit, on every engine and with any workers."""

    algorithm: Algorithm
    model: Callable[[], Net]
    federation: Federation
    rounds: int
    participation: Participation
    training: Training = Training()
    training_of: Mapping[str, Training] = field(default_factory=dict)  # of clients with their own
    seed: int = 0
    evaluate_every: int = 1  # rounds between evaluations
    weights: Literal["samples", "uniform"] = "samples"  # of a client's reply in averages
    buffers: Literal["local", "average"] = "local"  # are BatchNorm's statistics personal or shared?
    new_client_rounds: int = 1  # rounds that a client which joins after training trains alone
    faults: Faults = NO_FAULTS
    speeds: Speeds = Speeds()
    clients_on_boards: bool = False  # if so, personal parameters are not averaged, not even for G
    share_personal: bool = False  # on boards, send them to the server all the same, if G needs them
    loss: Criterion | None = None  # the user's own; default: that of the task
    metrics: tuple[Metric, ...] = ()  # measured beside the task's score
    name: str = ""  # the name that the algorithm was chosen by; default: that of its class
    protections: tuple[Protection, ...] = ()  # of what travels, without those that change nothing
    attack: Attack = Attack()  # simulated bad clients
    choose_by: Literal["P", "G"] = "P"  # the validation score that decides the best round
    keep_best: bool = False  # keep the models of the best round on validation examples
    patience: int | None = None  # evaluations without a better validation score before the end
    secret: bytes = b""  # for noise; neither a configuration nor the network has it

    def __repr__(self) -> str:
        rounds = f"{self.rounds} round{'s' * (self.rounds != 1)}"
        return f"<Plan {self.algorithm!r}, {rounds}, seed {self.seed}: {self.federation!r}>"

    @property
    def algorithm_name(self) -> str:
        """Return the algorithm's name in events and results."""
        return self.name or get_algorithm_name(self.algorithm)

    @property
    def task(self) -> Task:
        """What is learned."""
        return get_task(self.federation.task)

    @cached_property
    def template(self) -> Net:
        """The initial network; every client gets a copy."""
        with seeded(self.seed, "init"):
            net: Net = self.build_net().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        mark_given(net)  # the conversion may have replaced the parameters
        return net

    @cached_property
    def trains_in_groups(self) -> bool:
        """Return True if small plain nets can train together; whether their bits allow it is tried."""
        used = (self.training, *self.training_of.values())
        return all(h.optimizer == "sgd" for h in used) and is_small_and_plain(self.template)

    def try_training(self, compute: Compute) -> str:
        """Try how plain passes of training run with the bits of autograd: "groups", "direct", "autograd"."""
        name = next((c for c, n in self.federation.sizes().items() if n), None)
        if not compute.fast or compute.precision != "float32" or name is None:
            return "autograd"
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in every worker
        try:
            with computing(compute):
                samples = self.load_data(name, compute).train
                net = compute.place_net(copy_module(self.template))
                how = self.get_training(name)
                return try_training(net, self.loss or self.task.loss, how, samples)
        finally:
            torch.set_num_threads(threads)

    def build_net(self) -> Net:
        """Build a new network, with what the algorithm adds to it."""
        net = self.model()
        net.shape, net.classes = self.federation.shape, self.federation.classes
        net.task = self.federation.task
        net = build_parts(self.algorithm, net)
        check_personal_patterns(self.algorithm, net)
        return net

    @property
    def buffer_names(self) -> frozenset[str]:
        """Names of the tensors that the network measures instead of learning them."""
        return frozenset(k for k, _ in self.template.named_buffers())

    @property
    def start_sha256(self) -> str:
        """Digest of the initial network, with what is given."""
        return Tensors(self.template.state_dict()).digest()

    @property
    def given(self) -> Tensors:
        """The tensors that were frozen when the run began: the same for everybody, never sent."""
        names = self.list_names(self.template, 0, "given")
        tensors = self.template.state_dict()
        return Tensors({k: tensors[k] for k in names})

    @property
    def personal_stays_on_board(self) -> bool:
        """Return True if personal parameters never reach the server, not even to measure G."""
        return self.clients_on_boards and not self.share_personal

    def __getstate__(self) -> dict[str, Any]:
        computed = ("template", "kinds_of_round", "block_forms")
        return {k: v for k, v in self.__dict__.items() if k not in computed}

    def create_initial_server(self) -> Server:
        """Create the server's state before the first round."""
        initial = state(self.template)
        model, personal = (
            Tensors({k: initial[k] for k in self.list_names(self.template, 0, kind)})
            for kind in ("shared", "personal")
        )
        average = Tensors() if self.personal_stays_on_board else personal
        return Server(0, self.federation.sizes(), model, average=average)

    def select_clients(
        self, t: int, clock: float = 0.0, available: Sequence[str] | None = None
    ) -> list[str]:
        """Select the clients of round ``t``, which begins at ``clock`` of the simulated time.

        ``available`` are the clients that the engine can give work to; default: all.
        """
        clients = self.federation.clients
        if self.algorithm.pooled:
            return [POOLED_CLIENT]
        candidates = clients if available is None else available
        reachable = self.faults.list_reachable(t, candidates, clock, self.seed)
        if self.algorithm.everybody:
            return reachable
        return select_from_reachable(self.participation, t, clients, reachable, self.selection_seed)

    @property
    def selection_seed(self) -> int:
        """The seed that selects clients. Where privacy relies on it, no client may know it."""
        hidden = isinstance(self.participation, Poisson) and self.secret
        return derive_seed("participation", self.secret) if hidden else self.seed

    @property
    def expected_replies(self) -> float | None:
        """The expected number of replies, if every client is drawn independently of the others."""
        rule, clients = self.participation, len(self.federation.clients)
        if self.algorithm.everybody or not isinstance(rule, Poisson):
            return None
        return rule.compute_rate(clients) * clients

    @property
    def needs_secret(self) -> bool:
        """Return True if a protection draws noise that nobody else may know."""
        return any(p.needs_secret for p in self.protections)

    def count_fedavg_examples(self, t: int, trained: Sequence[str], clock: float = 0.0) -> int:
        """Count the examples that FedAvg would have gone through in round ``t``.

        ``trained`` are the clients that trained in it. If the algorithm trains others than the
        selected ones, those count that FedAvg would have selected.
        """
        clients = self.federation.clients
        if self.algorithm.everybody or self.algorithm.pooled:
            reachable = self.faults.list_reachable(t, clients, clock, self.seed)
            trained = select_from_reachable(self.participation, t, clients, reachable, self.seed)
        sizes, net = self.federation.sizes(), self.template
        counts = Counter((sizes[c], self.get_training(c)) for c in trained)
        return sum(count_examples(net, n, how) * k for (n, how), k in counts.items())

    def get_training(self, client: str) -> Training:
        """Return how a client trains."""
        return self.training_of.get(client, self.training)

    def derive_draw_seed(self, turn: int) -> int:
        """Return the seed of a client's random draws; it differs if it trains again in a round."""
        return derive_seed(self.seed, "turn", turn) if turn else self.seed

    @property
    def file_digests(self) -> dict[str, str]:
        """SHA-256 of every file that decides availability or speeds."""
        files = [getattr(self.faults.availability, "file", None), self.speeds.file]
        return {f: hash_file(f) for f in files if f}

    @property
    def fault_free(self) -> bool:
        """Return True if nothing fails and no time is simulated.

        An algorithm that trains on pooled data has no clients that could fail.
        """
        undisturbed = self.faults == NO_FAULTS and not self.speeds.simulates_time
        return undisturbed or self.algorithm.pooled

    def list_kinds(self, net: Net, t: int) -> dict[str, Kind]:
        """Say of each tensor of a net whether it is shared in round ``t``, personal or given."""
        return list_kinds(self.algorithm, net, t, buffers=self.buffers == "average")

    def list_kinds_of_copy(self, net: Net, t: int) -> Mapping[str, Kind]:
        """Do the same for a copy of the initial net; the copies of a round are all alike."""
        if t not in self.kinds_of_round:
            self.kinds_of_round.clear()
            self.kinds_of_round[t] = self.list_kinds(net, t)
        return self.kinds_of_round[t]

    @cached_property
    def kinds_of_round(self) -> dict[int, dict[str, Kind]]:
        return {}

    @cached_property
    def block_forms(self) -> dict[int, Literal["rows", "stack", "alone"]]:
        """By number of examples, in which block clients can be evaluated with their bits."""
        return {}

    def list_names(self, net: Net, t: int, kind: Kind) -> list[str]:
        """List the names of the tensors of one kind in round ``t``."""
        return [k for k, found in self.list_kinds(net, t).items() if found == kind]

    def is_evaluated(self, t: int) -> bool:
        """Return True if G and P are measured after ``t`` rounds; after the last one always."""
        return t % self.evaluate_every == 0 or t == self.rounds

    @property
    def effective_new_client_rounds(self) -> int:
        """Rounds that a new client trains alone; none if the algorithm trains on pooled data."""
        return 0 if self.algorithm.pooled else self.new_client_rounds

    def load_data(self, client: str, compute: Compute) -> ClientData:
        """Load a client's data for a job; those of a simulated bad client may be falsified."""
        data = self.federation.data(client)
        if self.attack.is_active:
            data = self.attack.falsify_labels(data, client, self.federation.clients, self.seed)
        compute.resident.serve(self.federation)
        return place_data(data, compute, client)

    def build_client(
        self,
        job: Job,
        memory: Memory,
        client_store: ClientStore,
        kind: Callable[..., Client] = Client,
    ) -> Client:
        """Build the client of a job from its memory and the tensors it received, on its device."""
        compute = get_compute()
        data = self.load_data(job.client, compute)

        def load_derived(name: str, make: Callable[[], Samples]) -> Samples:
            derived = client_store.load_derived_samples(job.client, name, data.train.scale, make)
            # derived images are transformed in training as the originals are
            derived = replace(derived, image_transform=data.train.image_transform)
            return place_samples(derived, compute)

        # with pooled data, draw as the first client: then a federation of one gives the same bits
        client_id = self.federation.clients[0] if job.client == POOLED_CLIENT else job.client
        return kind(
            id=client_id,
            t=job.t,
            net=compute.place_net(copy_module(self.template)),
            data=data,
            received=compute.place(job.tensors),
            memory=compute.place_memory(memory),
            training=self.get_training(job.client),
            seed=self.seed,
            rounds=self.rounds,
            list_kinds=self.list_kinds_of_copy,
            cache_derived=load_derived,
            draw_seed=self.derive_draw_seed(job.turn),
            loss=self.loss or self.task.loss,
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """The work of one client in one round."""

    kind: Literal["train", "evaluate", "join", "other"]
    t: int
    client: str
    tensors: Tensors  # what the server sends to the client
    generic_model: Tensors = field(default_factory=Tensors)  # all of it; not needed to train
    cost: int = 0  # number of examples; engines start the most expensive jobs first
    turn: int = 0  # counts from 0 if a client is drawn several times in one round
    keeps_memory: bool = True  # store its memory afterwards? Of several turns, only of the last
    custom_work: Callable[[Plan, Job, ClientStore], Reply] | None = None  # for kind "other"


def check_personal_patterns(algorithm: Algorithm, net: Net) -> None:
    """Refuse a pattern that matches no tensor of a part that the net has: it would do nothing."""
    names = list(net.state_dict())
    for pattern in algorithm.personal:
        part = pattern.partition(".")[0]
        inside = [name for name in names if name.startswith(f"{part}.")]
        if inside and not any(matches_any(name, [pattern]) for name in inside):
            raise ConfigError(
                f"algorithm {get_algorithm_name(algorithm)}: personal = '{pattern}' matches no tensor"
                f" of the net; '{part}' has {', '.join(inside)}"
            )


KINDS: dict[type, str] = {Poisson: "poisson", Uniform: "uniform", Skewed: "skewed"}


def describe_selection(
    algorithm: Algorithm, participation: Participation, clients: int
) -> tuple[str, float | None]:
    """Return how clients are selected, and the share of them in a round; None if it varies."""
    if algorithm.everybody:
        return "everybody", 1.0
    rate = None
    if isinstance(participation, Poisson):
        rate = participation.compute_rate(clients)
    elif isinstance(participation, RandomParticipation):
        rate = participation.compute_sample_size(clients) / clients
    return KINDS.get(type(participation), "own"), rate


def describe_plan(plan: Plan) -> RunFacts:
    """Collect the facts of a plan."""
    clients = len(plan.federation.clients)
    kind, rate = describe_selection(plan.algorithm, plan.participation, clients)
    return RunFacts(
        rounds=plan.rounds,
        clients=clients,
        participation_kind=kind,
        rate=rate,
        weights=plan.weights,
        batch=plan.training.batch,
        shares_buffers=plan.buffers == "average",
        unreliable=plan.faults.is_unreliable,
        attacked=plan.attack.is_active,
        protections=plan.protections,
    )
