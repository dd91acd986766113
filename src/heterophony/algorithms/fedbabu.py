"""FedBABU: Oh et al., Towards enhanced representation for federated image classification, ICLR 2022."""

from dataclasses import dataclass
from typing import Literal

from ..core.algorithm import Algorithm, Client, setting
from ..core.tensors import Tensors


@dataclass(frozen=True)
class FedBABU(Algorithm):
    """Train and share only the base, with a fixed random head; fine-tune each client's head before use."""

    paper = "Oh et al., ICLR 2022"
    personal = ("head.*",)
    tune_epochs: int = setting(10, "epochs of fine-tuning before P is measured", low=0)
    tune_part: Literal["head", "full"] = setting("head", "part that fine-tuning trains")
    tune_every: int = setting(10, "rounds between measurements of P", low=1)

    def local(self, client: Client) -> Tensors:
        client.fit(train=client.net.base)
        return client.shared()

    def ready(self, t: int) -> bool:
        return t % self.tune_every == 0

    def adapt(self, client: Client) -> None:
        part = client.net.head if self.tune_part == "head" else client.net
        client.fit(train=part, epochs=self.tune_epochs, phase="tune")
