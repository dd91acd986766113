"""FedRows: the shared head is trained on the classes that a client holds, and merged class by class."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from heterophony.algorithms.parts.distillation import make_teacher
from heterophony.core.algorithm import Algorithm, Client, Net, Reply, Server, mean, setting
from heterophony.core.tensors import Tensors, frozen

from .class_rows import merge_class_rows
from .other_classes import compute_other_class_loss


@dataclass(frozen=True)
class FedRows(Algorithm):
    """Train a shared head with a balanced loss, merge its rows by class, and correct it locally."""

    paper = "docs/explanation/fixhead.md"
    needs_classes = True
    personal = ("own.*",)
    rows: Literal["class", "mean"] = setting(
        "class", "the head's rows count by the examples of their class, or as all other weights"
    )
    beta: float = setting(1.0, "weight of the distillation of the other classes' outputs", low=0)

    def build(self, net: Net) -> Net:
        net.add_module("own", deepcopy(net.head))
        return net

    def local(self, client: Client) -> Tensors:
        net, counts = client.net, client.data.counts
        prior, base, head = counts.log(), make_teacher(net), frozen(net.head).eval()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            generic = net.head(z)
            own = generic.detach() + net.own(z.detach())
            out = client.loss(generic + prior, y) + client.loss(own, y)
            if not self.beta:
                return out
            with torch.no_grad():
                teacher = head(base(x))
            return out + self.beta * compute_other_class_loss(generic, teacher, y)

        client.fit(loss)
        held = {"fedrows/counts": counts} if self.rows == "class" else {}
        return client.shared() | Tensors(held)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        merged = mean(replies, "base.*", "head.*")
        if self.rows == "class":
            merged |= merge_class_rows(server, replies, "fedrows/counts")
        return server.update(merged)

    def predict(self, client: Client, x: Tensor) -> Tensor:
        z = client.net.base(x)
        return client.net.head(z) + client.net.own(z)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net.head(client.net.base(x))
