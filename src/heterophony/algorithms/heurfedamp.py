"""HeurFedAMP: Huang et al., AAAI 2021: attention by the cosine between models, for deep networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from ..core.algorithm import setting
from ..core.tensors import Tensors
from .parts.mixing import AttentiveMessagePassing


@dataclass(frozen=True)
class HeurFedAMP(AttentiveMessagePassing):
    """Send mixtures as FedAMP does, with a fixed share of the client's own model and a softmax over cosines for the others."""

    sigma: float = setting(25.0, "sharpness of the attention", low=0)
    own_share: float | None = setting(
        None, "share of the client's own model; default: 1/N", low=0, high=1
    )

    def compute_attention(self, models: Sequence[Tensors], t: int) -> Tensor:
        n = len(models)
        if n == 1:
            return torch.ones(1, 1, dtype=torch.float64)
        norms = [w.square().double().sqrt() for w in models]
        cosines = torch.full((n, n), -torch.inf, dtype=torch.float64)  # exclude the diagonal
        for i, j in combinations(range(n), 2):
            cosine = models[i].dot(models[j]).double() / (norms[i] * norms[j])
            cosines[i, j] = cosines[j, i] = self.sigma * cosine
        own = 1 / n if self.own_share is None else self.own_share
        return (1 - own) * torch.softmax(cosines, 1) + own * torch.eye(n, dtype=torch.float64)
