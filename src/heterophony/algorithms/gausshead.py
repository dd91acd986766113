"""GaussHead: a personal head of Gaussians on the received base, next to the shared head of another method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import linear

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, mean, setting
from ..core.tensors import Tensors
from ..core.training import Training
from .fedreg import FedReG
from .fedrod import FedRoD
from .fixhead import FixHead
from .parts import gaussians
from .parts.layers import list_linear_layers

METHODS: dict[str, type[Algorithm]] = {"fixhead": FixHead, "fedrod": FedRoD, "fedreg": FedReG}


@dataclass(frozen=True)
class GaussHead(Algorithm):
    """Train another method; predict with Gaussians fitted to the features that the received base computes from a client's data.

    The personal head is fitted, not trained, so it always matches the base.
    """

    paper = "heterophony, docs/explanation/gausshead.md"
    needs_classes = uses_features = True
    personal = ("own.*",)
    method: Literal["fixhead", "fedrod", "fedreg"] = setting(
        "fixhead", "method that trains the base and the shared head"
    )
    share: Literal["covariance", "means", "nothing"] = setting(
        "covariance",
        "statistics that clients send: class means and covariance, means only, or nothing",
    )
    mean_examples: float = setting(
        10.0, "number of examples that the common mean of a class counts as", low=0
    )
    covariance_examples: float = setting(
        100.0, "number of examples that the common covariance counts as", low=0
    )
    ridge: float = setting(
        0.05, "value added to the diagonal of the covariance, relative to its mean diagonal", low=0
    )
    learned: float = setting(
        0.5, "share of the method's own personal head in the prediction", low=0, high=1
    )

    @property
    def trained(self) -> Algorithm:
        """The algorithm that trains the base and the shared head."""
        return METHODS[self.method]()

    def check_training(self, training: Training) -> None:
        self.trained.check_training(training)

    def build(self, net: Net) -> Net:
        width = list_linear_layers(net)[0].in_features
        net = self.trained.build(net)
        if self.share != "nothing":
            covariance = self.share == "covariance"
            net.add_module("gaussian", gaussians.ClassStatistics(net.classes, width, covariance))
        return net

    def send(self, server: Server, client: str) -> Tensors:
        return self.trained.send(server, client)

    def local(self, client: Client) -> Tensors:
        reply = self.trained.local(client)
        if self.share == "nothing":
            return reply
        own = gaussians.collect_client_statistics(client)
        gaussians.get_statistics(client).move_halfway(own)
        return reply | client.shared().only("gaussian.*")

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        return self.trained.merge(server, replies).update(mean(replies, "gaussian.*"))

    def adapt(self, client: Client) -> None:
        if self.learned < 1:
            client.memory["gaussian_head"] = self.fit_head(client)

    def fit_head(self, client: Client) -> Tensors:
        """Fit the personal head: the linear discriminant of the client's features and the common statistics."""
        own = gaussians.collect_client_statistics(client)
        common = Tensors() if self.share == "nothing" else gaussians.get_statistics(client).read()
        strengths = (self.mean_examples, self.covariance_examples)
        return gaussians.fit_discriminant(own, common, client.data.counts, *strengths, self.ridge)

    def predict(self, client: Client, x: Tensor) -> Tensor:
        if self.learned == 1:
            return self.trained.predict(client, x)
        # new clients predict without adaptation
        head = client.memory.get("gaussian_head") or self.fit_head(client)
        logits = linear(client.net.base(x).float().flatten(1), head["weight"], head["bias"])
        if not self.learned:
            return logits
        learned = self.trained.predict(client, x).float().log_softmax(1)
        return self.learned * learned + (1 - self.learned) * logits.log_softmax(1)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return self.trained.generic(client, x)
