"""PFAKD and PFAKD + AT: feature distillation from the received base."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.tensors import Tensors
from .parts.distillation import (
    compute_attention_loss,
    find_stages,
    forward_with_attention,
    make_teacher,
)


@dataclass(frozen=True)
class PFAKD(Algorithm):
    """Train FedPer with feature distillation: features are kept close to those of the received base."""

    paper = "PFAKD"
    personal = ("head.*",)
    beta: float = setting(1.0, "weight of the distillation", low=0)
    at: Literal["none", "alternating", "attention"] = setting(
        "none",
        "PFAKD + AT: alternating trains the head before the base; attention transfers attention maps",
    )
    at_weight: float = setting(1000.0, "weight of the attention transfer", low=0)

    def build(self, net: Net) -> Net:
        if self.at == "attention":
            find_stages(net.base)  # raises before the first round if the model has no stages
        return net

    def local(self, client: Client) -> Tensors:
        net, teacher = client.net, make_teacher(client.net)

        def distillation_loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            with torch.no_grad():
                target = teacher(x)
            return client.loss(net.head(z), y) + self.beta * mse_loss(z, target)

        def attention_loss(x: Tensor, y: Tensor) -> Tensor:
            z, maps = forward_with_attention(net.base, x)
            with torch.no_grad():
                target, teacher_maps = forward_with_attention(teacher, x)
            out = client.loss(net.head(z), y) + self.beta * mse_loss(z, target)
            return out + self.at_weight * compute_attention_loss(maps, teacher_maps)

        loss = distillation_loss if self.beta else None
        if self.at == "alternating":
            client.fit(train=net.head, epochs=1, phase="head")
            client.fit(loss, train=net.base)
        else:
            transfers = self.at == "attention" and self.at_weight > 0
            client.fit(attention_loss if transfers else loss)
        return client.shared()
