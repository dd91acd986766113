"""A generator of features for labels, and its training by the server: FedGen."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, one_hot

from ...core.adam import Adam
from ...core.tensors import Tensors
from ...core.training import Training


def make_generator(classes: int, width: int, noise: int, hidden: int) -> nn.Module:
    """Make a net of two layers, from noise and a label to features."""
    layers = {"inner": nn.Linear(noise + classes, hidden), "outer": nn.Linear(hidden, width)}
    return nn.ModuleDict(layers)


def generate(w: Tensors, labels: Tensor, noise: Tensor) -> Tensor:
    """Generate a feature for every label, with the generator's parameters ``w``."""
    classes = w["inner.weight"].shape[1] - noise.shape[1]
    given = torch.cat([noise, one_hot(labels, classes).to(noise)], 1)
    hidden = linear(given, w["inner.weight"], w["inner.bias"]).relu()
    return linear(hidden, w["outer.weight"], w["outer.bias"])


def draw_labels(shares: Tensor, count: int) -> Tensor:
    """Draw labels by their shares."""
    return torch.multinomial(shares, count, replacement=True)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Compute on one thread, as clients do: sums may round by the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_generator(
    w: Tensors,
    heads: Tensors,
    labels: Tensor,
    *,
    steps: int,
    batch: int,
    noise: int,
    lr: float,
    diversity: float,
    kept: Tensors,
) -> tuple[Tensors, Tensors]:
    """Train the generator so that the mean head answers its labels; return it and Adam's moments."""
    w = w.map(lambda v: v.detach().clone().requires_grad_())
    weight, bias = (next((v for v in heads.values() if v.dim() == d), None) for d in (2, 1))
    assert weight is not None
    adam = Adam(w, Training(optimizer="adam", lr=lr), {}, kept)
    with on_one_thread():
        for _ in range(steps):
            y, eps = draw_labels(labels, batch), torch.randn(batch, noise)
            z = generate(w, y, eps)
            loss = cross_entropy(linear(z, weight, bias), y)
            if diversity:
                loss = loss + diversity * compute_likeness(z, eps)
            adam.zero_grad()
            loss.backward()
            adam.step()
    return w.map(lambda v: v.detach()), Tensors(adam.state())


def compute_likeness(z: Tensor, eps: Tensor) -> Tensor:
    """Compute how alike features of different noise are: 1 if they are the same, else less."""
    features = torch.cdist(z, z, p=1.0) / z.shape[1]
    noises = torch.cdist(eps, eps).square() / eps.shape[1]
    return (-noises * features).mean().exp()
