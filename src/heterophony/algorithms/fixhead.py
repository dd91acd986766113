"""FixHead: FedRoD (Chen and Chao, ICLR 2022) with the fixed head of FedETF (Li et al., ICCV 2023)."""

from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.init import zeros_

from ..core.algorithm import Net, setting
from .fedrod import FedRoD
from .parts.layers import replace_last_linear


@dataclass(frozen=True)
class FixHead(FedRoD):
    """Train the base with a balanced loss and a fixed shared head; a personal head corrects its logits."""

    paper = "heterophony, docs/explanation/fixhead.md"
    directions: Literal["fixed", "learned"] = setting(
        "fixed", "last layer of the shared head: a fixed unit vector per class, or learned weights"
    )
    length: float = setting(4.0, "norm of the features before the last layer; 0: not scaled", low=0)

    def build(self, net: Net) -> Net:
        net, fixed = super().build(net), self.directions == "fixed"
        replace_last_linear(net, fixed, self.length)
        if fixed and self.head == "linear":
            # A copy of the replaced layer would not correct fixed directions: the correction starts at 0.
            # Only its last layer is set to 0, because in a deeper head of zeros no weight has a gradient.
            *_, last = (m for m in net.own.modules() if isinstance(m, nn.Linear))
            for parameter in last.parameters():
                zeros_(parameter)
        return net
