"""FedAvgM: Hsu et al., Measuring the effects of non-identical data distribution, 2019."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.algorithm import Algorithm, Reply, Server, mean, setting


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """Update the server's model with heavy-ball momentum along the mean of the client updates."""

    paper = "Hsu et al., 2019"
    beta: float = setting(0.9, "momentum of the server", low=0, high=1)
    server_lr: float = setting(1.0, "learning rate of the server", above=0)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        x, averaged = server.learned, mean(replies)  # running statistics are averaged, not stepped
        velocity = self.beta * server.memory.get("velocity", x.zeros()) + (averaged.only(*x) - x)
        return server.update(averaged | (x + self.server_lr * velocity), velocity=velocity)
