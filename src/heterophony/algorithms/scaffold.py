"""SCAFFOLD: Karimireddy et al., Stochastic controlled averaging, ICML 2020."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core.algorithm import Algorithm, Client, Reply, Server, equally, mean, setting
from ..core.tensors import Tensors, mix, weights


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Correct client drift with control variates of the server and of each client."""

    paper = "Karimireddy et al., ICML 2020"
    optimizers = ("sgd",)  # a control variate is the mean gradient: the distance by steps and rate
    allows_clipping = False  # the distance would not be the mean gradient
    server_lr: float = setting(1.0, "learning rate of the server", above=0)

    def send(self, server: Server, client: str) -> Tensors:
        return server.model | self.get_control(server).under("control/")

    def local(self, client: Client) -> Tensors:
        received, c = weights(client.net), client.received.below("control/")
        own = client.memory.get("control", c.zeros())
        plain = replace(client.training, momentum=0.0)  # the update of c_i assumes plain SGD

        client.fit(pull=lambda w: c - own, how=plain)
        moved, length = weights(client.net) - received, client.steps * client.lr
        shift = -1 * c - moved / length if length else c.zeros()
        # rounded as the server rounds: with one client c and c_1 stay equal, bit for bit
        client.memory["control"] = own + shift
        return client.shared() | shift.under("control/")

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        averaged, x = mean(replies, *server.model, weight=equally), server.learned
        stepped = mix([x, averaged.only(*x)], [1 - self.server_lr, self.server_lr])
        shifts = [r.tensors.below("control/") for r in replies]
        shares = [1 / len(server.clients)] * len(shifts)
        c = mix([self.get_control(server), *shifts], [1, *shares])
        return server.update(averaged | stepped, control=c)

    def get_control(self, server: Server) -> Tensors:
        """Return the server's control variate, which is 0 at first."""
        return server.memory.get("control", server.learned.zeros())
