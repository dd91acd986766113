"""Prototypes: mean features of classes, which clients send and keep their features close to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.algorithm import Algorithm, Client, Reply, Server, setting
from ...core.tensors import Tensors
from ...core.training import SGD, Training
from .distillation import on_one_thread

PREFIX = "mean/"  # prefix of prototypes; the class follows


@dataclass(frozen=True)
class PrototypeAlgorithm(Algorithm):
    """Base of algorithms whose clients keep their features close to prototypes that the server sends."""

    needs_classes = True
    personal = ("*",)
    uses_features = True
    common = False
    needs_nets = "same_head"
    lam: float = setting(1.0, "weight of the distance to the prototypes", low=0)

    def send(self, server: Server, client: str) -> Tensors:
        return server.memory.get("prototypes", Tensors())

    def local(self, client: Client) -> Tensors:
        fit_near_prototypes(client, self.lam)
        return compute_prototypes(client)


def fit_near_prototypes(client: Client, lam: float) -> None:
    """Train a client with its features near the received prototypes; measure the prototypes' accuracy."""
    net, known = client.net, client.received.below(PREFIX)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        z = net.base(x)
        out = client.loss(net.head(z), y)
        here = y.new_tensor([str(c) in known for c in y.tolist()], dtype=torch.bool)
        if not lam or not here.any():
            return out
        goal = torch.stack([known[str(c)] for c in y[here].tolist()])
        return out + lam * (z[here] - goal).square().sum() / z.numel()

    client.fit(loss)
    if known:
        client.metrics["P_prototype"] = compute_prototype_accuracy(client, known)


def compute_prototypes(client: Client) -> Tensors:
    """Compute the mean features of each class that the client holds."""
    z, labels = client.features(), client.data.train.labels
    held = client.data.counts.nonzero().flatten().tolist()
    return Tensors({f"{PREFIX}{c}": z[labels == c].mean(0) for c in held})


@torch.inference_mode()
def compute_prototype_accuracy(client: Client, known: Tensors) -> float:
    """Return the fraction of test examples whose nearest prototype is that of their class."""
    client.net.eval()
    means = torch.stack(list(known.values()))
    classes = means.new_tensor([int(c) for c in known], dtype=torch.int64)
    right = 0
    for x, y in client.data.test.batches(250):
        at = torch.cdist(client.net.base(x).flatten(1), means.flatten(1)).argmin(1)
        right += int((classes[at] == y).sum())
    return right / max(1, len(client.data.test))


# Training on the server -------------------------------------------------------------------------


@dataclass(frozen=True)
class PrototypeTraining:
    """Settings of the server's training on a round's prototypes, by plain SGD."""

    epochs: int
    batch: int
    lr: float


def collect_prototypes(replies: Sequence[Reply]) -> tuple[Tensor, Tensor]:
    """Collect the prototypes of all replies, one per row, and their classes; at least one must exist."""
    sent = [(k, v) for r in replies for k, v in r.tensors.items() if k.startswith(PREFIX)]
    z = torch.stack([v.flatten() for _, v in sent])
    return z, torch.tensor([int(k.removeprefix(PREFIX)) for k, _ in sent])


def train_on_prototypes(
    w: Tensors,
    loss: Callable[[Tensors, Tensor, Tensor], Tensor],
    data: tuple[Tensor, Tensor],
    how: PrototypeTraining,
) -> Tensors:
    """Train parameters on the server: minimise ``loss(w, prototypes, classes)`` over ``w``; return them."""
    w = w.map(lambda v: v.detach().clone().requires_grad_())
    sgd = SGD(w, Training(lr=how.lr, momentum=0.0), {}, Tensors())
    with on_one_thread(), torch.enable_grad():
        for _ in range(how.epochs):
            for at in torch.randperm(len(data[1])).split(how.batch):
                sgd.zero_grad()
                loss(w, data[0][at], data[1][at]).backward()
                sgd.step()
    return w.map(lambda v: v.detach())
