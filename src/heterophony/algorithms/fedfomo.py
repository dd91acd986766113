"""FedFomo: Zhang et al., Personalized FL with first order model optimization, ICLR 2021.

As in the authors' code, losses and distances are compared with the model from which the client started its
last round, and the client's own trained model is a candidate in addition to the M downloaded ones.
Candidates are compared on training examples that the client sets aside and does not train on: no validation
or test example of the run is used. The server stores a model per client and an N × N matrix. There
is no common model, so no G. The authors' code measures distances by ``norm = "l1"``. It also offers
clients the mean models of client clusters, which are not in the paper and are left out here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from ..core.algorithm import Algorithm, Client, Reply, Server, setting
from ..core.tensors import Tensors, load_into_net
from .parts.clusters import compute_gains, hold_out_examples
from .parts.mixing import choose_downloads


@dataclass(frozen=True)
class FedFomo(Algorithm):
    """Start each round from a mixture of the client's own and other models that lower the client's loss."""

    paper = "Zhang et al., ICLR 2021"
    common = False
    downloads: int = setting(5, "number of other clients' models that a client receives, M", low=0)
    held_out: float = setting(
        0.2, "fraction of the examples held out to compare models; 0: compare and train on all examples",
        low=0, below=1,
    )  # fmt: skip
    norm: Literal["l2", "l1"] = setting("l2", "norm that measures distances between models")
    explore: float = setting(
        0.3, "probability of choosing a client at random instead of by preference", low=0, high=1
    )
    explore_decay: float = setting(0.05, "decrease of explore per round", low=0)

    def send(self, server: Server, client: str) -> Tensors:
        sent = server.memory.get(f"model/{client}", server.model)  # at first the initial model
        others = [server.memory[f"model/{c}"] for c in self.list_downloads(server, client)]
        return sent | {f"other/{i}/{k}": v for i, w in enumerate(others) for k, v in w.items()}

    def list_downloads(self, server: Server, client: str) -> list[str]:
        """List the clients whose models a client receives; a client that joins later gets the first ones."""
        if client in server.clients and "chosen" in server.memory:
            row = server.memory["chosen"]["at"][server.clients.index(client)].tolist()
            return [server.clients[i] for i in row if i >= 0]
        known = [c for c in server.clients if f"model/{c}" in server.memory and c != client]
        return known[: self.downloads]

    def local(self, client: Client) -> Tensors:
        kept, held = hold_out_examples(client.data.train, self.held_out)
        others = [client.received.below(f"other/{i}/") for i in range(self.downloads)]
        candidates = [client.shared(), *others]
        before = client.memory.get("before", candidates[0])
        gains = compute_gains(client, before, candidates, held, self.norm)
        shares = gains.clamp(min=0)
        start = mix_on_device(candidates, shares / shares.sum()) if shares.sum() > 0 else before
        load_into_net(client.net, start)
        client.memory["before"] = start
        client.fit(data=kept)
        return client.shared() | {"fomo/gains": gains[1:]}

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        n, at = len(server.clients), {c: i for i, c in enumerate(server.clients)}
        liking = server.memory.get("liking", Tensors({"P": torch.eye(n)}))["P"].clone()
        for r in replies:
            for i, c in enumerate(self.list_downloads(server, r.client)):
                liking[at[r.client], at[c]] += r.tensors["fomo/gains"][i]
        after = server.update(**{f"model/{r.client}": r.tensors.without("*/*") for r in replies})
        known = [f"model/{c}" in after.memory for c in server.clients]
        chance = max(0.0, self.explore - self.explore_decay * (server.t + 1))
        chosen = choose_downloads(liking, known, self.downloads, chance)
        return after.update(liking=Tensors({"P": liking}), chosen=Tensors({"at": chosen}))


def mix_on_device(others: Sequence[Tensors], shares: Tensor) -> Tensors:
    """Return the weighted sum of models on the job's device; skip models of zero weight."""
    used = [w.map(lambda v, s=s: s * v) for w, s in zip(others, shares, strict=True) if s > 0]
    return reduce(Tensors.__add__, used)
