"""FedRows with PFAKD's distillation of features in place of that of the other classes' outputs."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from heterophony.algorithms.parts.distillation import make_teacher
from heterophony.core.algorithm import Client
from heterophony.core.tensors import Tensors

from .fedrows import FedRows


@dataclass(frozen=True)
class DistilledFeatures(FedRows):
    """Keep the features near those of the received base."""

    def local(self, client: Client) -> Tensors:
        net, counts, teacher = client.net, client.data.counts, make_teacher(client.net)
        prior = counts.log()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = net.base(x)
            shared = net.head(z)
            own = shared.detach() + net.own(z.detach())
            with torch.no_grad():
                target = teacher(x)
            out = client.loss(shared + prior, y) + client.loss(own, y)
            return out + self.beta * mse_loss(z, target)

        client.fit(loss)
        return client.shared() | Tensors({"fedrows/counts": counts})
