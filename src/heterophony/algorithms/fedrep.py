"""FedRep: Collins et al., Exploiting shared representations, ICML 2021."""

from dataclasses import dataclass

from ..core.algorithm import Algorithm, Client, setting
from ..core.tensors import Tensors
from .parts.low_rank import split_steps


@dataclass(frozen=True)
class FedRep(Algorithm):
    """Share the base and keep the head personal; train the head first, then the base."""

    paper = "Collins et al., ICML 2021"
    personal = ("head.*",)
    head_epochs: int | None = setting(
        None, "epochs of the head with the base frozen; default: 4/5 of local training", low=0
    )
    base_epochs: int | None = setting(
        None, "epochs of the base with the head frozen; default: 1/5 of local training", low=0
    )

    def local(self, client: Client) -> Tensors:
        head, base = split_steps(client, 4, of=5)
        steps = head if self.head_epochs is None else None
        client.fit(train=client.net.head, epochs=self.head_epochs, steps=steps, phase="head")
        steps = base if self.base_epochs is None else None
        client.fit(train=client.net.base, epochs=self.base_epochs, steps=steps)
        return client.shared()
