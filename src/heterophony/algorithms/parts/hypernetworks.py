"""A hypernetwork on the server: it makes each client's model from an embedding of the client.

Hidden layers turn the embedding into features, and a linear layer for each tensor of the model makes that
tensor from them. The parameters are ``Tensors`` in the server's memory: ``mlp.0.weight``, …, and
``made/NAME/weight`` and ``made/NAME/bias`` for each tensor. The biases start as the initial model and the
weights at 0, so that a run starts as with FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...core.algorithm import Algorithm, Reply, Server, mean, setting
from ...core.tensors import Tensors
from .distillation import on_one_thread

MADE = "made/"
LARGEST_NORM = 50.0  # limit of the gradient's norm, as in the authors' code
# parameters, client's name -> client's embedding
Embed = Callable[[Tensors, str], Tensor]


def create_hypernetwork(model: Tensors, inputs: int, hidden: int, layers: int) -> Tensors:
    """Create a hypernetwork that, until it is trained, makes this model from any embedding."""
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
    """Compute the hypernetwork's hidden features of an embedding; every tensor of the model is a
    linear function of them.
    """
    z = embedding
    for i in range(sum(k.startswith("mlp.") for k in w) // 2):
        z = linear(z if i == 0 else z.relu(), w[f"mlp.{i}.weight"], w[f"mlp.{i}.bias"])
    return z


def make_model(w: Tensors, embedding: Tensor, like: Tensors) -> Tensors:
    """Make the model for an embedding with a hypernetwork, with the names and shapes of ``like``."""
    z = compute_features(w, embedding)

    def make_tensor(name: str, v: Tensor) -> Tensor:
        made = linear(z, w[f"{MADE}{name}/weight"], w[f"{MADE}{name}/bias"])
        return made.view(v.shape)

    return Tensors({k: make_tensor(k, v) for k, v in like.items() if f"{MADE}{k}/bias" in w})


def compute_hypernetwork_gradient(
    w: Tensors, embed: Embed, moves: Sequence[tuple[str, Tensors]]
) -> Tensors:
    """Compute the gradient of a hypernetwork from its clients' moves, averaged over clients.

    The ``move`` of a client is its received model minus its trained one. It replaces the
    gradient of the model in the chain rule.
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


@dataclass(frozen=True)
class HypernetworkOnServer(Algorithm):
    """Base of algorithms whose server makes each client's model, and learns from how clients train it."""

    server_lr: float = setting(0.1, "learning rate of the hypernetwork", above=0)
    server_momentum: float = setting(0.9, "momentum of the hypernetwork", low=0, high=1)
    embedding: int | None = setting(
        None, "width of an embedding; default: a quarter of the number of clients, plus 1", low=1
    )
    hidden: int = setting(
        16, "units of the hypernetwork's hidden layers; 100 in the authors' code", low=1
    )
    layers: int = setting(4, "number of hidden layers of the hypernetwork", low=1)

    def create_parameters(self, server: Server) -> Tensors:
        """Create the hypernetwork's parameters; subclasses add embeddings, or the net that computes them."""
        return create_hypernetwork(
            server.learned, self.get_embedding_width(server), self.hidden, self.layers
        )

    def get_embedding_width(self, server: Server) -> int:
        """Return the width of a client's embedding."""
        return self.embedding or 1 + len(server.clients) // 4

    def update_hypernetwork(self, server: Server, replies: Sequence[Reply], embed: Embed) -> Server:
        """Make one SGD step of the hypernetwork from a round's replies; average running statistics."""
        w, learned = (
            server.memory.get("hypernetwork") or self.create_parameters(server),
            list(server.learned),
        )
        sent = {r.client: self.send(server, r.client).only(*learned) for r in replies}
        moves = [(r.client, sent[r.client] - r.tensors.only(*learned)) for r in replies]
        with on_one_thread():
            slopes = compute_hypernetwork_gradient(w, embed, moves)
        norm = float(slopes.square().double().sqrt())
        slopes = slopes * min(1.0, LARGEST_NORM / max(norm, 1e-12))
        before = server.memory.get("momentum", slopes.zeros())
        speed = self.server_momentum * before + slopes
        after = server.update(hypernetwork=w - self.server_lr * speed, momentum=speed)
        buffers = [k for k in server.model if k in server.statistics]
        return after.update(mean(replies, *buffers)) if buffers else after
