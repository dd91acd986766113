"""Gradients of the victim in an audit, and of the attacker who imitates it.

No algorithm is named here. The algorithm's own ``local`` runs on a client that does not train, but
records which losses it would minimise, and over which tensors.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.algorithm import Reply
from ..core.client import Client, Loss, TrainingPass, iterate_epochs
from ..core.net import copy_module
from ..core.randomness import seeded
from ..core.samples import ClientData, Samples
from ..core.tensors import Tensors, params, state
from ..jobs.client_store import ClientStore
from ..jobs.plan import Job, Plan
from ..jobs.work import protect_reply, restore_reply, split_memory, work
from .summary import GUESSED_INITIAL


@dataclass(frozen=True)
class TrainingPhase:
    """One pass of a client's training: the loss, and the tensors that are trained."""

    loss: Loss
    trained_names: frozenset[str]
    repeat: int


class RecordingClient(Client):
    """A client that does not train; ``phases`` records the passes that it would have done."""

    phases: tuple[TrainingPhase, ...] = ()

    def _run_pass(self, given: TrainingPass) -> None:
        """Record a pass, unless it has no mini-batch or repeats an earlier one of its phase."""
        samples = self.data.train if given.data is None else given.data
        order = iterate_epochs(self.net, len(samples), given.how, given.epochs, given.steps)
        if given.turn or next(order, None) is None:
            return
        self.phases += (TrainingPhase(given.loss, frozenset(given.named), given.repeat),)


def list_sent_parameters(plan: Plan, job: Job, store: ClientStore) -> list[str]:
    """Run a real training job that saves no memory, and list the parameters in its reply."""
    sent = restore_reply(plan, work(plan, job, store), job.tensors).tensors
    return sorted(k for k, _ in plan.template.named_parameters() if k in sent)


def make_insider(plan: Plan, job: Job, store: ClientStore) -> RecordingClient:
    """Build the client with all that it knows: personal parameters, memory, class counts."""
    client = plan.build_client(
        job, store.load_memory(job.client, before=job.t), store, RecordingClient
    )
    assert isinstance(client, RecordingClient)
    return record_local_training(plan, job, client)


def make_stranger(plan: Plan, job: Job, guess: str) -> RecordingClient:
    """Build the client from sent and guessed parameters alone: no memory, no data."""
    client = RecordingClient(
        id=job.client,
        t=job.t,
        net=copy_module(plan.template),
        data=make_blank_data(plan.federation.data(job.client), plan.federation.shape),
        received=job.tensors,
        memory={"net": guess_personal_parameters(plan, job, guess)},
        training=plan.get_training(job.client),
        seed=plan.seed,
        rounds=plan.rounds,
        list_kinds=plan.list_kinds,
        cache_derived=lambda name, make: make(),
    )
    return record_local_training(plan, job, client)


def guess_personal_parameters(plan: Plan, job: Job, guess: str) -> Tensors:
    """Return what a stranger uses in place of the personal parameters, whatever the algorithm.

    ``initial``: those before the first round, which the server made. ``fresh``: newly drawn ones.
    """
    if guess == GUESSED_INITIAL:
        return state(plan.template)
    with seeded(plan.seed, "attack", "guess", job.t, job.client):
        return state(plan.build_net())


def make_blank_data(data: ClientData, shape: tuple[int, ...]) -> ClientData:
    """Make data of one black image per class, so that class counts carry no information."""
    x = torch.zeros(data.classes, *shape, dtype=data.train.x.dtype)
    samples = Samples(x, torch.arange(data.classes), data.train.scale)
    return ClientData(samples, samples, data.classes)


def record_local_training(plan: Plan, job: Job, client: RecordingClient) -> RecordingClient:
    """Run the algorithm's ``local``, which records its passes on the client."""
    with seeded(plan.seed, "local", job.t, job.client):
        plan.algorithm.local(client)
    for p in params(client.net).values():
        p.requires_grad_(True)
    client.net.eval()  # batch statistics of one image mean nothing
    return client


# Gradients ----------------------------------------------------------------------------------


def compute_gradients(
    client: RecordingClient,
    names: Collection[str],
    x: Tensor,
    y: Tensor,
    differentiable: bool = False,
) -> Tensors:
    """Sum the gradients of all passes; zero for tensors that a pass does not train."""
    parameters = params(client.net).map(lambda p: p)
    summed = {k: torch.zeros_like(parameters[k]) for k in names}
    for phase in client.phases:
        wanted = [k for k in summed if k in phase.trained_names]
        for _ in range(phase.repeat):  # even if no gradient is needed: a loss may count its calls
            value = phase.loss(x, y)
            if not wanted or not value.requires_grad:
                continue
            gradients = torch.autograd.grad(
                value,
                [parameters[k] for k in wanted],
                create_graph=differentiable,
                allow_unused=True,
            )
            for k, g in zip(wanted, gradients, strict=True):
                if g is not None:
                    summed[k] = summed[k] + g
    return Tensors(summed)


def compute_update(
    client: RecordingClient, names: Collection[str], x: Tensor, y: Tensor, steps: int
) -> Tensors:
    """Compute the update that the server sees after ``steps`` steps on these images.

    It is scaled to the mean of the steps' gradients, so one step gives the gradient itself.
    """
    if steps == 1:
        return compute_gradients(client, names, x, y)
    lr, trained = client.lr, {k for phase in client.phases for k in phase.trained_names}
    before = state(client.net)
    for _ in range(steps):
        gradients = compute_gradients(client, trained, x, y)
        with torch.no_grad():
            for k, g in gradients.items():
                client.net.get_parameter(k).sub_(g, alpha=lr)
    after = state(client.net)
    return Tensors({k: (before[k] - after[k]) / (lr * steps) for k in names})


def observe_update(
    plan: Plan, job: Job, store: ClientStore, gradient: Tensors, lr: float, steps: int
) -> Tensors:
    """Return the update as the server sees it: what the client's protections leave of it.

    The client sends the move of its steps; the attacker scales it back to a gradient.
    """
    if not plan.protections:
        return gradient
    length = lr * steps or 1.0
    sent = job.tensors.only(*gradient)
    up = job.tensors | Tensors({k: v - length * gradient[k] for k, v in sent.items()})
    reply = Reply(job.client, "train", up.only(*gradient), 1, 1.0)
    kept = split_memory(store.load_memory(job.client, before=job.t))[1]
    protected = protect_reply(plan, job, reply, kept, Tensors())[0]
    seen = restore_reply(plan, protected, job.tensors).tensors
    return gradient | {k: (v - seen[k]) / length for k, v in sent.items()}


def find_last_bias(net: nn.Module) -> str | None:
    """Find the name of the bias of the last linear layer, if there is one."""
    linears = [m for part in ("base", "head") for m in net.get_submodule(part).modules()
               if isinstance(m, nn.Linear)]  # fmt: skip
    biases = {id(p): k for k, p in net.named_parameters()}
    return biases.get(id(linears[-1].bias)) if linears else None
