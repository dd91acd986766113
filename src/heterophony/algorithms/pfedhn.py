"""pFedHN: Shamsian et al., Personalized federated learning using hypernetworks, ICML 2021.

A round is one step of the hypernetwork, on the mean over its clients; the authors' code has one client in a round, a rate of 0.01
and weight decay, for thousands of rounds. Here lr / (1 - momentum) is 1: the biases of the hypernetwork move about as FedAvg's
model does. G is of the model of the mean embedding, which new clients are sent too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Reply, Server, setting
from ..core.tensors import Tensors
from .parts.hypernetworks import create_hypernetwork, make_model, train_hypernetwork


@dataclass(frozen=True)
class PFedHN(Algorithm):
    """Let a hypernetwork on the server make every client's model of a learned embedding of the client."""

    paper = "Shamsian et al., ICML 2021"
    server_lr: float = setting(0.1, "learning rate of the hypernetwork", above=0)
    server_momentum: float = setting(0.9, "its momentum", low=0, high=1)
    embedding: int | None = setting(
        None, "width of an embedding; default: a quarter of the number of clients, plus 1", low=1
    )
    hidden: int = setting(16, "units of its hidden layers; 100 in the authors' code", low=1)
    layers: int = setting(4, "its layers before those that make the model", low=1)

    def send(self, server: Server, client: str) -> Tensors:
        w = server.memory.get("hypernetwork")
        if w is None or client not in server.clients:
            return server.model
        return server.model | make_model(w, get_embedding(w, client), server.model)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        w = server.memory.get("hypernetwork") or self.create(server)
        after = train_hypernetwork(
            server,
            w,
            get_embedding,
            replies,
            lambda client: self.send(server, client),
            self.server_lr,
            self.server_momentum,
        )
        w = after.memory["hypernetwork"]
        middle = torch.stack([get_embedding(w, c) for c in server.clients]).mean(0)
        return after.update(make_model(w, middle, server.learned))

    def create(self, server: Server) -> Tensors:
        """Create the hypernetwork, with an embedding drawn for every client."""
        width = self.embedding or 1 + len(server.clients) // 4
        w = create_hypernetwork(server.learned, width, self.hidden, self.layers)
        return w | {f"embedding/{c}": torch.randn(width) for c in server.clients}


def get_embedding(w: Tensors, client: str) -> Tensor:
    return w[f"embedding/{client}"]
