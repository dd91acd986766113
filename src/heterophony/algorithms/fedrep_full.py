"""FedRep-full: the variant of FedRep in FedAvg2Rep, which also shares the head."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.algorithm import Algorithm, Client, Reply, Server, equally, mean
from ..core.tensors import Tensors


@dataclass(frozen=True)
class FedRepFull(Algorithm):
    """Train only the head in all steps except the last, which trains the whole model; average everything."""

    paper = "FedAvg2Rep"
    separates_head = True

    def local(self, client: Client) -> Tensors:
        client.fit(train=client.net.head, steps=client.steps - 1, phase="head")
        client.fit(steps=min(1, client.steps))  # a separate phase draws a new order
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        return server.update(mean(replies, weight=equally))

    def ready(self, t: int) -> bool:
        return False  # the paper has no P; here it is measured once, after the last round

    def adapt(self, client: Client) -> None:
        client.fit(train=client.net.head, steps=client.steps - 1, phase="tune")
