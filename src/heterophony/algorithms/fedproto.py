"""FedProto: Tan et al., Federated prototype learning across heterogeneous clients, AAAI 2022."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Reply, Server, setting
from ..core.tensors import Tensors, mix


@dataclass(frozen=True)
class FedProto(Algorithm):
    """Exchange class means of features instead of models; hold features near the common means."""

    paper = "Tan et al., AAAI 2022"
    needs_classes = True
    personal = ("*",)
    uses_features = True
    common = False
    lam: float = setting(1.0, "weight of the distance to the prototypes", low=0)
    weight: Literal["equal", "counts"] = setting("equal", "weight of a client in a prototype")

    def send(self, server: Server, client: str) -> Tensors:
        return server.memory.get("prototypes", Tensors())

    def local(self, client: Client) -> Tensors:
        net, known = client.net, client.received.below("mean/")

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            out = client.loss(net.head(z), y)
            here = y.new_tensor([str(c) in known for c in y.tolist()], dtype=torch.bool)
            if not self.lam or not here.any():
                return out
            goal = torch.stack([known[str(c)] for c in y[here].tolist()])
            return out + self.lam * (z[here] - goal).square().sum() / z.numel()

        client.fit(loss)
        if known:
            client.metrics["P_prototype"] = compute_prototype_accuracy(client, known)
        return self.compute_prototypes(client)

    def compute_prototypes(self, client: Client) -> Tensors:
        """Compute the mean features of every class held, and its number of examples where needed."""
        z, labels, counts = client.features(), client.data.train.labels, client.data.counts
        held = counts.nonzero().flatten().tolist()
        means = Tensors({f"mean/{c}": z[labels == c].mean(0) for c in held})
        if self.weight == "equal":
            return means
        return means | {f"count/{c}": counts[c] for c in held}

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        """Average the prototypes; a class that no reply has keeps the previous one, if any."""
        new = Tensors()
        for k in sorted({k for r in replies for k in r.tensors if k.startswith("mean/")}):
            sent = [r.tensors for r in replies if k in r.tensors]
            sizes = [float(s.get(k.replace("mean", "count"), 1)) for s in sent]
            new = new | mix([s.only(k) for s in sent], [n / sum(sizes) for n in sizes])
        return server.update(prototypes=server.memory.get("prototypes", Tensors()) | new)


@torch.inference_mode()
def compute_prototype_accuracy(client: Client, known: Tensors) -> float:
    """Compute the share of test examples whose nearest prototype is of their class, as a metric."""
    client.net.eval()
    means = torch.stack(list(known.values()))
    classes = means.new_tensor([int(c) for c in known], dtype=torch.int64)
    right = 0
    for x, y in client.data.test.batches(250):
        at = torch.cdist(client.net.base(x).flatten(1), means.flatten(1)).argmin(1)
        right += int((classes[at] == y).sum())
    return right / max(1, len(client.data.test))
