"""FedRoD: Chen and Chao, On bridging generic and personalized federated learning, ICLR 2022."""

from copy import deepcopy
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from ..algorithm import Algorithm, Client, Net
from ..tensors import Tensors


@dataclass(frozen=True)
class FedRoD(Algorithm):
    """A generic head under a balanced loss, and an own head that corrects it."""

    paper = "Chen and Chao, ICLR 2022"
    personal = ("own.*",)

    def build(self, net: Net) -> Net:
        net.add_module("own", deepcopy(net.head))
        return net

    def local(self, client: Client) -> Tensors:
        net, prior = client.net, client.data.counts.log()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            generic = net.head(z)
            own = generic.detach() + net.own(z.detach())
            return cross_entropy(generic + prior, y) + cross_entropy(own, y)

        client.fit(loss)
        return client.shared()

    def predict(self, client: Client, x: Tensor) -> Tensor:
        z = client.net.base(x)
        return client.net.head(z) + client.net.own(z)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net.head(client.net.base(x))
