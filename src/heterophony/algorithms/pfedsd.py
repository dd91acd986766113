"""pFedSD: Jin et al., Personalized edge intelligence via federated self-knowledge distillation, 2022."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from ..core.algorithm import Algorithm, Client, setting
from ..core.tensors import Tensors, answer, state


@dataclass(frozen=True)
class PFedSD(Algorithm):
    """The client's own model of its last round teaches the model that it received."""

    paper = "Jin et al., TPDS 2022"
    lam: float = setting(0.5, "weight of the distillation", low=0)
    temperature: float = setting(3.0, "softens both sides", above=0)
    teacher_bn: Literal["eval", "train"] = setting(
        "eval", "the teacher's normalisation: by what it learnt, or by the batch"
    )

    def local(self, client: Client) -> Tensors:
        taught = "own" in client.memory and self.lam > 0

        def loss(x: Tensor, y: Tensor) -> Tensor:
            out = client.net(x)
            if not taught:
                return cross_entropy(out, y)
            return cross_entropy(out, y) + self.lam * self.distance(out, self.teacher(client, x))

        client.fit(loss)
        client.memory["own"] = state(client.net)
        return client.shared()

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """T² KL(teacher ‖ student) of the softened answers: over classes, mean over the batch."""
        hot = self.temperature
        told, said = softmax(teacher / hot, 1), log_softmax(student / hot, 1)
        return hot**2 * kl_div(said, told, reduction="batchmean")

    @torch.no_grad()
    def teacher(self, client: Client, x: Tensor) -> Tensor:
        """What the own model of the last round says, without a gradient."""
        was = client.net.training
        client.net.train(was and self.teacher_bn == "train")
        with client.apart("teacher"):
            out = answer(client.net, client.memory["own"], x)
        client.net.train(was)
        return out

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """After local training: the model that the client trained last, not the received one."""
        return self.teacher(client, x) if "own" in client.memory else client.net(x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)
