"""Evaluation: the personal and the generic model (P and G) on one client's examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, nan

import torch
from torch import Tensor, nn

from ..core.accelerator import autocast, get_compute, widen
from ..core.algorithm import Algorithm, Reply
from ..core.client import Client
from ..core.net import find_aliases, iterate_tensors
from ..core.randomness import seeded
from ..core.records import find_record
from ..core.samples import Samples, place_samples
from ..core.scores import LOSS_PREFIX
from ..core.tasks import Criterion, count_confusions
from ..core.tensors import Memory, Tensors, is_given
from .client_store import ClientStore
from .plan import Job, Plan

EVALUATION_BATCH = 250  # larger batches are not faster on a CPU, and need more memory
DEVICE_EVALUATION_BATCH = 2000  # starts fewer kernels on a GPU

NO_VARIANCE = torch.ones(())  # stands in for the variance if targets are not numbers

Model = Callable[[Tensor], Tensor]


def evaluate(plan: Plan, job: Job, memory: Memory, client_store: ClientStore) -> Reply:
    """Run an evaluation job: measure P and G on the client's test and validation examples.

    Each is the sum of the task's score over these examples; in a classification, the number of correct
    predictions. ``loss/P`` is the mean loss on them; further metrics have names such as ``P/f1``.
    """
    algorithm, client = plan.algorithm, plan.build_client(job, memory, client_store)
    models = dict[str, Model]()
    if job.t == plan.rounds or algorithm.ready(job.t):
        with seeded(plan.seed, "tune", job.t, job.client):
            algorithm.adapt(client)
        models["P"] = partial(algorithm.predict, client)
    if algorithm.common:
        if "P" in models and is_generic_model(plan, job, client):
            models["G"] = models["P"]
        elif generic := build_generic_model(plan, job, client, client_store):
            models["G"] = generic
    metrics = measure_models(plan, client, models, client.data.test)
    if plan.federation.validates:  # loaded only here, so that no algorithm can use these examples
        held_out = plan.federation.samples(job.client, "validation")
        held_out = place_samples(held_out, get_compute(), (job.client, "validation"))
        valid = {f"{k}_valid": model for k, model in models.items()}
        metrics |= measure_models(plan, client, valid, held_out)
    tested = len(client.data.test)
    return Reply(job.client, "evaluate", Tensors(), tested, tested, metrics)


def build_generic_model(
    plan: Plan, job: Job, client: Client, client_store: ClientStore
) -> Model | None:
    """Build the generic model, for G; return None if the server lacks any of its parameters."""
    algorithm, memory = plan.algorithm, {"net": job.generic_model}
    generic = plan.build_client(replace(job, tensors=Tensors()), memory, client_store, generic=True)
    if not is_generic_model_known(plan, generic):
        return None
    if has_same_base(algorithm, client, generic):
        cache_last_output(client.net.base)
        generic.net.base = client.net.base
    return partial(algorithm.generic, generic)


def measure_models(
    plan: Plan, client: Client, models: Mapping[str, Model], samples: Samples
) -> dict[str, float]:
    """Measure the score, the loss and all metrics of each model on a client's examples.

    A loss or metric that is undefined, for example because there are no examples, is left out.
    """
    wanted = plan.metrics or plan.confusion
    outputs = {model: list[Tensor]() for model in models.values()} if wanted else None
    losses = {model: LossSum() for model in models.values()}
    scores = compute_scores(plan, client, list(models.values()), samples, outputs, losses)
    found: dict[str, float] = dict(zip(models, scores, strict=True))
    means = {f"{LOSS_PREFIX}{name}": losses[model].mean for name, model in models.items()}
    found |= {name: value for name, value in means.items() if isfinite(value)}
    if outputs and len(samples):
        with torch.inference_mode():
            for name, model in models.items():
                whole = torch.cat(outputs[model])
                for metric in plan.metrics:
                    value = float(metric.compute(whole, samples.labels.cpu()))
                    if isfinite(value):
                        found[f"{name}/{metric.name}"] = value
                if plan.confusion:
                    counts = count_confusions(whole, samples.labels.cpu())
                    found |= {f"{name}/{cell}": n for cell, n in counts.items()}
    return found


@dataclass
class LossSum:
    """Adds up the test losses of a model in float64.

    Batches have the same size on every device, so results are bit-identical.
    """

    total: float = 0.0
    count: int = 0

    def add(self, plan: Plan, output_and_targets: tuple[Tensor, Tensor]) -> None:
        """Add the losses of one batch of a client's test examples.

        A user's own loss is a mean over the mini-batch, so it is weighted by the number of examples.
        """
        batches = (part.split(EVALUATION_BATCH) for part in output_and_targets)
        for output, y in zip(*batches, strict=True):
            if plan.loss is None:
                losses = plan.task.list_losses(output, y)
                self.total += losses.sum().item()
                self.count += losses.numel()
            else:
                self.total += call_own_loss(plan.loss, output, y) * len(y)
                self.count += len(y)

    @property
    def mean(self) -> float:
        """The mean of the test losses added so far; NaN if there are none."""
        return self.total / self.count if self.count else nan


def call_own_loss(loss: Criterion, output: Tensor, y: Tensor) -> float:
    """Compute the user's own loss in an evaluation; return NaN if it fails there, as without gradients."""
    try:
        return float(loss(output, y))
    except Exception:  # the loss was tested before the run, so it works in training
        return nan


