"""FedRoD whose own head is fitted after training, on features that are computed once."""

from dataclasses import dataclass

from torch import Tensor

from heterophony.algorithms.fedrod import FedRoD
from heterophony.core.algorithm import Client, setting
from heterophony.core.samples import Samples
from heterophony.core.tensors import Tensors


@dataclass(frozen=True)
class CachedHead(FedRoD):
    """Train base and generic head with a balanced loss; then fit the own head on cached features."""

    own_epochs: int = setting(10, "epochs of the own head, over cached features", low=0)

    def local(self, client: Client) -> Tensors:
        net, prior = client.net, client.data.counts.log()

        def balanced_loss(x: Tensor, y: Tensor) -> Tensor:
            return client.loss(net(x) + prior, y)

        def own_loss(z: Tensor, y: Tensor) -> Tensor:
            return client.loss(net.head(z).detach() + net.own(z), y)

        client.fit(balanced_loss, train=[net.base, net.head])
        features = Samples(client.features(), client.data.train.labels)
        client.fit(own_loss, train=net.own, data=features, epochs=self.own_epochs, phase="own")
        return client.shared()
