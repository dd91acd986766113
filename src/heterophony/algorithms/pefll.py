"""PeFLL: Scott et al., Personalized federated learning by learning to learn, ICLR 2024.

The embedding is the smaller one of the authors' code, a linear layer of labels: the mean over a client's examples is that of its label
frequencies, so that the server can train it. There a client and the server exchange twice in a round, embedding and model; here a client
whose frequencies the server does not know yet is sent the hypernetwork, and makes its model itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..core.algorithm import Algorithm, Client, Reply, Server, setting
from ..core.tensors import Tensors, load_into_net
from .parts.hypernetworks import create_hypernetwork, make_model, train_hypernetwork

PREFIX = "pefll/"
FREQUENCIES = "pefll/frequencies"


@dataclass(frozen=True)
class PeFLL(Algorithm):
    """Let a hypernetwork make every client's model of an embedding of its data; new clients need no training."""

    paper = "Scott et al., ICLR 2024"
    needs_classes = True
    server_lr: float = setting(0.1, "learning rate of hypernetwork and embedding", above=0)
    server_momentum: float = setting(0.9, "their momentum", low=0, high=1)
    embedding: int | None = setting(
        None, "width of an embedding; default: a quarter of the number of clients, plus 1", low=1
    )
    hidden: int = setting(16, "units of its hidden layers; 100 in the authors' code", low=1)
    layers: int = setting(4, "its layers before those that make the model", low=1)

    def send(self, server: Server, client: str) -> Tensors:
        w, known = server.memory.get("hypernetwork"), server.memory.get("frequencies", Tensors())
        if w is None:
            return server.model
        if client not in known:
            return server.model | w.under(PREFIX)
        return server.model | make_model(w, embed(w, known[client]), server.model)

    def local(self, client: Client) -> Tensors:
        self.adapt(client)
        client.fit()
        return client.shared() | {FREQUENCIES: compute_frequencies(client)}

    def adapt(self, client: Client) -> None:
        """Make the model of a client that was sent the hypernetwork; nothing is trained."""
        w = client.received.below(PREFIX)
        if w:
            made = make_model(w, embed(w, compute_frequencies(client)), client.received)
            load_into_net(client.net, made)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        told = {r.client: r.tensors[FREQUENCIES] for r in replies}
        known = server.memory.get("frequencies", Tensors()) | told
        server = server.update(frequencies=known)
        w = server.memory.get("hypernetwork") or self.create(server)
        after = train_hypernetwork(
            server,
            w,
            lambda w, client: embed(w, known[client]),
            replies,
            lambda client: self.send(server, client),
            self.server_lr,
            self.server_momentum,
        )
        w, middle = after.memory["hypernetwork"], torch.stack(list(known.values())).mean(0)
        return after.update(make_model(w, embed(w, middle), server.learned))

    def create(self, server: Server) -> Tensors:
        """Create the hypernetwork and the layer that embeds label frequencies."""
        width = self.embedding or 1 + len(server.clients) // 4
        classes = len(next(iter(server.memory["frequencies"].values())))
        layer = nn.Linear(classes, width)
        w = create_hypernetwork(server.learned, width, self.hidden, self.layers)
        return w | {f"embed.{k}": v.detach() for k, v in layer.named_parameters()}

    def predict(self, client: Client, x: Tensor) -> Tensor:
        self.adapt(client)  # a new client predicts when it arrives
        return client.net(x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)


def embed(w: Tensors, frequencies: Tensor) -> Tensor:
    return linear(frequencies, w["embed.weight"], w["embed.bias"])


def compute_frequencies(client: Client) -> Tensor:
    return client.data.counts.float() / len(client.data.train)
