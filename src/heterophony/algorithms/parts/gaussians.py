"""Gaussian heads: class means and a common covariance of features, and the linear classifier they define."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...core.algorithm import Client
from ...core.samples import ClientData
from ...core.tensors import Tensors

SHRINKAGE = 1e-4  # shrinks covariances towards their mean diagonal, so that they can be inverted
RARE = 1e-4  # added to the frequency of every class, so that its logarithm is finite
RARE_EXAMPLES = 0.1  # added to the number of examples of every class, for the same reason


class GaussianHead(nn.Module):
    """Classifies features by class means and a common covariance; all classes are equally likely."""

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
        """Load class means and covariance into the head."""
        self.means.copy_(means)
        self.covariance.copy_(covariance)


class ClassStatistics(nn.Module):
    """Feature statistics common to all clients, per example: class shares, class sums, and scatter.

    They are parameters without a gradient, so they are sent, averaged and protected as weights are.
    As they are means over examples, their weighted mean over clients is the mean over all examples.
    """

    def __init__(self, classes: int, width: int, covariance: bool) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.zeros(classes))
        self.sums = nn.Parameter(torch.zeros(classes, width))
        if covariance:
            self.scatter = nn.Parameter(torch.zeros(width, width))

    def read(self) -> Tensors:
        """Return the feature statistics by name."""
        return Tensors({k: v.detach() for k, v in self.named_parameters()})

    @torch.no_grad()
    def move_halfway(self, statistics: Tensors) -> None:
        """Move the feature statistics halfway towards these values."""
        for name, parameter in self.named_parameters():
            parameter.lerp_(statistics[name].to(parameter), 0.5)


def collect_class_statistics(z: Tensor, labels: Tensor, classes: int) -> Tensors:
    """Collect feature statistics: class shares, sums by class, and the scatter around class means.

    All are divided by the number of examples and computed in float64.
    """
    z, n = z.flatten(1).double(), max(len(z), 1)
    counts = torch.bincount(labels, minlength=classes).to(z)
    sums = z.new_zeros(classes, z.shape[1]).index_add_(0, labels, z)
    around = z - (sums / counts.clamp(min=1)[:, None])[labels]
    return Tensors({"shares": counts / n, "sums": sums / n, "scatter": around.T @ around / n})


def collect_client_statistics(client: Client) -> Tensors:
    """Collect the feature statistics of a client's training examples."""
    data = client.data
    return collect_class_statistics(client.features(), data.train.labels, data.classes)


def fit_discriminant(
    own: Tensors,
    common: Tensors,
    counts: Tensor,
    mean_examples: float,
    covariance_examples: float,
    ridge: float,
) -> Tensors:
    """Fit a linear discriminant to a client's and the common feature statistics; use the client's prior.

    Return its weight and bias. The common mean of a class counts as ``mean_examples`` examples, the
    common covariance as ``covariance_examples``. A class without a common mean uses the mean of all
    features of the client.
    """
    common, counts = common.map(Tensor.double), counts.double()
    n, total = counts.sum(), (counts + mean_examples)[:, None]
    shares = common.get("shares", torch.zeros_like(counts))
    sums = common.get("sums", torch.zeros_like(own["sums"])) / shares.clamp(min=1e-30)[:, None]
    towards = torch.where(shares[:, None] > 0, sums, own["sums"].sum(0))
    pulled = (n * own["sums"] + mean_examples * towards) / total.clamp(min=1e-30)
    means, covariance = torch.where(total > 0, pulled, towards), own["scatter"]
    if "scatter" in common and shares.sum() > 0:
        pooled = covariance_examples * common["scatter"] / shares.sum()
        covariance = (n * covariance + pooled) / (n + covariance_examples)
    spread = covariance.diagonal().mean() * torch.eye(len(covariance)).to(covariance)
    weight, bias = compute_discriminant(means, covariance + ridge * spread)
    prior = (counts + RARE_EXAMPLES) / (n + RARE_EXAMPLES * len(counts))
    return Tensors({"weight": weight, "bias": bias + prior.log()}).map(Tensor.float)


@torch.no_grad()
def compute_discriminant(means: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Compute weight and bias of the linear discriminant of Gaussian classes, without a prior."""
    m, c = means.double(), covariance.double()
    variance = c.diagonal().mean()
    variance = torch.where(variance > 0, variance, 1.0)  # a single example has no variance
    diagonal = variance * torch.eye(len(c), dtype=c.dtype, device=c.device)
    weight = torch.linalg.solve((1 - SHRINKAGE) * c + SHRINKAGE * diagonal, m.T).T
    return weight.to(means), (-0.5 * (m * weight).sum(1)).to(means)


def compute_log_prior(data: ClientData) -> Tensor:
    """Compute the logarithms of the client's class frequencies, smoothed so that none is zero."""
    shares = data.counts / data.counts.sum() + RARE
    return (shares / shares.sum()).log()


def estimate_gaussian(
    z: Tensor, labels: Tensor, common: Tensor, ridge: float, at_least: int
) -> tuple[Tensor, Tensor]:
    """Estimate a client's class means, and the covariance of the features around them.

    A class with fewer than ``at_least`` examples uses its ``common`` mean.
    """
    z, means = z.double(), common.double()
    counts = torch.bincount(labels, minlength=len(means)).to(z)
    sums = torch.zeros_like(means).index_add_(0, labels, z)
    held = (counts >= at_least)[:, None]
    means = torch.where(held, sums / counts.clamp(min=1)[:, None], means)
    around = z - means[labels]
    scatter = around.T @ around / max(len(z) - 1, 1)
    return means, scatter + ridge * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)


def halve_by_class(labels: Tensor) -> Tensor:
    """Assign each example to one of two halves for cross-validation, so that each class is split evenly."""
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    first = (counts.cumsum(0) - counts)[labels[order]]
    ranks = torch.arange(len(labels), device=labels.device) - first
    return torch.zeros_like(labels).index_copy_(0, order, ranks % 2).bool()


def get_gaussian_head(client: Client) -> GaussianHead:
    """Return the head of a client's net, which must be a ``GaussianHead``."""
    head = client.net.get_submodule("head")
    assert isinstance(head, GaussianHead)
    return head


def get_statistics(client: Client) -> ClassStatistics:
    """Return the feature statistics common to all clients, which are part of a client's net."""
    common = client.net.get_submodule("gaussian")
    assert isinstance(common, ClassStatistics)
    return common
