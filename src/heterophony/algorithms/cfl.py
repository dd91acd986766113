"""CFL: Sattler et al., Clustered federated learning, TNNLS 2021.

A cluster is split by its clients' last updates, once every client of the cluster has sent one. If all
clients take part in every round, these are the updates of the round, as in the paper; otherwise
some come from earlier rounds. As in the paper, the split minimises the largest cosine between the
two parts. The authors' code uses complete linkage instead, which does not minimise it, and splits
nothing in the first 20 rounds (``wait = 20``). The server stores an update per client and a model
per cluster. G is measured with the root: the last model that all clients had in common.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..core.algorithm import Algorithm, Reply, Server, mean, setting
from ..core.tensors import Tensors, mix
from .parts.clusters import bisect_clients, compute_cosines


@dataclass(frozen=True)
class CFL(Algorithm):
    """Train FedAvg until it converges, split clients with opposed updates into clusters, and repeat."""

    paper = "Sattler et al., TNNLS 2021"
    eps1: float = setting(
        0.4, "norm of the mean update below which a cluster counts as converged", low=0
    )
    eps2: float = setting(
        1.6, "norm of a client's update above which its cluster may be split", low=0
    )
    gamma: float = setting(
        0.0,
        "split only if √((1 - largest cosine between the parts) / 2) is above this",
        low=0,
        high=1,
    )
    smallest: int = setting(3, "smallest number of clients in a cluster that may be split", low=2)
    wait: int = setting(0, "initial number of rounds in which no cluster is split", low=0)

    def send(self, server: Server, client: str) -> Tensors:
        """Send the model of the client's cluster; a client that joins later receives the root model."""
        if client not in server.clients or "clusters" not in server.memory:
            return server.model
        cluster = int(server.memory["clusters"]["of"][server.clients.index(client)])
        return server.memory[f"cluster/{cluster}"]

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        learned = list(server.learned)
        moved = {
            f"update/{r.client}": r.tensors.only(*learned)
            - self.send(server, r.client).only(*learned)
            for r in replies
        }
        after = server.update(**moved)
        first = torch.zeros(len(server.clients), dtype=torch.int64)
        before = server.memory.get("clusters", {"of": first})["of"]
        of = before.clone()
        for cluster in before.unique().tolist():
            of = self.split_cluster(after, of, cluster)
        if not of.any():
            return after.update(mean(replies))
        at = dict(zip(server.clients, of.tolist(), strict=True))
        models = {f"cluster/{at[c]}": self.send(server, c) for c in server.clients}
        # updates from before a split must not decide the next one
        parents = set(before[of != before].tolist())
        for c, parent in zip(server.clients, before.tolist(), strict=True):
            models |= {f"update/{c}": Tensors()} if parent in parents else {}
        for cluster in set(at.values()):
            members = [r for r in replies if at[r.client] == cluster]
            if members:
                models[f"cluster/{cluster}"] = mean(members)
        return after.update(clusters=Tensors({"of": of}), **models)

    def split_cluster(self, server: Server, of: torch.Tensor, cluster: int) -> torch.Tensor:
        """Split a cluster if its clients' updates diverge; return the clusters of all clients."""
        at = (of == cluster).nonzero().flatten().tolist()
        known = [server.memory.get(f"update/{server.clients[i]}") for i in at]
        updates = [u for u in known if u]
        if len(updates) < max(len(at), self.smallest) or server.t < self.wait:
            return of
        sizes = [server.samples[server.clients[i]] for i in at]
        whole = mix(updates, [n / sum(sizes) for n in sizes])
        largest = max(float(u.square().sqrt()) for u in updates)
        if float(whole.square().sqrt()) >= self.eps1 or largest <= self.eps2:
            return of
        second, across = bisect_clients(compute_cosines(updates))
        if ((1 - across) / 2) ** 0.5 <= self.gamma:
            return of
        return of.index_fill(0, torch.tensor([at[i] for i in second]), int(of.max()) + 1)

    def measures(self, server: Server, replies: Sequence[Reply], after: Server) -> dict[str, float]:
        """Return the number of client clusters."""
        clusters = after.memory.get("clusters", {"of": torch.zeros(1)})
        return {"clusters": float(len(clusters["of"].unique()))}
