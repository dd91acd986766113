"""Terms that hold training near the received model: FedProx's, and FedDyn's with its corrections."""

from collections.abc import Sequence

from ...core.algorithm import Client, Reply, Server
from ...core.errors import ConfigError
from ...core.tensors import Tensors, mix, params, weights


class ReceivedPull:
    """A proximal or a dynamic term towards the shared parameters that a client received.

    Make it before the client trains, pass ``pull`` to ``fit``, and end the round after that.
    """

    def __init__(self, client: Client, proximal: float, dynamic: float) -> None:
        self.client, self.dynamic = client, dynamic
        self.strength = proximal or dynamic  # not both: see check_one_term
        shared = client.shared().keys() & params(client.net).keys() if self.strength else ()
        self.received = Tensors({k: v for k, v in weights(client.net).items() if k in shared})
        self.correction = get_correction(client, self.received)
        self.pull = self.compute_pull if self.strength else None

    def compute_pull(self, w: Tensors) -> Tensors:
        """Compute what is added to the gradient of the parameters ``w``."""
        return self.strength * (w - self.received) - self.correction

    def end_round(self) -> None:
        """Keep the correction for the client's next round, if the term is dynamic."""
        if self.dynamic:
            update_correction(self.client, self.received, self.dynamic)


def check_one_term(proximal: float, dynamic: float) -> None:
    """Refuse both terms together: a client's correction is that of a dynamic term alone."""
    if proximal and dynamic:
        raise ConfigError(
            f"algorithm.proximal: {proximal:g} beside algorithm.dynamic = {dynamic:g}, which has a"
            " proximal term of its own; set one of them to 0"
        )


# FedDyn -------------------------------------------------------------------------------------


def get_correction(client: Client, received: Tensors) -> Tensors:
    """Return the client's linear correction: 0 before its first round."""
    return client.memory.get("g", received.zeros())


def update_correction(client: Client, received: Tensors, strength: float) -> None:
    """Correct the client's next round by how far it moved the model that it received."""
    moved = received.map(lambda r, w: w - r, weights(client.net))
    client.memory["g"] = get_correction(client, received) - strength * moved


def correct_average(
    server: Server, replies: Sequence[Reply], average: Tensors, strength: float
) -> Server:
    """Return the server with this average of the replies, less the corrections of all clients.

    Without a dynamic term (``strength`` 0) there are none.
    """
    if not strength:
        return server.update(average)
    learned = server.learned
    back = [learned - r.tensors for r in replies]
    share = strength / len(server.clients)
    s = server.memory.get("s", learned.zeros()) + mix(back, [share] * len(back))
    return server.update(average | (average.only(*s) - s / strength), s=s)
