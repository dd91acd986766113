"""FedRep: Collins et al., Exploiting shared representations, ICML 2021."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from ..algorithm import Algorithm, Client, setting
from ..tensors import Tensors


@dataclass(frozen=True)
class FedRep(Algorithm):
    """Share the representation, keep the head; train the head first, then the representation."""

    paper = "Collins et al., ICML 2021"
    personal = ("head.*",)
    head_epochs: int = setting(5, "epochs for the head, the base frozen", low=0)
    base_epochs: int = setting(1, "epochs for the base, the head frozen", low=0)

    def local(self, client: Client) -> Tensors:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(client.net(x), y)

        client.fit(loss, train=client.net.head, epochs=self.head_epochs, phase="head")
        client.fit(loss, train=client.net.base, epochs=self.base_epochs)
        return client.shared()
