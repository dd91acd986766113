"""A hypernetwork on the server: features of a client's embedding, and one linear layer for each tensor it makes.

Its parameters are ``Tensors`` in the server's memory: ``mlp.0.weight``, …, and ``made/NAME/weight`` and ``made/NAME/bias``
for each tensor of the model. The biases begin as the initial model and the weights at 0, so that a run begins as FedAvg's does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...core.algorithm import Reply, Server, mean
from ...core.tensors import Tensors
from .distillation import on_one_thread

MADE = "made/"
LARGEST_NORM = 50.0  # of the gradient; larger ones are clipped, as in the authors' code
Embed = Callable[[Tensors, str], Tensor]  # of parameters and a client: its embedding


def create_hypernetwork(model: Tensors, inputs: int, hidden: int, layers: int) -> Tensors:
    """Create a hypernetwork that makes this model of every embedding, until it is trained."""
    widths = [inputs, *[hidden] * layers]
    out = dict[str, Tensor]()
    for i in range(layers):
        layer = nn.Linear(widths[i], widths[i + 1])
        out |= {f"mlp.{i}.{k}": v.detach() for k, v in layer.named_parameters()}
    for k, v in model.items():
        out[f"{MADE}{k}/bias"] = v.flatten().clone()
        out[f"{MADE}{k}/weight"] = v.new_zeros(v.numel(), hidden)
    return Tensors(out)


def compute_features(w: Tensors, embedding: Tensor) -> Tensor:
    """Compute the features that all tensors of the model are made of."""
    z = embedding
    for i in range(sum(k.startswith("mlp.") for k in w) // 2):
        z = linear(z if i == 0 else z.relu(), w[f"mlp.{i}.weight"], w[f"mlp.{i}.bias"])
    return z


def make_model(w: Tensors, embedding: Tensor, like: Tensors) -> Tensors:
    """Make the model of an embedding, with the names and shapes of ``like``."""
    z = compute_features(w, embedding)

    def make_tensor(name: str, v: Tensor) -> Tensor:
        made = linear(z, w[f"{MADE}{name}/weight"], w[f"{MADE}{name}/bias"])
        return made.view(v.shape)

    return Tensors({k: make_tensor(k, v) for k, v in like.items() if f"{MADE}{k}/bias" in w})


def compute_slopes(w: Tensors, embed: Embed, moves: Sequence[tuple[str, Tensors]]) -> Tensors:
    """Compute the mean over clients of the gradient by which their models move as they trained.

    A client's ``move`` is its received model less the trained one, which takes the place of a gradient
    of the model: the rest is the chain rule.
    """
    w = w.map(lambda v: v.detach().clone().requires_grad_())
    total: Tensor | None = None
    for client, move in moves:
        made = make_model(w, embed(w, client), move)
        term = made.dot(move) / len(moves)
        total = term if total is None else total + term
    assert total is not None
    slopes = torch.autograd.grad(total, list(w.values()), allow_unused=True)
    pairs = zip(w.items(), slopes, strict=True)
    return Tensors({k: torch.zeros_like(v) if g is None else g for (k, v), g in pairs})


def train_hypernetwork(
    server: Server,
    w: Tensors,
    embed: Embed,
    replies: Sequence[Reply],
    sent: Callable[[str], Tensors],
    lr: float,
    momentum: float,
) -> Server:
    """Make one step of SGD with momentum; running statistics are averaged as configured."""
    learned = list(server.learned)
    moves = [(r.client, sent(r.client).only(*learned) - r.tensors.only(*learned)) for r in replies]
    with on_one_thread():
        slopes = compute_slopes(w, embed, moves)
    norm = float(slopes.square().double().sqrt())
    slopes = slopes * min(1.0, LARGEST_NORM / max(norm, 1e-12))
    speed = momentum * server.memory.get("momentum", slopes.zeros()) + slopes
    after = server.update(hypernetwork=w - lr * speed, momentum=speed)
    buffers = [k for k in server.model if k in server.statistics]
    return after.update(mean(replies, *buffers)) if buffers else after
