"""FedDyn: Acar et al., Federated learning based on dynamic regularization, ICLR 2021."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ..core.algorithm import Algorithm, Client, Reply, Server, equally, mean, setting
from ..core.tensors import Tensors, params, weights
from .parts.server_updates import correct_average, get_correction, update_correction


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """Add a dynamic regulariser to each local objective, so that its minimum is the common one."""

    paper = "Acar et al., ICLR 2021"
    alpha: float = setting(0.01, "strength of the dynamic regulariser", above=0)
    norm: Literal["squared", "plain"] = setting(
        "squared", "norm that is penalised; plain: as in PFLlib"
    )
    alpha_scaled: bool = setting(False, "as in the authors' code: smaller alpha for larger clients")
    clip: float | None = setting(None, "as in the authors' code: largest gradient norm", above=0)

    def send(self, server: Server, client: str) -> Tensors:
        if not self.alpha_scaled:
            return server.model
        mean_size = sum(server.samples.values()) / len(server.samples)
        return server.model | {"feddyn/usual": torch.tensor(mean_size)}

    def local(self, client: Client) -> Tensors:
        received = weights(client.net)
        g = get_correction(client, received)
        n = len(client.data.train)
        alpha = self.alpha * (float(client.received.get("feddyn/usual", n)) / n)

        def pull(w: Tensors) -> Tensors:
            away = w - received
            if self.norm == "plain":
                away = away / (2 * float(away.square().sqrt()) or 1.0)
            term = alpha * away - g
            return term if self.clip is None else clip_correction(client, term, self.clip)

        client.fit(pull=pull)
        update_correction(client, received, alpha)
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        return correct_average(server, replies, mean(replies, weight=equally), self.alpha)


def clip_correction(client: Client, term: Tensors, limit: float) -> Tensors:
    """Change a correction so that the gradient plus the correction has at most the norm ``limit``."""
    grad = Tensors({k: p.grad for k, p in params(client.net).items() if p.grad is not None})
    whole = grad + term
    length = float(whole.square().sqrt()) + 1e-6
    return whole * min(1.0, limit / length) - grad
