"""A model per client on the server and training near a mixture of them, for FedAMP and HeurFedAMP."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ...core.algorithm import Algorithm, Client, Reply, Server, setting
from ...core.tensors import Tensors, answer, mix, state, weights


@dataclass(frozen=True)
class AttentiveMessagePassing(Algorithm):
    """Client i starts from u_i, the server's mixture for it, and trains w_i near u_i."""

    paper = "Huang et al., AAAI 2021"
    common = False
    lam: float = setting(1.0, "strength of the proximal term towards the cloud model u_i", low=0)
    alpha: float = setting(
        1e4, "divides the proximal term; falls to a tenth every 30 rounds", above=0
    )
    tested: Literal["local", "cloud"] = setting(
        "local", "measure P with w_i as trained last, or with u_i"
    )

    def compute_alpha(self, t: int) -> float:
        return self.alpha * 0.1 ** (t // 30)

    def send(self, server: Server, client: str) -> Tensors:
        known = list_clients_with_model(server)
        if client not in known:
            return server.model  # the common initial model
        row = server.memory["attention"]["xi"][known.index(client)].tolist()
        models = [server.memory[f"model/{c}"] for c in known]
        used = [(w, share) for w, share in zip(models, row, strict=True) if share]
        return mix([w for w, _ in used], [share for _, share in used])

    def local(self, client: Client) -> Tensors:
        cloud = weights(client.net)
        # the term grows as alpha falls; the floor keeps lr times its strength at most a tenth
        floor = 10 * client.lr * self.lam
        strength = self.lam and self.lam / max(self.compute_alpha(client.t), floor)

        client.fit(pull=(lambda w: strength * (w - cloud)) if strength else None)
        client.memory["own"] = state(client.net)
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        after = server.update(**{f"model/{r.client}": r.tensors for r in replies})
        models = [
            after.memory[f"model/{c}"].without(*server.statistics)
            for c in list_clients_with_model(after)
        ]
        return after.update(attention=Tensors({"xi": self.compute_attention(models, server.t + 1)}))

    def compute_attention(self, models: Sequence[Tensors], t: int) -> Tensor:
        """Return in row i the share of every model in client i's mixture; rows sum to 1."""
        raise NotImplementedError

    def predict(self, client: Client, x: Tensor) -> Tensor:
        own = client.memory.get("own", Tensors()) if self.tested == "local" else Tensors()
        return answer(client.net, own, x)


def list_clients_with_model(server: Server) -> list[str]:
    """List the clients whose model the server has, in client order."""
    return [c for c in server.clients if f"model/{c}" in server.memory]
