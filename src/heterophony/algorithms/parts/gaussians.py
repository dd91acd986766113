"""Gaussian heads: class means and one covariance of features, and the linear classifier they make."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...core.algorithm import Client
from ...core.samples import ClientData

SHRINKAGE = 1e-4  # of a covariance towards its mean diagonal, so that it can be inverted
RARE = 1e-4  # added to the frequency of every class, so that its logarithm is finite


class GaussianHead(nn.Module):
    """Classify features by class means and a common covariance; all classes are equally likely."""

    means: Tensor
    covariance: Tensor

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.means = nn.Parameter(means.detach().clone())
        self.covariance = nn.Parameter(torch.eye(means.shape[1]))

    def forward(self, z: Tensor) -> Tensor:
        weight, bias = compute_discriminant(self.means, self.covariance)
        return linear(z, weight, bias)

    @torch.no_grad()
    def load(self, means: Tensor, covariance: Tensor) -> None:
        """Take over these estimates."""
        self.means.copy_(means)
        self.covariance.copy_(covariance)


@torch.no_grad()
def compute_discriminant(means: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Compute weights and biases of the linear discriminant, without prior."""
    m, c = means.double(), covariance.double()
    diagonal = c.diagonal().mean() * torch.eye(len(c), dtype=c.dtype, device=c.device)
    weight = torch.linalg.solve((1 - SHRINKAGE) * c + SHRINKAGE * diagonal, m.T).T
    return weight.to(means), (-0.5 * (m * weight).sum(1)).to(means)


def compute_log_prior(data: ClientData) -> Tensor:
    """Compute the logarithms of the client's class frequencies; no class is impossible."""
    shares = data.counts / data.counts.sum() + RARE
    return (shares / shares.sum()).log()


def estimate_gaussian(
    z: Tensor, labels: Tensor, common: Tensor, ridge: float, at_least: int
) -> tuple[Tensor, Tensor]:
    """Estimate class means and the covariance of features around them.

    A class with fewer than ``at_least`` examples has its ``common`` mean.
    """
    z, means = z.double(), common.double()
    counts = torch.bincount(labels, minlength=len(means)).to(z)
    sums = torch.zeros_like(means).index_add_(0, labels, z)
    held = (counts >= at_least)[:, None]
    means = torch.where(held, sums / counts.clamp(min=1)[:, None], means)
    around = z - means[labels]
    scatter = around.T @ around / max(len(z) - 1, 1)
    return means, scatter + ridge * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)


def split_by_class(labels: Tensor) -> Tensor:
    """Say of every example which of two halves it is in; each class is split evenly."""
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    first = (counts.cumsum(0) - counts)[labels[order]]
    ranks = torch.arange(len(labels), device=labels.device) - first
    return torch.zeros_like(labels).index_copy_(0, order, ranks % 2).bool()


def get_gaussian_head(client: Client) -> GaussianHead:
    head = client.net.get_submodule("head")
    assert isinstance(head, GaussianHead)
    return head
