"""PeFLL: Scott et al., Personalized federated learning by learning to learn, ICLR 2024.

The embedding net is the smaller one of the authors' code, a linear layer of labels: its mean
over a client's examples depends only on the client's label frequencies, so the server can train it.
In the authors' code, a client and the server exchange messages twice per round: embedding, then
model. Here, a client whose label frequencies the server does not know yet receives the hypernetwork
and makes its model itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..core.algorithm import Client, Reply, Server
from ..core.tensors import Tensors, load_into_net
from .parts.hypernetworks import HypernetworkOnServer, make_model

PREFIX = "pefll/"
FREQUENCIES = "pefll/frequencies"


@dataclass(frozen=True)
class PeFLL(HypernetworkOnServer):
    """Generate each client's model with a hypernetwork, from an embedding of its data; new clients need no training."""

    paper = "Scott et al., ICLR 2024"
    needs_classes = True

    def send(self, server: Server, client: str) -> Tensors:
        w, known = server.memory.get("hypernetwork"), server.memory.get("frequencies", Tensors())
        if w is None:
            return server.model
        if client not in known:
            return server.model | w.under(PREFIX)
        return server.model | make_model(w, embed_client(w, known[client]), server.model)

    def local(self, client: Client) -> Tensors:
        self.adapt(client)
        client.fit()
        return client.shared() | {FREQUENCIES: compute_frequencies(client)}

    def adapt(self, client: Client) -> None:
        """Make the model of a client that received the hypernetwork; nothing is trained."""
        w = client.received.below(PREFIX)
        if w:
            made = make_model(w, embed_client(w, compute_frequencies(client)), client.received)
            load_into_net(client.net, made)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        told = {r.client: r.tensors[FREQUENCIES] for r in replies}
        known = server.memory.get("frequencies", Tensors()) | told
        server = server.update(frequencies=known)
        after = self.update_hypernetwork(
            server, replies, lambda w, client: embed_client(w, known[client])
        )
        w, middle = after.memory["hypernetwork"], torch.stack(list(known.values())).mean(0)
        return after.update(make_model(w, embed_client(w, middle), server.learned))

    def create_parameters(self, server: Server) -> Tensors:
        classes = len(next(iter(server.memory["frequencies"].values())))
        layer = nn.Linear(classes, self.get_embedding_width(server))
        made = {f"embed.{k}": v.detach() for k, v in layer.named_parameters()}
        return super().create_parameters(server) | made

    def predict(self, client: Client, x: Tensor) -> Tensor:
        self.adapt(client)  # a new client predicts without local training
        return client.net(x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)


def embed_client(w: Tensors, frequencies: Tensor) -> Tensor:
    """Return the embedding of a client with these label frequencies."""
    return linear(frequencies, w["embed.weight"], w["embed.bias"])


def compute_frequencies(client: Client) -> Tensor:
    """Return the label frequencies of a client's training examples."""
    return client.data.counts.float() / len(client.data.train)
