"""The plan of a run: everything that decides its result; and a job: one client's work in one round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import nn

from ..algorithms import get_algorithm_name
from ..core.accelerator import Compute, computing, get_compute
from ..core.algorithm import POOLED_CLIENT, Algorithm, Reply, Server, build_parts, list_kinds
from ..core.client import Client, count_examples
from ..core.errors import ConfigError
from ..core.groups import find_fastest_training, is_small_and_plain
from ..core.net import Net, copy_module
from ..core.randomness import derive_seed, seeded
from ..core.samples import ClientData, Samples, place_data, place_samples
from ..core.tasks import TASKS, Criterion, Metric, Task
from ..core.tensors import Kind, Memory, Tensors, copy_net, mark_given, matches_any, state
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
    """The plan of a run: everything that decides its result.

    Equal plans give results that are equal bit for bit, on every engine and with any number of workers.
    """

    algorithm: Algorithm
    model: Callable[[], Net]  # builds the net; if nets differ, the first group's net
    federation: Federation
    rounds: int
    participation: Participation
    training: Training = Training()
    # only for clients that differ from the others
    training_of: Mapping[str, Training] = field(default_factory=dict)
    seed: int = 0
    evaluate_every: int = 1  # rounds between evaluations
    weights: Literal["samples", "uniform"] = "samples"  # how a client's reply counts in averages
    # whether BatchNorm's statistics are personal or shared
    buffers: Literal["local", "average"] = "local"
    new_client_rounds: int = 1  # rounds of training for clients that join after training
    faults: Faults = NO_FAULTS
    speeds: Speeds = Speeds()
    clients_on_boards: bool = False  # personal parameters are then not averaged, not even for G
    share_personal: bool = False  # send them from boards anyway if G needs them
    loss: Criterion | None = None  # the user's own loss; default: the task's loss
    metrics: tuple[Metric, ...] = ()  # metrics besides the task's score
    confusion: bool = False  # whether to count each pair of true and predicted class
    name: str = ""  # name by which the algorithm was chosen; default: derived from its class
    # only active protections, in the order in which they are applied
    protections: tuple[Protection, ...] = ()
    attack: Attack = Attack()  # simulated malicious clients
    choose_by: Literal["P", "G"] = "P"  # validation score that determines the best round
    keep_best: bool = False  # keep the models of the best round on validation examples
    # evaluations without a better validation score before the run stops
    patience: int | None = None
    # if clients have different nets: their builders by name, and the name of each client's net
    nets: Mapping[str, Callable[[], Net]] = field(default_factory=dict)
    net_of: Mapping[str, str] = field(default_factory=dict)
    secret: bytes = b""  # seeds the noise; never stored in a configuration or sent

    def __repr__(self) -> str:
        rounds = f"{self.rounds} round{'s' * (self.rounds != 1)}"
        return f"<Plan {self.algorithm!r}, {rounds}, seed {self.seed}: {self.federation!r}>"

    @property
    def algorithm_name(self) -> str:
        """The algorithm's name in events and results."""
        return self.name or get_algorithm_name(self.algorithm)

    @property
    def task(self) -> Task:
        """The task of the run."""
        return TASKS[self.federation.task]

    @cached_property
    def template(self) -> Net:
        """The initial net; every client gets a copy.

        If clients have different nets, this is the net with the largest shared tensors, as on the server.
        """
        return max(self.templates.values(), key=self.count_shared)  # the first if equally large

    @cached_property
    def templates(self) -> dict[str, Net]:
        """The initial nets by name; a net that all clients have in common has the empty name."""
        return {name: self.build_template(name) for name in self.nets or ("",)}

    def get_template(self, client: str) -> Net:
        """Return the initial net of a client."""
        return self.templates[self.net_of[client]] if client in self.net_of else self.template

    def build_template(self, name: str) -> Net:
        """Build an initial net, using draws that do not depend on where it is built or on the other nets."""
        others = self.plain_nets
        with seeded(self.seed, "init"):
            net: Net = self.build_net(name, others).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        mark_given(net)  # the conversion may have replaced the parameters
        return net

    @cached_property
    def plain_nets(self) -> tuple[Net, ...]:
        """If clients have different nets: all nets, without the parts that the algorithm adds."""
        return tuple(map(self.build_plain_net, self.nets.values()))

    def build_plain_net(self, build: Callable[[], Net]) -> Net:
        """Build a plain net with the same initial weights as in a run that has only this net."""
        with seeded(self.seed, "init"):
            net = build()
        net.shape, net.classes = self.federation.shape, self.federation.classes
        net.task = self.federation.task
        return net

    def count_shared(self, net: Net) -> int:
        """Count the entries of all shared tensors of a net."""
        tensors = net.state_dict()
        return sum(tensors[k].numel() for k in self.list_names(net, 0, "shared"))

    @cached_property
    def trains_in_groups(self) -> bool:
        """Return True if the run has small plain nets; their clients train together where bits stay equal."""
        used = (self.training, *self.training_of.values())
        return all(h.optimizer == "sgd" for h in used) and any(
            map(is_small_and_plain, self.templates.values())
        )

    def find_fastest_training(self, compute: Compute) -> str:
        """Return the fastest way to train with the same bits as autograd: "groups", "direct" or "autograd"."""
        name = next((c for c, n in self.federation.sizes().items() if n), None)
        if not compute.fast or compute.precision != "float32" or name is None:
            return "autograd"
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as every worker does
        try:
            with computing(compute):
                samples = self.load_data(name, compute).train
                net = compute.place_net(copy_module(self.get_template(name)))
                how = self.get_training(name)
                return find_fastest_training(net, self.loss or self.task.loss, how, samples)
        finally:
            torch.set_num_threads(threads)

    def build_net(self, name: str = "", others: tuple[Net, ...] = ()) -> Net:
        """Build a new net, with the parts that the algorithm adds.

        In a run with different nets, ``name`` selects one, and ``others`` are all of them.
        """
        net = self.nets[name]() if name else self.model()
        net.shape, net.classes = self.federation.shape, self.federation.classes
        net.task = self.federation.task
        if others and self.algorithm.needs_nets == "same_head":
            match_head(net, others[0])
        net.others = others
        net = build_parts(self.algorithm, net)
        net.others = ()  # copies do not need them
        check_personal_patterns(self.algorithm, net)
        return net

    @property
    def buffer_names(self) -> frozenset[str]:
        """Names of the buffers: tensors that are measured rather than learned, such as running statistics."""
        return frozenset(k for net in self.templates.values() for k, _ in net.named_buffers())

    @property
    def start_sha256(self) -> str:
        """The digest of the initial net or nets, including given tensors."""
        return self.join_net_tensors(
            Tensors(net.state_dict()) for net in self.templates.values()
        ).digest()

    @property
    def given(self) -> Tensors:
        """The tensors that were frozen when the run started: equal in every copy of a net, never sent."""
        return self.join_net_tensors(
            Tensors(net.state_dict()).only(*self.list_names(net, 0, "given"))
            for net in self.templates.values()
        )

    def join_net_tensors(self, of_nets: Iterable[Tensors]) -> Tensors:
        """Join the tensors of all initial nets; if clients have different nets, prefix them with the net's name."""
        parts = zip(self.templates, of_nets, strict=True)
        return Tensors({f"{n}|{k}" if n else k: v for n, part in parts for k, v in part.items()})

    @property
    def averages_personal(self) -> bool:
        """Return True if personal parameters are averaged to measure G.

        They are not averaged if clients have different nets, or if the parameters must not leave a board.
        """
        stays = self.clients_on_boards and not self.share_personal
        return not stays and not self.net_of

    def __getstate__(self) -> dict[str, Any]:
        computed = ("template", "templates", "plain_nets", "kinds_of_round", "block_forms")
        return {k: v for k, v in self.__dict__.items() if k not in computed}

    def create_initial_server(self) -> Server:
        """Create the server's state before the first round."""
        initial = state(self.template)
        model, personal = (
            Tensors({k: initial[k] for k in self.list_names(self.template, 0, kind)})
            for kind in ("shared", "personal")
        )
        average = personal if self.averages_personal else Tensors()
        return self.complete_server(Server(0, self.federation.sizes(), model, average=average))

    def complete_server(self, server: Server) -> Server:
        """Add to a server's state what a commit does not hold: buffer names and narrow nets' shapes."""
        shapes = dict[str, Mapping[str, tuple[int, ...]]]()
        if self.algorithm.needs_nets == "slices":
            of_net = {name: self.list_shapes(net) for name, net in self.templates.items()}
            shapes = {client: of_net[name] for client, name in self.net_of.items()}
        return replace(server, statistics=self.buffer_names, shapes=shapes)

    def list_shapes(self, net: Net) -> dict[str, tuple[int, ...]]:
        """List the shapes of a net's shared tensors."""
        tensors = net.state_dict()
        return {k: tuple(tensors[k].shape) for k in self.list_names(net, 0, "shared")}

    def select_clients(
        self, t: int, clock: float = 0.0, available: Sequence[str] | None = None
    ) -> list[str]:
        """Select the clients of round ``t``, which starts at the simulated time ``clock``.

        ``available`` lists the clients to which the engine can give a job; default: all clients.
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
        """The seed that selects clients. If privacy relies on the selection, clients must not know the seed."""
        hidden = isinstance(self.participation, Poisson) and self.secret
        return derive_seed("participation", self.secret) if hidden else self.seed

    @property
    def expected_replies(self) -> float | None:
        """The expected number of replies if clients are selected independently of each other."""
        rule, clients = self.participation, len(self.federation.clients)
        if self.algorithm.everybody or not isinstance(rule, Poisson):
            return None
        return rule.compute_rate(clients) * clients

    @property
    def needs_secret(self) -> bool:
        """Return True if a protection draws noise that must be kept secret."""
        return any(p.needs_secret for p in self.protections)

    def count_fedavg_examples(self, t: int, trained: Sequence[str], clock: float = 0.0) -> int:
        """Count the examples that FedAvg would have trained on in round ``t``.

        ``trained`` lists the clients that trained in that round. If the algorithm does not train the selected
        clients, the clients that FedAvg would have selected are counted instead.
        """
        clients = self.federation.clients
        if self.algorithm.everybody or self.algorithm.pooled:
            reachable = self.faults.list_reachable(t, clients, clock, self.seed)
            trained = select_from_reachable(self.participation, t, clients, reachable, self.seed)
        sizes, net_of = self.federation.sizes(), self.net_of
        counts = Counter((net_of.get(c, ""), sizes[c], self.get_training(c)) for c in trained)
        nets = {"": self.template, **self.templates}
        return sum(count_examples(nets[net], n, how) * k for (net, n, how), k in counts.items())

    def get_training(self, client: str) -> Training:
        """Return the training settings of a client."""
        return self.training_of.get(client, self.training)

    def derive_draw_seed(self, turn: int) -> int:
        """Return the seed of a client's random draws; it differs if the client trains again in a round."""
        return derive_seed(self.seed, "turn", turn) if turn else self.seed

    @property
    def file_digests(self) -> dict[str, str]:
        """The SHA-256 of every availability or speeds file."""
        files = [getattr(self.faults.availability, "file", None), self.speeds.file]
        return {f: hash_file(f) for f in files if f}

    @property
    def fault_free(self) -> bool:
        """Return True if nothing fails and no time is simulated.

        An algorithm that trains on pooled data is always fault-free: it has no clients that could fail.
        """
        undisturbed = self.faults == NO_FAULTS and not self.speeds.simulates_time
        return undisturbed or self.algorithm.pooled

    def list_kinds(self, net: Net, t: int) -> dict[str, Kind]:
        """Return the kind of each tensor of a net in round ``t``: shared, personal or given."""
        return list_kinds(self.algorithm, net, t, buffers=self.buffers == "average")

    def list_kinds_of_copy(self, template: Net, net: Net, t: int) -> Mapping[str, Kind]:
        """Return the kind of each tensor in a client's net, a copy of ``template``, from the round's cache."""
        key = (id(template), t)
        if key not in self.kinds_of_round:
            for old in [k for k in self.kinds_of_round if k[1] != t]:
                del self.kinds_of_round[old]
            self.kinds_of_round[key] = self.list_kinds(net, t)
        return self.kinds_of_round[key]

    @cached_property
    def kinds_of_round(self) -> dict[tuple[int, int], dict[str, Kind]]:
        """Cache of ``list_kinds_of_copy``: by template and round, the kind of each tensor."""
        return {}

    @cached_property
    def block_forms(self) -> dict[int, Literal["rows", "stack", "alone"]]:
        """Cache of block evaluation: for each number of examples, the form of batching that changes no bit."""
        return {}

    def list_names(self, net: Net, t: int, kind: Kind) -> list[str]:
        """List the names of the tensors of one kind in round ``t``."""
        return [k for k, found in self.list_kinds(net, t).items() if found == kind]

    def is_evaluated(self, t: int) -> bool:
        """Return True if G and P are measured after ``t`` rounds, as they always are after the last round."""
        return t % self.evaluate_every == 0 or t == self.rounds

    @property
    def effective_new_client_rounds(self) -> int:
        """How many rounds a new client trains on its own; 0 if the algorithm trains on pooled data."""
        return 0 if self.algorithm.pooled else self.new_client_rounds

    def load_data(self, client: str, compute: Compute) -> ClientData:
        """Load a client's data for a job; a simulated malicious client may get falsified data."""
        data = self.federation.data(client)
        if self.attack.is_active:
            data = self.attack.falsify_labels(data, client, self.federation.clients, self.seed)
        compute.resident.serve_federation(self.federation)
        return place_data(data, compute, client)

    def build_client(
        self,
        job: Job,
        memory: Memory,
        client_store: ClientStore,
        kind: Callable[..., Client] = Client,
        generic: bool = False,
    ) -> Client:
        """Build the client of a job on its device, from its memory and the tensors it received.

        If ``generic`` is true, it gets the server's net.
        """
        compute = get_compute()
        template = self.template if generic else self.get_template(job.client)
        data = self.load_data(job.client, compute)

        def load_derived(name: str, make: Callable[[], Samples]) -> Samples:
            derived = client_store.load_derived_samples(job.client, name, data.train.scale, make)
            # derived images are transformed in training just like the originals
            derived = replace(derived, image_transform=data.train.image_transform)
            return place_samples(derived, compute)

        # with pooled data, draw like the first client, so that a federation of one gives the same bits
        client_id = self.federation.clients[0] if job.client == POOLED_CLIENT else job.client
        return kind(
            id=client_id,
            t=job.t,
            net=compute.place_net(copy_net(template)),
            data=data,
            received=compute.place(job.tensors),
            memory=compute.place_memory(memory),
            training=self.get_training(job.client),
            seed=self.seed,
            rounds=self.rounds,
            list_kinds=partial(self.list_kinds_of_copy, template),
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
    tensors: Tensors  # sent by the server
    # the whole generic model; not needed for training
    generic_model: Tensors = field(default_factory=Tensors)
    cost: int = 0  # cost in examples; engines start the most expensive jobs first
    turn: int = 0  # counts up from 0 if a client is drawn several times in one round
    keeps_memory: bool = True  # whether to store its memory; only in the last of several turns
    # runs the job if its kind is "other"
    custom_work: Callable[[Plan, Job, ClientStore], Reply] | None = None


def match_head(net: Net, model: Net) -> None:
    """Make a net's head equal to the head of ``model``; add a linear projection if the widths differ."""
    width, goal = (find_head_width(n) for n in (net, model))
    if width != goal:
        base = nn.Sequential(net.base, nn.Flatten(), nn.Linear(width, goal))
        net.add_module("base", base)
    shapes = [{k: v.shape for k, v in n.head.state_dict().items()} for n in (net, model)]
    if shapes[0] != shapes[1]:
        net.add_module("head", copy_module(model.head))


def find_head_width(net: Net) -> int:
    """Return the width of the features that a net's head expects."""
    found = [int(p.shape[1]) for p in net.head.parameters() if p.dim() == 2]
    if not found:
        raise ConfigError(
            "model: the head of a net has no linear layer, so nets cannot share it; choose feddistill"
            " or local"
        )
    return found[0]


def check_personal_patterns(algorithm: Algorithm, net: Net) -> None:
    """Raise ConfigError if a pattern in ``personal`` matches no tensor of the net."""
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
    """Return how clients are selected, and which fraction is selected in a round (None if it varies)."""
    if algorithm.everybody:
        return "everybody", 1.0
    rate = None
    if isinstance(participation, Poisson):
        rate = participation.compute_rate(clients)
    elif isinstance(participation, RandomParticipation):
        rate = participation.compute_sample_size(clients) / clients
    return KINDS.get(type(participation), "own"), rate


def describe_plan(plan: Plan) -> RunFacts:
    """Collect the settings of a plan on which protections may depend."""
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
