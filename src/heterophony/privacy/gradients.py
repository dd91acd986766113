"""Who computes gradients in an audit: the victim, and the attacker who plays it.

Nothing is said here about any algorithm. Its own ``local`` is run on a client that learns nothing
and only notes what it is asked to minimise, and over which tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.algorithm import Algorithm
from ..core.client import Client, Loss, Trainable, iterate_parameters
from ..core.randomness import seeded
from ..core.samples import ClientData, Samples
from ..core.tensors import Tensors, params, state
from ..core.training import Training
from ..jobs.client_store import ClientStore
from ..jobs.plan import Job, Plan
from ..jobs.work import work


@dataclass(frozen=True)
class TrainingPhase:
    """One pass of a client's training: what is minimised, and over which tensors."""

    loss: Loss
    trained_names: frozenset[str]
    repeat: int


class RecordingClient(Client):
    """A client that learns nothing; ``phases`` are what it would have done."""

    phases: tuple[TrainingPhase, ...] = ()

    def fit(
        self,
        loss: Loss | None = None,
        train: Trainable | Iterable[Trainable] | None = None,
        data: Samples | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        pull: Callable[[Tensors], Tensors] | None = None,
        how: Training | None = None,
        rates: Mapping[str, float] | None = None,
        repeat: int = 1,
        after: Callable[[], None] | None = None,
        phase: str = "main",
    ) -> None:
        """Note what would be minimised; a pass without a single mini-batch is none."""
        samples = self.data.train if data is None else data
        batches = self._iterate_batches(len(samples), how or self.training, epochs, steps)
        if next(batches, None) is None:
            return
        chosen = {id(p) for p in iterate_parameters(self.net if train is None else train)}
        names = frozenset(k for k, p in self.net.named_parameters() if id(p) in chosen)
        self.phases += (TrainingPhase(loss or self.entropy, names, repeat),)


def list_sent_parameters(plan: Plan, job: Job, place: ClientStore) -> list[str]:
    """The parameters that are in the reply of a real training job, which changes nothing."""
    sent = work(plan, job, place).tensors
    return sorted(k for k, _ in plan.template.named_parameters() if k in sent)


def make_insider(plan: Plan, job: Job, place: ClientStore) -> RecordingClient:
    """The client itself: its own parts, its memory, its class counts."""
    client = plan.build_client(
        job, place.load_memory(job.client, before=job.t), place, RecordingClient
    )
    assert isinstance(client, RecordingClient)
    return record_local_training(plan, plan.algorithm, job, client)


def make_stranger(plan: Plan, job: Job) -> RecordingClient:
    """Who has what was sent, and nothing of the client: no part that stays, no memory, no data."""
    algorithm = plan.algorithm.stranger()
    client = RecordingClient(
        id=job.client,
        t=job.t,
        net=deepcopy(plan.template),
        data=make_blank_data(plan.federation.data(job.client), plan.federation.shape),
        received=job.tensors,
        memory={"net": guess_personal_parameters(plan, job)},
        training=plan.training,
        seed=plan.seed,
        rounds=plan.rounds,
        list_shared=plan.list_shared_names,
        cache_derived=lambda name, make: make(),
    )
    return record_local_training(plan, algorithm, job, client)


def guess_personal_parameters(plan: Plan, job: Job) -> Tensors:
    """What a stranger takes for what stays."""
    if plan.algorithm.guess == "average":
        return job.generic_model
    if plan.algorithm.guess == "initial":
        return state(plan.template)
    with seeded(plan.seed, "attack", "guess", job.t, job.client):
        net = plan.model()
        net.shape = plan.federation.shape
        return state(plan.algorithm.build(net))


def make_blank_data(data: ClientData, shape: tuple[int, ...]) -> ClientData:
    """One empty image of every class: priors that are made of these counts say nothing."""
    x = torch.zeros(data.classes, *shape, dtype=data.train.x.dtype)
    samples = Samples(x, torch.arange(data.classes), data.train.scale)
    return ClientData(samples, samples, data.classes)


def record_local_training(
    plan: Plan, algorithm: Algorithm, job: Job, client: RecordingClient
) -> RecordingClient:
    with seeded(plan.seed, "local", job.t, job.client):
        algorithm.local(client)
    client.net.requires_grad_(True).eval()  # statistics of one image are none
    return client


# Gradients ----------------------------------------------------------------------------------


def compute_gradients(
    client: RecordingClient,
    names: Collection[str],
    x: Tensor,
    y: Tensor,
    differentiable: bool = False,
) -> Tensors:
    """Of what the client minimises, in all its passes; of a tensor that does not matter, zero."""
    live = params(client.net).map(lambda p: p)
    summed = {k: torch.zeros_like(live[k]) for k in names}
    for phase in client.phases:
        wanted = [k for k in summed if k in phase.trained_names]
        for _ in range(phase.repeat):  # also where nothing is wanted: a loss may count its calls
            value = phase.loss(x, y)
            if not wanted or not value.requires_grad:
                continue
            found = torch.autograd.grad(
                value, [live[k] for k in wanted], create_graph=differentiable, allow_unused=True
            )
            for k, g in zip(wanted, found, strict=True):
                if g is not None:
                    summed[k] = summed[k] + g
    return Tensors(summed)


def compute_update(
    client: RecordingClient, names: Collection[str], x: Tensor, y: Tensor, steps: int
) -> Tensors:
    """What the server sees of so many steps on these images, as if it were one gradient.

    That is the mean of the gradients on the way: of one step, the gradient itself.
    """
    if steps == 1:
        return compute_gradients(client, names, x, y)
    lr, trained = client.training.lr, {k for phase in client.phases for k in phase.trained_names}
    before = state(client.net)
    for _ in range(steps):
        moved = compute_gradients(client, trained, x, y)
        with torch.no_grad():
            for k, g in moved.items():
                client.net.get_parameter(k).sub_(g, alpha=lr)
    after = state(client.net)
    return Tensors({k: (before[k] - after[k]) / (lr * steps) for k in names})


def find_last_bias(net: nn.Module) -> str | None:
    """The name of the bias of the last linear layer before the answer."""
    linears = [m for part in ("base", "head") for m in net.get_submodule(part).modules()
               if isinstance(m, nn.Linear)]  # fmt: skip
    biases = {id(p): k for k, p in net.named_parameters()}
    return biases.get(id(linears[-1].bias)) if linears else None
