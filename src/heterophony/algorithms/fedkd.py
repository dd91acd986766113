"""FedKD: Wu et al., Communication-efficient FL via knowledge distillation, Nature Communications 2022.

The shared net ("mentee") is the smallest of the run's nets. No gradient flows into a teacher's outputs,
nor into the sum of the label losses, by which the other terms are divided; below 1 it counts as 1, as
training diverges otherwise on clients whose losses are small. The paper has the distance of the features
in the losses of both nets; here it is one term that trains both. Attention maps are left out. A kernel
is a matrix with a row per output. The server sends the whole mentee, as a client may have missed rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, mean, setting
from ..core.tensors import Tensors
from .parts.distillation import compute_kl_divergence, reset_unfrozen_layers
from .parts.layers import list_linear_layers
from .parts.low_rank import compress_moves, restore_moves


@dataclass(frozen=True)
class FedKD(Algorithm):
    """Train each client's own net and a small shared one that teach each other; compress the updates of the shared one."""

    paper = "Wu et al., Nature Communications 2022"
    needs_classes = uses_features = True
    personal = ("base.*", "head.*", "projection.*")
    needs_nets = "any"
    rows_vary = ("low_rank/*",)
    allows_clipping = False  # the norm would be taken over two nets
    answers: float = setting(1.0, "weight of the divergence between the nets' outputs", low=0)
    features: float = setting(1.0, "weight of the distance between the nets' features", low=0)
    energy_start: float = setting(
        0.95, "share of the squared singular values to send in the first round", above=0, high=1
    )
    energy_end: float = setting(
        0.98, "the same in the last round; 1: no compression", above=0, high=1
    )

    def build(self, net: Net) -> Net:
        mentee = net.smallest
        if self.answers or self.features:  # equal nets teach each other nothing
            reset_unfrozen_layers(mentee)
        if self.features:
            small, own = (list_linear_layers(n)[0].in_features for n in (mentee, net))
            net.add_module("projection", nn.Linear(small, own, bias=False))
        net.add_module("mentee", mentee)
        return net

    def local(self, client: Client) -> Tensors:
        net, mentee = client.net, cast(Net, client.net.mentee)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z, small = net.base(x), mentee.base(x)
            own, common = net.head(z), mentee.head(small)
            labels = client.loss(own, y) + client.loss(common, y)
            divisor = labels.detach().clamp(min=1)
            total = labels
            if self.answers:
                total = total + self.answers / divisor * (
                    compute_kl_divergence(own, common) + compute_kl_divergence(common, own)
                )
            if self.features:
                near = mse_loss(net.projection(small.flatten(1)), z.flatten(1))
                total = total + self.features / divisor * near
            return total

        client.fit(loss)
        if self.energy_start == self.energy_end == 1:
            return client.shared()
        return compress_moves(client.shared(), client.received, self.compute_energy(client))

    def compute_energy(self, client: Client) -> float:
        """Compute the share of the squared singular values that is sent in this round."""
        done = min(1.0, client.t / max(1, client.rounds - 1))
        return self.energy_start + done * (self.energy_end - self.energy_start)

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        model = server.model
        whole = [replace(r, tensors=restore_moves(r.tensors, model)) for r in replies]
        return server.update(mean(whole))

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net.mentee(x)
