"""pFedFDA: McLaughlin and Su, Personalized federated learning via feature distribution adaptation, NeurIPS 2024.

The authors' code collects features while it trains, and fits the share by L-BFGS; here features are
those of the trained base, and the share is the best of eleven values. In the authors' code
``ridge`` is 1: the identity is added to a covariance.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.errors import ConfigError
from ..core.tensors import Tensors
from .parts.gaussians import (
    GaussianHead,
    compute_discriminant,
    compute_log_prior,
    estimate_gaussian,
    get_gaussian_head,
    halve_by_class,
)
from .parts.layers import find_last_linear, list_linear_layers

AT_LEAST = 3  # smallest number of examples from which a class's own mean is estimated
SHARES = [i / 10 for i in range(11)]


@dataclass(frozen=True)
class PFedFDA(Algorithm):
    """Classify by Gaussians of features, with means and covariance mixed from common and local estimates."""

    paper = "McLaughlin and Su, NeurIPS 2024"
    needs_classes = separates_head = True
    head_depth = 1
    beta: float | None = setting(
        None, "share of the local estimates; default: by cross-validation", low=0, high=1
    )
    ridge: float = setting(1.0, "added to the diagonal of a local covariance", above=0)

    def build(self, net: Net) -> Net:
        _, last = find_last_linear(net, True)
        if len(list_linear_layers(net)) > 1:
            raise ConfigError(
                "model.head_depth: pfedfda needs a head of one linear layer; set it to 1"
            )
        net.add_module("head", GaussianHead(last.weight))
        return net

    def local(self, client: Client) -> Tensors:
        net, head = client.net, get_gaussian_head(client)
        weight, bias = compute_discriminant(head.means, head.covariance)
        bias = bias + compute_log_prior(client.data)
        client.fit(lambda x, y: client.loss(linear(net.base(x), weight, bias), y), train=net.base)
        self.adapt(client)
        return client.shared()

    def adapt(self, client: Client) -> None:
        """Mix the received Gaussians with those of the client's features."""
        z, labels, head = client.features(), client.data.train.labels, get_gaussian_head(client)
        beta = self.fit_share(client, z) if self.beta is None else self.beta
        client.metrics["beta"] = beta
        own = estimate_gaussian(z, labels, head.means, self.ridge, AT_LEAST)
        head.load(*self.mix(beta, own, head))

    def mix(
        self, beta: float, own: tuple[Tensor, Tensor], head: GaussianHead
    ) -> tuple[Tensor, Tensor]:
        """Mix a client's Gaussians with the received ones: ``beta`` is the share of the client's."""
        pairs = zip(own, (head.means.detach(), head.covariance.detach()), strict=True)
        means, covariance = (beta * local + (1 - beta) * common for local, common in pairs)
        return means, covariance

    def fit_share(self, client: Client, z: Tensor) -> float:
        """Find the share of local estimates with which the data's halves classify each other best."""
        labels, head = client.data.train.labels, get_gaussian_head(client)
        prior = compute_log_prior(client.data)
        second, losses = halve_by_class(labels), [0.0] * len(SHARES)
        for half in (second, ~second):
            if not bool(half.any()) or bool(half.all()):
                return 0.0  # too few examples to choose a share
            own = estimate_gaussian(z[half], labels[half], head.means, self.ridge, AT_LEAST)
            for i, share in enumerate(SHARES):
                weight, bias = compute_discriminant(*self.mix(share, own, head))
                logits = linear(z[~half].to(weight), weight, bias + prior)
                losses[i] += float(cross_entropy(logits, labels[~half], reduction="sum"))
        return min(zip(losses, SHARES, strict=True))[1]

    def predict(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x) + compute_log_prior(client.data)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)
