"""FedRep: Collins et al., Exploiting shared representations, ICML 2021."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm, Client, setting
from ..core.tensors import Tensors


@dataclass(frozen=True)
class FedRep(Algorithm):
    """Share the representation, keep the head; train the head first, then the representation."""

    paper = "Collins et al., ICML 2021"
    personal = ("head.*",)
    head_epochs: int = setting(5, "epochs for the head, the base frozen", low=0)
    base_epochs: int = setting(1, "epochs for the base, the head frozen", low=0)

    def local(self, client: Client) -> Tensors:
        client.fit(train=client.net.head, epochs=self.head_epochs, phase="head")
        client.fit(train=client.net.base, epochs=self.base_epochs)
        return client.shared()
