"""FedReG in one pass: the balanced copy trains base and shared head, and the own head on its features.

The own head's gradients are stopped, as in FedRoD; absent classes are left out, as in FedRS.
"""

from dataclasses import dataclass

from torch import Tensor

from heterophony.algorithms.fedreg import FedReG
from heterophony.algorithms.parts.rebalancing import rebalance
from heterophony.core.algorithm import Client
from heterophony.core.samples import ClientData, Samples
from heterophony.core.tensors import Tensors


@dataclass(frozen=True)
class OnePassFedReG(FedReG):
    """Train the shared head on balanced data, and in the same pass an own head that corrects it."""

    def local(self, client: Client) -> Tensors:
        net, counts, target = client.net, client.data.counts, self.compute_target(client)
        absent = (counts > 0).float().log()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            shared = net.head(z)
            own = shared.detach() + net.own(z.detach())
            return client.loss(shared + absent, y) + client.loss(own, y)

        def rebalanced(data: ClientData) -> Samples:
            return rebalance(data.train, target, self.augment)

        client.fit(loss, data=client.once(rebalanced))
        return client.shared() | {"fedreg/effective": counts.clamp(max=target).sum()}
