"""How many examples FedReG balances every class of a client to."""

from typing import Literal

import torch
from torch import Tensor

from ...core.algorithm import Client, Server
from ...core.tensors import Tensors

SIZE = "fedreg/size"  # the tensor that tells clients the statistic of all sizes
Threshold = Literal["mean", "max", "median", "second_min", "min"]
ThresholdScope = Literal["class_nonzero", "client_size"]


def compute_statistic(counts: Tensor, threshold: Threshold) -> Tensor:
    """Compute one statistic of the counts; the second smallest of a single count is that count."""
    ordered = counts.sort().values.double()
    places = {"max": -1, "min": 0, "second_min": min(1, len(ordered) - 1)}
    if threshold in places:
        return ordered[places[threshold]]
    return ordered.mean() if threshold == "mean" else ordered.quantile(0.5)


def compute_class_target(counts: Tensor, threshold: Threshold, size: Tensor | None) -> int:
    """Compute the number of examples that every class of one client is balanced to.

    ``counts`` are the client's examples by class. ``size`` is the statistic of all clients' sizes
    where that is the scope: it is divided evenly among the classes that the client holds.
    """
    held = counts[counts > 0]
    if size is None:
        return max(1, int(compute_statistic(held, threshold)))
    return max(1, int(size / len(held)))


def describe_sizes(server: Server, threshold: Threshold, scope: ThresholdScope) -> Tensors:
    """Return the statistic of all clients' sizes as a tensor to send, where that is the scope."""
    if scope == "class_nonzero":
        return Tensors()
    sizes = torch.tensor(list(server.samples.values()))
    return Tensors({SIZE: compute_statistic(sizes, threshold)})


def compute_target_here(client: Client, threshold: Threshold) -> int:
    """Compute the target of a client from its counts and what it received."""
    return compute_class_target(client.data.counts, threshold, client.received.get(SIZE))


def compute_class_targets(counts: Tensor, threshold: Threshold, scope: ThresholdScope) -> list[int]:
    """Compute the targets of all clients from their examples by class (clients × classes)."""
    sizes = counts.sum(1)
    size = compute_statistic(sizes, threshold) if scope == "client_size" else None
    return [compute_class_target(row, threshold, size) for row in counts]


def describe_class_target(threshold: Threshold, scope: ThresholdScope) -> str:
    """Describe in words what a class is balanced to."""
    statistic = threshold.replace("_", " ")
    if scope == "class_nonzero":
        return f"the {statistic} of the client's class counts"
    return f"the {statistic} of the clients' sizes, by class"
