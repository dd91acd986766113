"""FedAMP: Huang et al., Personalized cross-silo federated learning on non-IID data, AAAI 2021."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from ..core.algorithm import Reply, Server, setting
from ..core.tensors import Tensors
from .parts.personal_cloud_models import AttentiveMessagePassing


@dataclass(frozen=True)
class FedAMP(AttentiveMessagePassing):
    """The server mixes, for every client, the models nearest to its own."""

    sigma: float = setting(1e6, "scale of squared distances between models", above=0)

    def compute_attention(self, models: Sequence[Tensors], t: int) -> Tensor:
        xi = torch.zeros(len(models), len(models), dtype=torch.float64)
        for i, j in combinations(range(len(models)), 2):
            distance = (models[i] - models[j]).square().double()
            xi[i, j] = xi[j, i] = (-distance / self.sigma).exp()
        xi *= self.alpha_at(t) / self.sigma
        whole = xi.sum(1, keepdim=True)
        xi /= whole.clamp(min=1)  # else the own share would be negative
        return xi + torch.diag((1 - whole.flatten()).clamp(min=0))

    def measures(self, server: Server, replies: Sequence[Reply], after: Server) -> dict[str, float]:
        """How many clients' attention had to be scaled down: they get nothing of their own."""
        return {"rescaled": float((after.memory["attention"]["xi"].diagonal() == 0).sum())}
