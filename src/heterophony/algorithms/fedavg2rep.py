"""FedAvg2Rep: FedAvg for the first rounds, then FedRep-full."""

from dataclasses import dataclass

from ..core.algorithm import Client, setting
from ..core.tensors import Tensors
from .fedrep_full import FedRepFull


@dataclass(frozen=True)
class FedAvg2Rep(FedRepFull):
    """Train FedAvg for the first rounds, then FedRep-full; nothing is reset at the switch."""

    warmup_rounds: int = setting(500, "rounds of FedAvg", low=0)
    warmup_steps: int = setting(4, "mini-batches per round of FedAvg", low=1)

    def local(self, client: Client) -> Tensors:
        if client.t >= self.warmup_rounds:
            return super().local(client)
        client.fit(steps=self.warmup_steps)
        return client.shared()

    def adapt(self, client: Client) -> None:
        if client.t > self.warmup_rounds:  # before the switch it is FedAvg, where P equals G
            super().adapt(client)
