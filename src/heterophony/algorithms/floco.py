"""Floco: Grinwald et al., Federated learning over connected modes, NeurIPS 2024.

Points of a client's region are projected onto the simplex; in the authors' code they may lie
outside. There, all clients train in the round before regions are assigned; here each client's last
update up to then is used, and a client without one keeps the whole simplex. Floco+, which adds
a personal model, is not included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, mean, setting
from ..core.tensors import Tensors, answer
from .parts.clusters import reset_layers
from .parts.layers import find_last_linear
from .parts.mixing import project_onto_simplex, spread_over_simplex


@dataclass(frozen=True)
class Floco(Algorithm):
    """Train a simplex of last layers; each client trains in its own region, found from the clients' updates."""

    paper = "Grinwald et al., NeurIPS 2024"
    uses_features = True
    vertices: int = setting(6, "corners of the simplex, M", low=1)
    tau: int = setting(10, "rounds in which all clients train the whole simplex", low=1)
    rho: float = setting(0.1, "radius of a client's region, in the L1 norm", low=0)

    def build(self, net: Net) -> Net:
        if self.vertices > 1:
            _, last = find_last_linear(net, True)
            size = (last.in_features, last.out_features)
            corners = (nn.Linear(*size, bias=False) for _ in range(self.vertices - 1))
            net.add_module("corners", nn.ModuleList(map(reset_layers, corners)))
        return net

    def send(self, server: Server, client: str) -> Tensors:
        centres = server.memory.get("centres", Tensors())
        return server.model | ({"floco/centre": centres[client]} if client in centres else {})

    def local(self, client: Client) -> Tensors:
        client.fit(
            lambda x, y: client.loss(self.forward_at_point(client, x, self.draw_point(client)), y)
        )
        return client.shared()

    def draw_point(self, client: Client) -> list[float]:
        """Draw a point of the client's region, or of the whole simplex if the client has no region yet."""
        if self.vertices == 1:
            return [1.0]
        centre = client.received.get("floco/centre")
        if centre is None:
            point = -torch.rand(self.vertices).clamp(min=1e-30).log()
            return (point / point.sum()).tolist()
        away = 2 * torch.rand(self.vertices) - 1
        point = centre.cpu() + self.rho * torch.rand(()) * away / away.abs().sum()
        return project_onto_simplex(point.double(), 1.0).tolist()

    def forward_at_point(self, client: Client, x: Tensor, point: Sequence[float]) -> Tensor:
        """Return the net's output with the last layer at a point of the simplex."""
        if self.vertices == 1:
            return client.net(x)
        name = f"head.{find_last_linear(client.net, False)[0]}".rstrip(".") + ".weight"
        corners = [client.net.get_parameter(name), *client.net.corners.parameters()]
        mixed = sum(
            (a * w for a, w in zip(point, corners, strict=True)), torch.zeros_like(corners[0])
        )
        return answer(client.net, {name: mixed}, x)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        after = server.update(mean(replies))
        if self.vertices == 1 or server.t >= self.tau:
            return after
        moves = {r.client: flatten_move(server, r) for r in replies}
        known = server.memory.get("moves", Tensors()) | moves
        if server.t + 1 < self.tau:
            return after.update(moves=known)
        points = spread_over_simplex(torch.stack(list(known.values())), self.vertices)
        return after.update(moves=Tensors(), centres=Tensors(zip(known, points, strict=True)))

    def predict(self, client: Client, x: Tensor) -> Tensor:
        centre = client.received.get("floco/centre")
        return (
            self.generic(client, x)
            if centre is None
            else self.forward_at_point(client, x, centre.tolist())
        )

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return self.forward_at_point(client, x, [1 / self.vertices] * self.vertices)


def flatten_move(server: Server, reply: Reply) -> Tensor:
    """Return the change of the simplex's corners and the head in a reply, as one vector."""
    names = [k for k in server.learned if k.startswith(("corners.", "head."))]
    return torch.cat([(server.model[k] - reply.tensors[k]).flatten() for k in names])
