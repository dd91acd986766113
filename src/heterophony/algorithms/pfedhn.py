"""pFedHN: Shamsian et al., Personalized federated learning using hypernetworks, ICML 2021.

A round is one step of the hypernetwork, on the mean over its clients; the authors' code has one
client per round, a learning rate of 0.01 and weight decay, for thousands of rounds. Here lr / (1 -
momentum) is 1, so the biases of the hypernetwork move about as far as FedAvg's model does. G is
measured with the model of the mean embedding, which is also sent to new clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Reply, Server
from ..core.tensors import Tensors
from .parts.hypernetworks import HypernetworkOnServer, make_model


@dataclass(frozen=True)
class PFedHN(HypernetworkOnServer):
    """Generate each client's model with a hypernetwork on the server, from a learned embedding of the client."""

    paper = "Shamsian et al., ICML 2021"

    def send(self, server: Server, client: str) -> Tensors:
        w = server.memory.get("hypernetwork")
        if w is None or client not in server.clients:
            return server.model
        return server.model | make_model(w, get_embedding(w, client), server.model)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        after = self.update_hypernetwork(server, replies, get_embedding)
        w = after.memory["hypernetwork"]
        middle = torch.stack([get_embedding(w, c) for c in server.clients]).mean(0)
        return after.update(make_model(w, middle, server.learned))

    def create_parameters(self, server: Server) -> Tensors:
        width = self.get_embedding_width(server)
        drawn = {f"embedding/{c}": torch.randn(width) for c in server.clients}
        return super().create_parameters(server) | drawn


def get_embedding(w: Tensors, client: str) -> Tensor:
    """Return the learned embedding of a client, the input of the hypernetwork."""
    return w[f"embedding/{client}"]
