"""FedCAC: Wu et al., Bold but cautious: critical parameter collaboration, ICCV 2023."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, mean, setting
from ..core.tensors import Tensors, mix, weights
from .parts.layers import pack_bits, unpack_bits


@dataclass(frozen=True)
class FedCAC(Algorithm):
    """Average non-critical parameters over all clients, critical ones over clients with similar critical ones."""

    paper = "Wu et al., ICCV 2023"
    critical: float = setting(0.5, "fraction of each tensor that is critical", low=0, high=1)
    beta: int = setting(100, "rounds until critical parameters are no longer shared", low=1)

    def shared(self, net: Net, t: int, buffers: bool = False) -> list[str]:
        return super().shared(net, t)  # running statistics are always personal

    def send(self, server: Server, client: str) -> Tensors:
        custom = server.memory.get(f"custom/{client}")
        if custom is None:
            return server.model
        bits = unpack_bits(server.memory[f"critical/{client}"]["bits"])
        sizes = [v.numel() for v in server.model.values()]
        flat = dict(zip(server.model, bits[: sum(sizes)].split(sizes), strict=True))
        return server.model.map(
            lambda w, c, own: torch.where(own.view(w.shape), c, w), custom, Tensors(flat)
        )

    def local(self, client: Client) -> Tensors:
        before = weights(client.net)

        client.fit()
        masks = weights(client.net).map(self.find_critical, before)
        bits = torch.cat([m.flatten() for m in masks.values()])
        return client.shared() | Tensors({"critical/bits": pack_bits(bits)})

    def find_critical(self, after: Tensor, before: Tensor) -> Tensor:
        """Mark the critical parameters of a tensor: the k entries whose removal would increase the loss most."""
        score = ((after - before) * after).abs()
        k = int(self.critical * score.numel() + 1e-9)
        if k == 0:
            return torch.zeros_like(score, dtype=torch.bool)
        cut = score.flatten().topk(k).values[-1]
        if cut <= 1e-10:  # if most entries never moved, only the moved ones are critical
            moved = score[score > 1e-20]
            cut = moved.min() if len(moved) else score.new_tensor(torch.inf)
        return score >= cut

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        models = [r.tensors.without("critical/*") for r in replies]
        bits = [r.tensors.below("critical/") for r in replies]
        overlaps = compute_overlaps([unpack_bits(b["bits"]) for b in bits])
        near = self.find_collaborators(server.t + 1, overlaps)
        memory = {f"critical/{r.client}": b for r, b in zip(replies, bits, strict=True)}
        for r, row in zip(replies, near.tolist(), strict=True):
            group = [w for w, chosen in zip(models, row, strict=True) if chosen]
            memory[f"custom/{r.client}"] = mix(group, [1 / len(group)] * len(group))
        return server.update(mean(replies, *server.model), **memory)

    def find_collaborators(self, t: int, overlap: Tensor) -> Tensor:
        """Mark, in row i, the clients that client i collaborates with in round t = 1, 2, …, including itself."""
        me = torch.eye(len(overlap), dtype=torch.bool)
        if len(overlap) == 1:
            return me
        most, usual = overlap[~me].max(), overlap[~me].mean()
        return me | (overlap >= most - (1 - t / self.beta) * (most - usual))


def compute_overlaps(masks: Sequence[Tensor]) -> Tensor:
    """Compute the overlap of critical parameters, 1 - |M_i - M_j| / 2|M_i|, of each pair of clients."""
    distances = torch.zeros(len(masks), len(masks), dtype=torch.float64)
    for i, j in combinations(range(len(masks)), 2):
        distances[i, j] = distances[j, i] = (masks[i] ^ masks[j]).sum()
    return 1 - distances / (2 * torch.stack([m.sum() for m in masks]).clamp(min=1)[:, None])
