"""An adaptive step of the server along the mean client update, for FedAdam and FedYogi."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...core.algorithm import Algorithm, Reply, Server, mean, setting


@dataclass(frozen=True)
class FedOpt(Algorithm):
    """x + server_lr m / (√v + τ), without bias correction; v starts at τ².

    Running statistics are averaged, not stepped.
    """

    paper = "Reddi et al., ICLR 2021"
    server_lr: float = setting(0.1, "learning rate of the server", above=0)
    beta1: float = setting(0.9, "decay of the first moment", low=0, high=1)
    beta2: float = setting(0.99, "decay of the second moment", low=0, high=1)
    tau: float = setting(1e-3, "added to the root of the second moment", above=0)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        x, averaged = server.learned, mean(replies)
        moved = averaged.only(*x) - x
        m = self.beta1 * server.memory.get("m", moved.zeros()) + (1 - self.beta1) * moved
        before = server.memory.get("v", moved.map(lambda d: d.new_full(d.shape, self.tau**2)))
        v = before.map(lambda old, d: self.update_second_moment(old, d.square()), moved)
        step = m.map(lambda a, b: a / (b.sqrt() + self.tau), v)
        return server.update(averaged | (x + self.server_lr * step), m=m, v=v)

    def update_second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the second moment after one more squared update."""
        raise NotImplementedError
