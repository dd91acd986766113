"""FedBN: Li et al., Federated learning on non-IID features via local batch normalization, ICLR 2021."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from ..core.algorithm import Algorithm, Net


@dataclass(frozen=True)
class FedBN(Algorithm):
    """Average everything except BatchNorm layers, which are personal and recognised by their type."""

    paper = "Li et al., ICLR 2021"

    def stays(self, net: Net) -> Iterable[str]:
        norm = nn.modules.batchnorm._BatchNorm
        return [f"{k}.*" for k, m in net.named_modules() if isinstance(m, norm)]
