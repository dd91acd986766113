"""What FedAdam and FedYogi share: an adaptive step of the server along the clients' mean move."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...core.algorithm import Algorithm, Reply, Server, mean, setting


@dataclass(frozen=True)
class FedOpt(Algorithm):
    """x + rate m / (√v + τ), without bias correction; v starts at τ². Statistics are averaged."""

    paper = "Reddi et al., ICLR 2021"
    server_lr: float = setting(0.1, "step of the server", above=0)
    beta1: float = setting(0.9, "memory of the moves", low=0, high=1)
    beta2: float = setting(0.99, "memory of their squares", low=0, high=1)
    tau: float = setting(1e-3, "smallest scale", above=0)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        x, averaged = server.learned, mean(replies)
        moved = averaged.only(*x) - x
        m = self.beta1 * server.memory.get("m", moved.zeros()) + (1 - self.beta1) * moved
        before = server.memory.get("v", moved.map(lambda d: d.new_full(d.shape, self.tau**2)))
        v = before.map(lambda old, d: self.update_second_moment(old, d.square()), moved)
        step = m.map(lambda a, b: a / (b.sqrt() + self.tau), v)
        return server.update(averaged | (x + self.server_lr * step), m=m, v=v)

    def update_second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The memory of the squares after one more."""
        raise NotImplementedError
