"""pFedSD: Jin et al., Personalized edge intelligence via federated self-knowledge distillation, 2022."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, softmax

from ..core.algorithm import Algorithm, Client, setting
from ..core.tensors import Tensors, answer, state


@dataclass(frozen=True)
class PFedSD(Algorithm):
    """Distil the client's own model from its last round into the received model."""

    paper = "Jin et al., TPDS 2022"
    needs_classes = True
    lam: float = setting(0.5, "weight of the distillation", low=0)
    temperature: float = setting(3.0, "temperature of the distillation", above=0)
    teacher_bn: Literal["eval", "train"] = setting(
        "eval", "statistics of the teacher's BatchNorm: running ones, or those of the batch"
    )

    def local(self, client: Client) -> Tensors:
        has_teacher = "own" in client.memory and self.lam > 0

        def loss(x: Tensor, y: Tensor) -> Tensor:
            out = client.net(x)
            if not has_teacher:
                return client.loss(out, y)
            distance = self.compute_distillation_loss(out, self.run_teacher(client, x))
            return client.loss(out, y) + self.lam * distance

        client.fit(loss)
        client.memory["own"] = state(client.net)
        return client.shared()

    def compute_distillation_loss(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compute the loss T² KL(teacher ‖ student) of softened outputs, averaged over the batch."""
        t = self.temperature
        target, log_answer = softmax(teacher / t, 1), log_softmax(student / t, 1)
        return t**2 * kl_div(log_answer, target, reduction="batchmean")

    @torch.no_grad()
    def run_teacher(self, client: Client, x: Tensor) -> Tensor:
        """Return the logits of the client's own model from its last round, without a gradient."""
        training = client.net.training
        client.net.train(training and self.teacher_bn == "train")
        with client.apart("teacher"):
            out = answer(client.net, client.memory["own"], x)
        client.net.train(training)
        return out

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """Predict with the model that the client trained last, not with the received one."""
        return self.run_teacher(client, x) if "own" in client.memory else client.net(x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)
