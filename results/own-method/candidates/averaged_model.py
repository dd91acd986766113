"""FedRows whose common model, for G, is the average of the server's last models."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

from torch import Tensor

from heterophony.core.algorithm import Client, Net, Reply, Server, setting
from heterophony.core.tensors import Tensors

from .fedrows import FedRows


@dataclass(frozen=True)
class AveragedModel(FedRows):
    """Average the models of all rounds, the last ones the most; clients train from the last one."""

    keep: float = setting(0.7, "share of the average that a round keeps", low=0, high=1)

    def build(self, net: Net) -> Net:
        net = super().build(net)
        net.add_module("average_base", deepcopy(net.base))
        net.add_module("average_head", deepcopy(net.head))
        return net

    def local(self, client: Client) -> Tensors:
        return super().local(client).without("average_*")

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        after = super().merge(server, replies)
        keep = min(self.keep, server.t / (server.t + 1))
        new = after.learned.only("base.*", "head.*")
        averages = {
            f"average_{k}": keep * after.model[f"average_{k}"] + (1 - keep) * v
            for k, v in new.items()
        }
        return after.update(Tensors(averages))

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net.average_head(client.net.average_base(x))
