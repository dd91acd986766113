"""Gradient inversion: the gradients of a victim and its imitator, the attacks and image metrics.

No algorithm is named here. The algorithm's own ``local`` runs on a client that does not train, but
records which losses it would minimise, and over which tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

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
    """One pass of a client's training that an attacker imitates: its loss and the trained tensors."""

    loss: Loss
    trained_names: frozenset[str]
    repeat: int


class RecordingClient(Client):
    """A client that does not train; ``phases`` records the passes that it would have done."""

    phases: tuple[TrainingPhase, ...] = ()

    def _run_pass(self, call: TrainingPass) -> None:
        """Record a pass of training, unless it has no mini-batch or repeats an earlier pass of its phase."""
        samples = self.data.train if call.data is None else call.data
        order = iterate_epochs(self.net, len(samples), call.how, call.epochs, call.steps)
        if call.turn or next(order, None) is None:
            return
        self.phases += (TrainingPhase(call.loss, frozenset(call.named), call.repeat),)


def list_sent_parameters(plan: Plan, job: Job, store: ClientStore) -> list[str]:
    """List the parameters that a client sends, in the reply to a training job that saves no memory."""
    sent = restore_reply(plan, work(plan, job, store), job.tensors).tensors
    return sorted(k for k, _ in plan.get_template(job.client).named_parameters() if k in sent)


def build_insider(plan: Plan, job: Job, store: ClientStore) -> RecordingClient:
    """Build the client of the victim, or of an attacker that knows its personal parameters and memory."""
    client = plan.build_client(
        job, store.load_memory(job.client, before=job.t), store, RecordingClient
    )
    assert isinstance(client, RecordingClient)
    return record_local_training(plan, job, client)


