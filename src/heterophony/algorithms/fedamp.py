"""FedAMP: Huang et al., Personalized cross-silo federated learning on non-IID data, AAAI 2021."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from ..core.algorithm import Reply, Server, setting
from ..core.tensors import Tensors
from .parts.mixing import AttentiveMessagePassing


@dataclass(frozen=True)
class FedAMP(AttentiveMessagePassing):
    """Send each client a mixture of all models, in which models near its own have the largest weights."""

    sigma: float = setting(1e6, "scale of squared distances between models", above=0)

    def compute_attention(self, models: Sequence[Tensors], t: int) -> Tensor:
        xi = torch.zeros(len(models), len(models), dtype=torch.float64)
        for i, j in combinations(range(len(models)), 2):
            distance = (models[i] - models[j]).square().double()
            xi[i, j] = xi[j, i] = (-distance / self.sigma).exp()
        xi *= self.compute_alpha(t) / self.sigma
        whole = xi.sum(1, keepdim=True)
        xi /= whole.clamp(min=1)  # otherwise the share of the client's own model would be negative
        return xi + torch.diag((1 - whole.flatten()).clamp(min=0))

    def measures(self, server: Server, replies: Sequence[Reply], after: Server) -> dict[str, float]:
        """Count the clients whose attention was scaled down so far that their own model has no share."""
        return {"rescaled": float((after.memory["attention"]["xi"].diagonal() == 0).sum())}
