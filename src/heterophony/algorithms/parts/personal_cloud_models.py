"""What FedAMP and HeurFedAMP share: a model per client on the server, training near a mixture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ...core.algorithm import Algorithm, Client, Reply, Server, setting
from ...core.tensors import Tensors, answer, mix, state, weights


@dataclass(frozen=True)
class AttentiveMessagePassing(Algorithm):
    """u_i, the mixture for client i, is where it starts and what holds it while it trains w_i."""

    paper = "Huang et al., AAAI 2021"
    common = False
    lam: float = setting(1.0, "strength of the pull towards the cloud model", low=0)
    alpha: float = setting(1e4, "divides the pull; a tenth of it every 30 rounds", above=0)
    tested: Literal["local", "cloud"] = setting("local", "P is of the w_i trained last, or of u_i")

    def alpha_at(self, t: int) -> float:
        return self.alpha * 0.1 ** (t // 30)

    def send(self, server: Server, client: str) -> Tensors:
        known = list_clients_with_model(server)
        if client not in known:
            return server.model  # the common start
        row = server.memory["attention"]["xi"][known.index(client)].tolist()
        models = [server.memory[f"model/{c}"] for c in known]
        used = [(w, share) for w, share in zip(models, row, strict=True) if share]
        return mix([w for w, _ in used], [share for _, share in used])

    def local(self, client: Client) -> Tensors:
        cloud = weights(client.net)
        # the pull grows as alpha falls; the floor holds lr times pull at a tenth
        floor = 10 * client.training.lr * self.lam
        pulled = self.lam and self.lam / max(self.alpha_at(client.t), floor)

        client.fit(pull=(lambda w: pulled * (w - cloud)) if pulled else None)
        client.memory["own"] = state(client.net)
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        after = server.update(**{f"model/{r.client}": r.tensors for r in replies})
        learnt = [
            after.memory[f"model/{c}"].without(*server.statistics)
            for c in list_clients_with_model(after)
        ]
        return after.update(attention=Tensors({"xi": self.compute_attention(learnt, server.t + 1)}))

    def compute_attention(self, models: Sequence[Tensors], t: int) -> Tensor:
        """Row i: how much of every model is in client i's mixture; rows sum to 1."""
        raise NotImplementedError

    def predict(self, client: Client, x: Tensor) -> Tensor:
        own = client.memory.get("own", Tensors()) if self.tested == "local" else Tensors()
        return answer(client.net, own, x)


def list_clients_with_model(server: Server) -> list[str]:
    """The clients whose model the server has, in order."""
    return [c for c in server.clients if f"model/{c}" in server.memory]
