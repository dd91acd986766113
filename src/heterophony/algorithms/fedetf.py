"""FedETF: Li et al., No fear of classifier biases: neural collapse inspired federated learning, ICCV 2023.

The personalisation uses plain SGD throughout; the authors' code has 20 turns, and momentum for the
projection. P is measured after the personalisation, which takes far longer than a round: hence
``tune_every``.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.tensors import Tensors
from .parts.layers import FixedDirections, ProjectedFeatures, cut_last_linear


@dataclass(frozen=True)
class FedETF(Algorithm):
    """Train base and projection with a balanced loss under fixed class directions; fine-tune projection and directions before use."""

    paper = "Li et al., ICCV 2023"
    needs_classes = True
    personal = ("own.*",)
    uses_features = True
    temperature: float = setting(10.0, "initial norm of the features, which is learned", above=0)
    tune_turns: int = setting(
        5, "turns of the personalisation; each trains the directions, then the projection", low=0
    )
    tune_epochs: int = setting(3, "epochs of directions and of projection in each turn", low=0)
    direction_lr: float = setting(0.1, "learning rate of a client's own directions", low=0)
    projection_lr: float = setting(
        0.05, "learning rate of the projection in the personalisation", low=0
    )
    tune_every: int = setting(10, "rounds between measurements of P", low=1)

    def build(self, net: Net) -> Net:
        stem, last = cut_last_linear(net)
        width, classes = max(last.in_features, last.out_features), last.out_features
        projected = ProjectedFeatures(last.in_features, width, self.temperature)
        fixed = FixedDirections(width, classes)
        net.add_module("head", nn.Sequential(stem, projected, fixed))
        net.add_module("own", nn.Linear(width, classes, bias=False))
        net.get_parameter("own.weight").data.copy_(fixed.directions)
        return net

    def local(self, client: Client) -> Tensors:
        self.fit_balanced(client, "main")
        return client.shared()

    def fit_balanced(self, client: Client, phase: str) -> None:
        """Train base and projection, with the log-counts of the classes added to the logits."""
        net, prior = client.net, client.data.counts.log()
        client.fit(
            lambda x, y: client.loss(net(x) + prior, y), train=[net.base, net.head], phase=phase
        )

    def ready(self, t: int) -> bool:
        return t % self.tune_every == 0

    def adapt(self, client: Client) -> None:
        """Train for one round on the client's data, then alternate between the directions and the projection."""
        if not self.tune_turns:
            return
        net, projection = client.net, client.net.get_submodule("head.1.projection")
        self.fit_balanced(client, "tune")
        stages = (("directions", net.own, self.direction_lr),
                  ("projection", projection, self.projection_lr))  # fmt: skip
        for turn in range(self.tune_turns):
            for phase, part, lr in stages:
                client.fit(
                    lambda x, y: client.loss(self.predict(client, x), y),
                    train=part,
                    epochs=self.tune_epochs,
                    how=client.training.as_plain_sgd(lr),
                    phase=phase,
                    turn=turn,
                )

    def predict(self, client: Client, x: Tensor) -> Tensor:
        stem, projected, _ = client.net.get_submodule("head").children()
        return client.net.own(projected(stem(client.net.base(x))))

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)
