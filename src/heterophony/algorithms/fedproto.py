"""FedProto: Tan et al., Federated prototype learning across heterogeneous clients, AAAI 2022."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..core.algorithm import Client, Reply, Server, setting
from ..core.tensors import Tensors, mix
from .parts.prototypes import PrototypeAlgorithm


@dataclass(frozen=True)
class FedProto(PrototypeAlgorithm):
    """Exchange class means of features instead of models; keep features close to the common means."""

    paper = "Tan et al., AAAI 2022"
    weight: Literal["equal", "counts"] = setting("equal", "weight of a client in a prototype")

    def local(self, client: Client) -> Tensors:
        """Train; return the mean features of each class and, unless all weigh the same, its number of examples."""
        means, counts = super().local(client), client.data.counts
        if self.weight == "equal":
            return means
        return means | {f"count/{c}": counts[int(c)] for c in means.below("mean/")}

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        """Average the prototypes; a class that no reply contains keeps its previous one, if any."""
        new = Tensors()
        for k in sorted({k for r in replies for k in r.tensors if k.startswith("mean/")}):
            sent = [r.tensors for r in replies if k in r.tensors]
            sizes = [float(s.get(k.replace("mean", "count"), 1)) for s in sent]
            new = new | mix([s.only(k) for s in sent], [n / sum(sizes) for n in sizes])
        return server.update(prototypes=server.memory.get("prototypes", Tensors()) | new)