def compute_scores(
    plan: Plan,
    client: Client,
    models: Sequence[Model],
    samples: Samples,
    outputs: Mapping[Model, list[Tensor]] | None = None,
    losses: Mapping[Model, LossSum] | None = None,
) -> list[float]:
    """Add up the task's score of each model over a client's examples; collect outputs and losses.

    A model that is listed twice runs only once.
    """
    client.net.eval()
    score, counted = plan.task.score_examples, plan.task.name == "classification"
    variance = plan.federation.target_variance if plan.task.name == "regression" else NO_VARIANCE
    sums = dict.fromkeys(models, 0.0)
    size = EVALUATION_BATCH if get_compute().is_cpu else DEVICE_EVALUATION_BATCH
    with torch.inference_mode():
        for x, y in samples.batches(size) if len(samples) else ():
            for model in sums:
                with autocast():
                    there = widen(model(x))
                output = there.cpu()  # scores need float64, which some devices lack
                sums[model] += score(output, y.cpu(), variance).sum().item()
                if losses is not None:
                    losses[model].add(plan, (there, y) if plan.loss else (output, y.cpu()))
                if outputs is not None:
                    outputs[model].append(output)
    return [int(sums[model]) if counted else sums[model] for model in models]


def is_generic_model(plan: Plan, job: Job, client: Client) -> bool:
    """Return True if the client's personal model is the generic one: the same function and tensors.

    Then P and G are equal, and the generic model need not be built.
    """
    kind = type(plan.algorithm)
    if (
        kind.predict is not Algorithm.predict
        or kind.generic is not Algorithm.generic
        or adapts_models(plan.algorithm)
        or not plan.averages_personal  # the server then has no personal parameters to send
    ):
        return False
    aliases, generic = find_aliases(client.net), dict(job.generic_model)
    tensors = iterate_tensors(client.net)
    own = {k: v for k, v in tensors if k not in aliases and not is_given(v)}
    if not own.keys() <= generic.keys():
        generic = {**dict(iterate_tensors(plan.template)), **generic}
    return all(torch.equal(v.cpu(), generic[k]) for k, v in own.items())


def is_generic_model_known(plan: Plan, generic: Client) -> bool:
    """Return True if the server has all parameters that G needs; it may have only the shared ones."""
    generic.net.eval()
    return plan.averages_personal or not needs_personal_parameters(plan, generic)


def needs_personal_parameters(plan: Plan, generic: Client) -> bool:
    """Return True if the generic model uses personal parameters.

    To test this, they are overwritten with NaN: if the model uses any of them, its output is not finite.
    """
    generic.net.eval()
    tensors = generic.net.state_dict()
    personal = [tensors[k] for k in plan.list_names(generic.net, generic.t, "personal")]
    if not personal:
        return False
    with torch.inference_mode():
        for v in personal:
            if v.is_floating_point():
                v.fill_(torch.nan)
        x, _ = next(iter(generic.data.test.batches(EVALUATION_BATCH)))
        return not bool(torch.isfinite(plan.algorithm.generic(generic, x)).all())


def adapts_models(algorithm: Algorithm) -> bool:
    """Return True if the algorithm adapts a client's model before it predicts."""
    return type(algorithm).adapt is not Algorithm.adapt


def has_same_base(algorithm: Algorithm, client: Client, generic: Client) -> bool:
    """Return True if P and G have the same base, so that its features are computed only once."""
    bases = [c.net.base.state_dict() for c in (client, generic)]
    same = bases[0].keys() == bases[1].keys() and not adapts_models(algorithm)
    return same and all(torch.equal(v, bases[1][k]) for k, v in bases[0].items())


def cache_last_output(module: nn.Module) -> None:
    """Make a net's base return its last output if input and weights have not changed."""
    if find_record(module) is not None:  # unpacked inputs are new tensors in every call
        return
    compute = module.forward
    last: list[tuple[Tensor, Tensor | None, Tensor]] = []

    def forward(x: Tensor) -> Tensor:
        weight = next(module.parameters(), None)  # functional_call temporarily replaces weights
        if not (last and last[0][0] is x and last[0][1] is weight):
            last[:] = [(x, weight, compute(x))]
        return last[0][2]

    module.forward = forward
