"""FedReG with the logits of classes that a client lacks left out while the shared head learns.

Left-out logits are those of FedRS (Li and Zhan, KDD 2021) with their scale at 0.
"""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from heterophony.algorithms.fedreg import FedReG
from heterophony.algorithms.parts.rebalancing import rebalance
from heterophony.core.algorithm import Client
from heterophony.core.samples import ClientData, Samples
from heterophony.core.tensors import Tensors


@dataclass(frozen=True)
class MaskedFedReG(FedReG):
    """Train an own head on the data as they are; train the shared head on held classes only."""

    def local(self, client: Client) -> Tensors:
        net, counts, target = client.net, client.data.counts, self.compute_target(client)
        absent = (counts > 0).float().log()  # 0 where a class is held, -inf where not

        def own_loss(x: Tensor, y: Tensor) -> Tensor:
            return client.loss(self.predict(client, x), y)

        def masked_loss(x: Tensor, y: Tensor) -> Tensor:
            return client.loss(net(x) + absent, y)

        def rebalanced(data: ClientData) -> Samples:
            return rebalance(data.train, target, self.augment)

        client.fit(own_loss, train=[net.base, net.own], phase="own")
        shared = partial(client.fit, masked_loss, train=[net.base, net.head], phase="generic")
        shared(data=client.once(rebalanced))
        return client.shared() | {"fedreg/effective": counts.clamp(max=target).sum()}
