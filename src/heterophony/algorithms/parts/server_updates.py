"""Server optimisers (FedAdam, FedYogi), and loss terms that pull a client towards the received model."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...core.algorithm import Algorithm, Client, Reply, Server, mean, setting
from ...core.errors import ConfigError
from ...core.tensors import Tensors, mix, params, weights


@dataclass(frozen=True)
class FedOpt(Algorithm):
    """Update the model by x + server_lr m / (√v + τ), without bias correction; v starts at τ².

    Running statistics are averaged; the optimiser does not apply to them.
    """

    paper = "Reddi et al., ICLR 2021"
    server_lr: float = setting(0.1, "learning rate of the server", above=0)
    beta1: float = setting(0.9, "decay of the first moment", low=0, high=1)
    beta2: float = setting(0.99, "decay of the second moment", low=0, high=1)
    tau: float = setting(1e-3, "value added to the root of the second moment", above=0)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        x, averaged = server.learned, mean(replies)
        moved = averaged.only(*x) - x
        m = self.beta1 * server.memory.get("m", moved.zeros()) + (1 - self.beta1) * moved
        before = server.memory.get("v", moved.map(lambda d: d.new_full(d.shape, self.tau**2)))
        v = before.map(lambda old, d: self.update_second_moment(old, d.square()), moved)
        step = m.map(lambda a, b: a / (b.sqrt() + self.tau), v)
        return server.update(averaged | (x + self.server_lr * step), m=m, v=v)

    def update_second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Update the server optimiser's second moment with one more squared gradient; return it."""
        raise NotImplementedError


class ReceivedPull:
    """A proximal or a dynamic term that pulls towards the shared parameters that a client received.

    Create it before the client trains, pass ``pull`` to ``fit``, and call ``end_round`` afterwards.
    """

    def __init__(self, client: Client, proximal: float, dynamic: float) -> None:
        self.client, self.dynamic = client, dynamic
        self.strength = proximal or dynamic  # never both: see check_one_term
        shared = client.shared().keys() & params(client.net).keys() if self.strength else ()
        self.received = Tensors({k: v for k, v in weights(client.net).items() if k in shared})
        self.correction = get_correction(client, self.received)
        self.pull = self.compute_pull if self.strength else None

    def compute_pull(self, w: Tensors) -> Tensors:
        """Compute the proximal or dynamic term to add to the gradient of the parameters ``w``."""
        return self.strength * (w - self.received) - self.correction

    def end_round(self) -> None:
        """Store the correction for the client's next round, if the term is dynamic."""
        if self.dynamic:
            update_correction(self.client, self.received, self.dynamic)


def check_one_term(proximal: float, dynamic: float) -> None:
    """Raise ConfigError if a proximal and a dynamic term are both set."""
    if proximal and dynamic:
        raise ConfigError(
            f"algorithm.proximal: {proximal:g} cannot be combined with algorithm.dynamic ="
            f" {dynamic:g}, which has a proximal term of its own; set one of them to 0"
        )


# FedDyn -------------------------------------------------------------------------------------


def get_correction(client: Client, received: Tensors) -> Tensors:
    """Return a client's linear correction of FedDyn, which is 0 before its first round."""
    return client.memory.get("g", received.zeros())


def update_correction(client: Client, received: Tensors, strength: float) -> None:
    """Update a client's FedDyn correction by how far it moved the received model, for its next round."""
    moved = received.map(lambda r, w: w - r, weights(client.net))
    client.memory["g"] = get_correction(client, received) - strength * moved


def correct_average(
    server: Server, replies: Sequence[Reply], average: Tensors, strength: float
) -> Server:
    """Update the server as FedDyn does: the average of the replies minus all clients' corrections.

    Without a dynamic term (``strength`` 0) there are no corrections.
    """
    if not strength:
        return server.update(average)
    learned = server.learned
    back = [learned - r.tensors for r in replies]
    share = strength / len(server.clients)
    s = server.memory.get("s", learned.zeros()) + mix(back, [share] * len(back))
    return server.update(average | (average.only(*s) - s / strength), s=s)
