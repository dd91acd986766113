"""FedRows with the effective numbers of samples in its balanced loss (Cui et al., CVPR 2019).

A class counts (1 - r^n) / (1 - r) instead of n: more examples of a class add less and less.
"""

from copy import copy
from dataclasses import dataclass

from heterophony.core.algorithm import Client, setting
from heterophony.core.tensors import Tensors

from .fedrows import FedRows


class EffectiveCounts:
    """A client's data whose class counts are effective numbers."""

    def __init__(self, data, ratio: float) -> None:
        self.whole, self.counts = data, (1 - ratio ** data.counts.double()) / (1 - ratio)
        self.counts = self.counts.float()

    def __getattr__(self, name: str):
        return getattr(self.whole, name)


@dataclass(frozen=True)
class EffectivePrior(FedRows):
    """Balance the loss, and merge the head's rows, by effective numbers of samples."""

    ratio: float = setting(
        0.99, "by which each further example of a class counts less", low=0, high=1
    )

    def local(self, client: Client) -> Tensors:
        seen = copy(client)
        seen.data = EffectiveCounts(client.data, self.ratio)
        reply = super().local(seen)
        client.examples = seen.examples
        return reply
