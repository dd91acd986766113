"""FedRep: Collins et al., Exploiting shared representations, ICML 2021."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm, Client, setting
from ..core.tensors import Tensors


@dataclass(frozen=True)
class FedRep(Algorithm):
    """Share the base; the head is personal and is trained first, then the base."""

    paper = "Collins et al., ICML 2021"
    personal = ("head.*",)
    head_epochs: int = setting(5, "epochs of the head with the base frozen", low=0)
    base_epochs: int = setting(1, "epochs of the base with the head frozen", low=0)

    def local(self, client: Client) -> Tensors:
        client.fit(train=client.net.head, epochs=self.head_epochs, phase="head")
        client.fit(train=client.net.base, epochs=self.base_epochs)
        return client.shared()
