"""FML: Shen et al., Federated mutual learning, 2020.

The shared net ("meme") is the smallest of the run's nets. Each net is the other's teacher; no
gradient flows into the teacher's outputs, and the divergence is summed over classes. HtFLlib lets
gradients of both terms flow into both nets, and also divides the divergence by the number of
classes.
"""

from dataclasses import dataclass

from torch import Tensor

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.tensors import Tensors
from .parts.distillation import compute_kl_divergence, reset_unfrozen_layers


@dataclass(frozen=True)
class FML(Algorithm):
    """Train each client's own net alongside a small shared one; each learns from the other's outputs."""

    paper = "Shen et al., 2020"
    needs_classes = True
    personal = ("base.*", "head.*")
    needs_nets = "any"
    allows_clipping = False  # the norm would be taken over two nets
    alpha: float = setting(
        0.5,
        "weight of the labels in the loss of the client's own net; the rest is for distillation from the shared net",
        low=0,
        high=1,
    )
    beta: float = setting(
        0.5,
        "weight of the labels in the loss of the shared net; the rest is for distillation from the client's own net",
        low=0,
        high=1,
    )

    def build(self, net: Net) -> Net:
        meme = net.smallest
        if self.alpha < 1 or self.beta < 1:  # equal nets learn nothing from each other
            reset_unfrozen_layers(meme)
        net.add_module("meme", meme)
        return net

    def local(self, client: Client) -> Tensors:
        net = client.net

        def loss(x: Tensor, y: Tensor) -> Tensor:
            own, common = net(x), net.meme(x)
            pairs = ((own, common, self.alpha), (common, own, self.beta))
            first, second = (mix_losses(client, *pair, y) for pair in pairs)
            return first + second

        client.fit(loss)
        return client.shared()

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net.meme(x)


def mix_losses(client: Client, out: Tensor, teacher: Tensor, share: float, y: Tensor) -> Tensor:
    """Mix the loss on the labels with the divergence from a teacher's outputs."""
    if share == 1:
        return client.loss(out, y)
    return share * client.loss(out, y) + (1 - share) * compute_kl_divergence(out, teacher)
