"""FedReG (FedReb): two heads on one base; the shared one is taught by a balanced copy of the data."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, as_agreed, mean, setting
from ..core.samples import ClientData, Samples
from ..core.tensors import Tensors
from .parts.rebalancing import rebalance
from .parts.threshold import Threshold, compute_statistic

ThresholdScope = Literal["class_nonzero", "client_size"]


@dataclass(frozen=True)
class FedReG(Algorithm):
    """The own head learns the data as they are; the shared head learns them balanced."""

    paper = "FedReG; FedReb thesis"
    personal = ("own.*",)
    head_depth = 2
    threshold: Threshold = setting("mean", "the statistic that every class is balanced to")
    threshold_scope: ThresholdScope = setting(
        "class_nonzero", "of own class counts, or of client sizes"
    )
    augment: Literal["simple", "auto", "copy"] = setting("simple", "how small classes are filled")
    weights: Literal["split", "origin"] = setting("split", "heads by effective or all samples")
    variant: Literal["full", "a", "b", "c", "d"] = setting(
        "full", "without: a split weights, b own head, c balance, d own phase"
    )

    def build(self, net: Net) -> Net:
        if self.variant not in ("b", "d"):
            net.add_module("own", deepcopy(net.head))
        return net

    def send(self, server: Server, client: str) -> Tensors:
        if self.threshold_scope == "class_nonzero":
            return server.model
        sizes = torch.tensor(list(server.samples.values()))
        return server.model | {"fedreg/size": compute_statistic(sizes, self.threshold)}

    def local(self, client: Client) -> Tensors:
        net = client.net

        def own(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(self.predict(client, x), y)

        def generic(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(self.generic(client, x), y)

        def rebalanced(data: ClientData) -> Samples:
            return rebalance(data.train, target, self.augment)

        target = self.target(client)
        if self.variant != "d":
            mine = net.head if self.variant == "b" else net.own
            client.fit(own, train=[net.base, mine], phase="own")
        data = client.data.train if self.variant == "c" else client.once(rebalanced)
        client.fit(generic, train=[net.base, net.head], data=data, phase="generic")
        held = client.data.counts
        effective = held if self.variant == "c" else held.clamp(max=target)
        return client.shared() | {"fedreg/effective": effective.sum()}

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        def effective(reply: Reply) -> float:
            return reply.tensors["fedreg/effective"].item()

        origin = self.weights == "origin" or self.variant == "a"
        base, head = mean(replies, "base.*"), as_agreed if origin else effective
        return server.update(base | mean(replies, "head.*", weight=head))

    def predict(self, client: Client, x: Tensor) -> Tensor:
        if self.variant in ("b", "d"):
            return self.generic(client, x)
        z = client.net.base(x)
        return client.net.head(z) + client.net.own(z)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net.head(client.net.base(x))

    def target(self, client: Client) -> int:
        """How many examples every class that the client holds gets."""
        held = client.data.counts[client.data.counts > 0]
        if self.threshold_scope == "class_nonzero":
            return max(1, int(compute_statistic(held, self.threshold)))
        return max(1, int(client.received["fedreg/size"] / len(held)))
