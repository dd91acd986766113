"""PFAKD: personalised federated learning by feature distillation from the received base; and + AT."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.client import BATCH_NORMS
from ..core.tensors import Tensors, frozen
from ..core.training import Training
from .parts.attention_transfer import compute_attention_loss, find_stages, forward_with_attention


@dataclass(frozen=True)
class PFAKD(Algorithm):
    """FedPer whose features are held, example by example, near those of the received base."""

    paper = "PFAKD"
    personal = ("head.*",)
    beta: float = setting(1.0, "weight of the distillation", low=0)
    at: Literal["none", "alternating", "attention"] = setting(
        "none", "PFAKD + AT: the head first, then the base; or attention transfer"
    )
    at_weight: float = setting(1000.0, "weight of the attention transfer", low=0)
    lr_decay: float = setting(
        1.0, "factor on lr after each of the client's rounds", above=0, high=1
    )

    def build(self, net: Net) -> Net:
        if self.at == "attention":
            find_stages(net.base)  # are there any? better asked now than in the first round
        return net

    def local(self, client: Client) -> Tensors:
        net, how, teacher = client.net, self.schedule(client), make_teacher(client.net)

        def distilled(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            with torch.no_grad():
                target = teacher(x)
            return cross_entropy(net.head(z), y) + self.beta * mse_loss(z, target)

        def attentive(x: Tensor, y: Tensor) -> Tensor:
            z, seen = forward_with_attention(net.base, x)
            with torch.no_grad():
                target, wanted = forward_with_attention(teacher, x)
            near = self.beta * mse_loss(z, target)
            return (
                cross_entropy(net.head(z), y)
                + near
                + self.at_weight * compute_attention_loss(seen, wanted)
            )

        loss = distilled if self.beta else None
        if self.at == "alternating":
            client.fit(train=net.head, epochs=1, how=how, phase="head")
            client.fit(loss, train=net.base, how=how)
        else:
            looks = self.at == "attention" and self.at_weight > 0
            client.fit(attentive if looks else loss, how=how)
        return client.shared()

    def schedule(self, client: Client) -> Training:
        """The client's way of training, its lr lowered by the rounds it has behind it."""
        if self.lr_decay == 1:
            return client.training
        done = int(client.memory.get("rounds", Tensors()).get("done", 0))
        client.memory["rounds"] = Tensors({"done": torch.tensor(done + 1)})
        return replace(client.training, lr=client.training.lr * self.lr_decay**done)


def make_teacher(net: Net) -> torch.nn.Module:
    """The received base as teacher, normalising by the batch: its running statistics are not the
    common model's, but one client's.
    """
    teacher = frozen(net.base).eval()
    for m in teacher.modules():
        m.training = isinstance(m, BATCH_NORMS)
    return teacher
