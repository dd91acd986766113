"""FixHead: FedRoD with a shared head that is the same for all clients and rounds."""

from dataclasses import dataclass
from typing import Literal

from torch.nn.init import zeros_

from ..core.algorithm import Net, setting
from .fedrod import FedRoD
from .parts.fixed_directions import replace_last_linear


@dataclass(frozen=True)
class FixHead(FedRoD):
    """Train the base towards fixed directions with a balanced loss, and a personal head that corrects it."""

    paper = "heterophony, docs/method.md"
    directions: Literal["fixed", "learned"] = setting(
        "fixed", "the shared head's directions of classes are the same for all, or learned"
    )
    length: float = setting(4.0, "of the features before the shared head; 0: as they are", low=0)

    def build(self, net: Net) -> Net:
        net, fixed = super().build(net), self.directions == "fixed"
        replace_last_linear(net, fixed, self.length)
        if (
            fixed and self.head == "linear"
        ):  # there is no learned head whose copy could be corrected
            for weight in net.own.parameters():
                zeros_(weight)
        return net
