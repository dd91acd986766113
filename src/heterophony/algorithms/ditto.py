"""Ditto: Li et al., Fair and robust federated learning through personalization, ICML 2021."""

from copy import deepcopy
from dataclasses import dataclass

from torch import Tensor

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.tensors import Tensors, weights


@dataclass(frozen=True)
class Ditto(Algorithm):
    """Train FedAvg and, alongside it, a personal model per client that is kept close to the generic one."""

    paper = "Li et al., ICML 2021"
    personal = ("own.*",)
    lam: float = setting(1.0, "strength of the proximal term towards the received model", low=0)
    own_epochs: int | None = setting(
        None, "epochs of the personal model; default: as many as local training", low=0
    )

    def build(self, net: Net) -> Net:
        net.add_module("own", deepcopy(net))
        return net

    def local(self, client: Client) -> Tensors:
        net = client.net
        received = weights(net).without("own.*").under("own.")

        def personal_loss(x: Tensor, y: Tensor) -> Tensor:
            return client.loss(net.own(x), y)

        near = (lambda w: self.lam * (w - received)) if self.lam else None
        client.fit(personal_loss, train=net.own, epochs=self.own_epochs, pull=near)
        client.fit(train=[net.base, net.head])
        return client.shared()

    def predict(self, client: Client, x: Tensor) -> Tensor:
        return client.net.own(x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)