def build_outsider(plan: Plan, job: Job, guess: str) -> RecordingClient:
    """Build the attacker's client from sent and guessed parameters, without the victim's memory and data."""
    client = RecordingClient(
        id=job.client,
        t=job.t,
        net=copy_module(plan.get_template(job.client)),
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
    """Return an attacker's guess of the victim's personal parameters, made in the same way for every algorithm.

    ``initial`` guesses the server's values before the first round, ``fresh`` new random values.
    """
    if guess == GUESSED_INITIAL:
        return state(plan.get_template(job.client))
    with seeded(plan.seed, "attack", "guess", job.t, job.client):
        return state(plan.build_net(plan.net_of.get(job.client, ""), plan.plain_nets))


def make_blank_data(data: ClientData, shape: tuple[int, ...]) -> ClientData:
    """Make data with one black image of each class, from which an attacker learns nothing."""
    x = torch.zeros(data.classes, *shape, dtype=data.train.x.dtype)
    samples = Samples(x, torch.arange(data.classes), data.train.scale)
    return ClientData(samples, samples, data.classes)


def record_local_training(plan: Plan, job: Job, client: RecordingClient) -> RecordingClient:
    """Run the algorithm's ``local`` on a client that records passes of training; return the client."""
    with seeded(plan.seed, "local", job.t, job.client):
        plan.algorithm.local(client)
    for p in params(client.net).values():
        p.requires_grad_(True)
    client.net.eval()  # batch statistics of one image are meaningless
    return client


# Gradients ----------------------------------------------------------------------------------


def compute_gradients(
    client: RecordingClient,
    names: Collection[str],
    x: Tensor,
    y: Tensor,
    differentiable: bool = False,
) -> Tensors:
    """Sum the gradients of images over all recorded passes; zero for tensors that are not trained."""
    parameters = params(client.net).map(lambda p: p)
    summed = {k: torch.zeros_like(parameters[k]) for k in names}
    for phase in client.phases:
        wanted = [k for k in summed if k in phase.trained_names]
        for _ in range(phase.repeat):  # a loss may count its calls, so always call it
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
    """Compute the victim's update after ``steps`` steps on these images.

    It is scaled to the mean gradient of the steps, so that one step gives the gradient itself.
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
    """Return the victim's gradient as the server observes it, after the client's protections.

    The client sends the change that its steps made, and the attacker scales this change back to a gradient.
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
    """Return the name of the bias of a net's last linear layer; None if there is none."""
    linears = [m for part in ("base", "head") for m in net.get_submodule(part).modules()
               if isinstance(m, nn.Linear)]  # fmt: skip
    biases = {id(p): k for k, p in net.named_parameters()}
    return biases.get(id(linears[-1].bias)) if linears else None


MAX_PSNR = 100.0  # dB, for equal images
SSIM_WINDOW, SSIM_SIGMA = 11, 1.5  # as in the SSIM paper
SSIM_K1, SSIM_K2 = 0.01, 0.03
REFERENCE_NAMES = ("grey", "mean colour", "noise")


def psnr(a: Tensor, b: Tensor) -> float:
    """Return the peak signal-to-noise ratio of two images in dB; values are clipped to 0 to 1."""
    error = (a.double().clamp(0, 1) - b.double().clamp(0, 1)).square().mean().item()
    return min(MAX_PSNR, -10 * math.log10(error)) if error else MAX_PSNR


def ssim(a: Tensor, b: Tensor) -> float:
    """Return the structural similarity of two images, averaged over channels and Gaussian windows.

    An image smaller than the window gets a smaller window.
    """
    a, b = (v.double().clamp(0, 1).unsqueeze(1) for v in (a, b))  # channels one by one
    size = min(SSIM_WINDOW, *a.shape[2:])
    size -= size % 2 == 0
    window = make_gaussian_window(size)

    def blur(v: Tensor) -> Tensor:
        return conv2d(v, window)

    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a.square(), blur(b * b) - mean_b.square()
    covariance = blur(a * b) - mean_a * mean_b
    c1, c2 = SSIM_K1**2, SSIM_K2**2
    numerator = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    denominator = (mean_a.square() + mean_b.square() + c1) * (var_a + var_b + c2)
    return (numerator / denominator).mean().item()


def make_gaussian_window(size: int) -> Tensor:
    """Make the Gaussian window of SSIM, whose weights add up to 1."""
    offsets = torch.arange(size, dtype=torch.float64) - size // 2
    line = (-offsets.square() / (2 * SSIM_SIGMA**2)).exp()
    line /= line.sum()
    return torch.outer(line, line)[None, None]


def make_reference_images(image: Tensor, *key: object) -> dict[str, Tensor]:
    """Make images for comparison that contain nothing of the original image, or only its mean colour."""
    with seeded(*key):
        noise = torch.rand(image.shape)
    grey, mean = torch.full_like(image, 0.5), image.mean((1, 2), keepdim=True).expand_as(image)
    return dict(zip(REFERENCE_NAMES, (grey, mean, noise), strict=True))


# gradient as a function of images and labels
GradientFunction = Callable[[Tensor, Tensor], Tensors]


@dataclass(frozen=True)
class AttackTarget:
    """The input of an attack: the observed gradient, a function for gradients, and bounds of pixels."""

    observed_gradient: Tensors
    compute_gradient: GradientFunction
    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class StartingPoint:
    """The start of an attack: images of noise, and labels, as classes or as logits to be optimised."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Reconstruction:
    """The result of an attack; ``loss`` is the distance of its gradient from the observed one."""

    images: Tensor
    labels: Tensor  # classes
    loss: float
    finite: bool = True  # if False, the images are from the last finite step


@dataclass(frozen=True)
class InvertingGradients:
    """Geiping et al., Inverting gradients, NeurIPS 2020: cosine distance, total variation, signed Adam."""

    iterations: int
    tv: float
    lr: float = 0.1

    def __call__(self, target: AttackTarget, start: StartingPoint) -> Reconstruction:
        x, y = copy_as_variable(start.images), start.labels
        adam = torch.optim.Adam([x], lr=self.lr)
        drops = [int(self.iterations * k / 8) for k in (3, 5, 7)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(adam, drops, gamma=0.1)
        kept = start.images
        for _ in range(self.iterations):
            loss = cosine_distance(target, x, y) + self.tv * total_variation(x)
            (slope,) = torch.autograd.grad(loss, x)
            if not bool(torch.isfinite(loss) & torch.isfinite(slope).all()):
                return Reconstruction(kept, y, float("inf"), finite=False)
            x.grad = slope.sign()
            adam.step()
            schedule.step()
            with torch.no_grad():
                x.clamp_(target.low, target.high)
            kept = x.detach().clone()
        return Reconstruction(kept, y, cosine_distance(target, x, y).item())


@dataclass(frozen=True)
class DLG:
    """Zhu et al., Deep leakage from gradients, NeurIPS 2019: squared distance, L-BFGS."""

    iterations: int
    inner_iterations: int = 20

    def __call__(self, target: AttackTarget, start: StartingPoint) -> Reconstruction:
        x, y = copy_as_variable(start.images), start.labels
        variables = [x]
        if y.is_floating_point():
            variables.append(y := copy_as_variable(y))
        lbfgs = torch.optim.LBFGS(variables, lr=1.0, max_iter=self.inner_iterations)
        kept = Reconstruction(start.images, to_class_labels(y), float("inf"), finite=False)

        def closure() -> Tensor:
            value = squared_distance(target, x, to_probabilities(y))
            for v, slope in zip(variables, torch.autograd.grad(value, variables), strict=True):
                v.grad = slope
            return value

        for _ in range(self.iterations):
            lbfgs.step(closure)
            loss = squared_distance(target, x, to_probabilities(y)).item()
            if not math.isfinite(loss) or not all(bool(torch.isfinite(v).all()) for v in variables):
                return replace(kept, finite=False)
            kept = Reconstruction(x.detach().clone(), to_class_labels(y), loss)
        return kept


Attack = InvertingGradients | DLG
AttackName = Literal["inverting", "dlg"]


def cosine_distance(target: AttackTarget, x: Tensor, y: Tensor) -> Tensor:
    """Return 1 minus the cosine between the gradient of reconstructed images and the observed one."""
    ours, observed = target.compute_gradient(x, y), target.observed_gradient
    return 1 - ours.dot(observed) / (ours.square().sqrt() * observed.square().sqrt())


def squared_distance(target: AttackTarget, x: Tensor, y: Tensor) -> Tensor:
    """Return the squared distance of the gradient of reconstructed images from the observed one."""
    return (target.compute_gradient(x, y) - target.observed_gradient).square()


def total_variation(x: Tensor) -> Tensor:
    """Return the total variation of images: the mean difference of neighbouring pixels, per direction."""
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def copy_as_variable(start: Tensor) -> Tensor:
    """Return a copy of a tensor that an attack optimises."""
    return start.clone(memory_format=torch.preserve_format).requires_grad_(True)


def to_probabilities(labels: Tensor) -> Tensor:
    """Convert the logits of labels to probabilities; return labels that are classes unchanged."""
    return labels.softmax(1) if labels.is_floating_point() else labels


def to_class_labels(labels: Tensor) -> Tensor:
    """Convert the logits of labels to the most likely classes; return labels that are classes unchanged."""
    return labels.detach().argmax(1) if labels.is_floating_point() else labels


def draw_noise(shape: Sequence[int], *key: object) -> Tensor:
    """Draw normally distributed noise that depends only on the shape and the key."""
    with seeded(*key):
        return torch.randn(tuple(shape))


def infer_labels(gradient: Tensor, images: int) -> Tensor:
    """Infer the classes of ``images`` images, in ascending order, from the gradient of the last bias.

    With softmax and cross-entropy, the gradient's entry for a class is the mean probability minus the
    share of images of that class. So one image has the class with the lowest entry; its share is added to
    the entry, and the search is repeated. This is exact for one image and an estimate for several.
    """
    left, found = gradient.detach().clone(), []
    for _ in range(images):
        found.append(int(left.argmin()))
        left[found[-1]] += 1 / images
    return torch.tensor(sorted(found))


def select_best(found: list[Reconstruction]) -> tuple[int, Reconstruction]:
    """Return the number and the result of the restart with the lowest loss; the true images are not used."""
    order = sorted(range(len(found)), key=lambda i: (not found[i].finite, found[i].loss))
    return order[0], found[order[0]]
