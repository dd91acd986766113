"""The statistics of class counts that FedReG balances to."""

from typing import Literal

from torch import Tensor

Threshold = Literal["mean", "max", "median", "second_min"]


def compute_statistic(counts: Tensor, which: Threshold) -> Tensor:
    """One number of them all; the second smallest of one is that one."""
    ordered = counts.sort().values.double()
    places = {"max": -1, "second_min": min(1, len(ordered) - 1)}
    if which in places:
        return ordered[places[which]]
    return ordered.mean() if which == "mean" else ordered.quantile(0.5)
