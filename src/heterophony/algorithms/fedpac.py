"""FedPAC: Xu et al., Feature alignment and classifier collaboration, ICLR 2023."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Reply, Server, mean, setting
from ..core.tensors import Tensors, mix
from .parts.mixing import minimise_on_simplex


@dataclass(frozen=True)
class FedPAC(Algorithm):
    """Align features to common class centres; send each client the best mixture of all heads."""

    paper = "Xu et al., ICLR 2023"
    needs_classes = separates_head = True
    lam: float = setting(1.0, "weight of the alignment", low=0)

    def send(self, server: Server, client: str) -> Tensors:
        first = server.memory.get("head", Tensors())  # used by clients that never took part
        head = server.memory.get(f"head/{client}", first)
        return server.model | head | server.memory.get("centres", Tensors())

    def local(self, client: Client) -> Tensors:
        net, centres = client.net, client.received.get("fedpac/centres")
        extras = compute_bound_terms(client)

        def alignment_loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            out = client.loss(net.head(z), y)
            if centres is None:
                return out
            target = centres[y]
            known = target.any(1, keepdim=True)  # the centre of a class without examples is zero
            return out + self.lam * (known * (z - target).square()).mean()

        client.fit(train=net.head, epochs=1, phase="head")
        client.fit(alignment_loss, train=net.base)
        counts = client.data.counts
        centred = sum_by_class(client, client.features()) / counts.clamp(min=1)[:, None]
        extras |= {"centres": centred, "held": counts.float()}
        return client.shared() | Tensors(extras).under("fedpac/")

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        heads = [r.tensors.only("head.*") for r in replies]
        extras = [r.tensors.below("fedpac/") for r in replies]
        rows = solve_head_mixtures([e["variance"] for e in extras], [e["weighted"] for e in extras])
        own = {f"head/{r.client}": mix(heads, row) for r, row in zip(replies, rows, strict=True)}
        held = torch.stack([e["held"] for e in extras]).double()[:, :, None]
        means = held * torch.stack([e["centres"] for e in extras])
        means = means.sum(0) / held.sum(0).clamp(min=1)
        centres = Tensors({"fedpac/centres": means.float()})
        first = server.memory.get("head", server.model.only("head.*"))
        model = mean(replies, "base.*", "head.*")  # this head is used for G only
        return server.update(model, head=first, centres=centres, **own)


def sum_by_class(client: Client, z: Tensor) -> Tensor:
    """Sum the features of a client's examples by class."""
    out = z.new_zeros(client.data.classes, z.shape[1])
    return out.index_add_(0, client.data.train.labels, z)


def compute_bound_terms(client: Client) -> dict[str, Tensor]:
    """Compute V and H of FedPAC's bias-variance bound from the features of the received base."""
    z, n = client.features(), len(client.data.train)
    weighted = sum_by_class(client, z) / n  # frequency of the class times its centre
    spread = z.double().square().sum() / n - weighted.double().square().sum()
    return {"variance": (spread.clamp(min=0) / n).float(), "weighted": weighted}


def solve_head_mixtures(
    variances: Sequence[Tensor], weighted: Sequence[Tensor]
) -> list[list[float]]:
    """Find each client's mixture of all heads: the weights a that minimise a'(diag V + D_i)a."""
    v, h = torch.stack(list(variances)).double(), torch.stack(list(weighted)).double().flatten(1)
    rows = []
    for i, own in enumerate(h):
        a = minimise_on_simplex(v.diag() + (own - h) @ (own - h).T, start=i)
        if a is None:
            a = torch.eye(len(h), dtype=torch.float64)[i]
        a = torch.where(a < 1e-3, 0.0, a)
        rows.append((a / a.sum()).tolist())
    return rows
