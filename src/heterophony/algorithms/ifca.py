"""IFCA: Ghosh et al., An efficient framework for clustered federated learning, NeurIPS 2020.

This is the paper's model averaging, with the cluster estimated on all training examples. A client
receives all k models and sends one. The first is initialised as in FedAvg, the others
independently, except for layers without ``reset_parameters``. G is measured with all k models: by
the mean of their outputs. P is measured with the model that has the smallest loss on the client's
training examples at that time.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, mean, setting
from ..core.tensors import Tensors, answer, load_into_net
from .parts.clusters import compute_loss, reset_layers


@dataclass(frozen=True)
class IFCA(Algorithm):
    """Train k models; each client trains the one with the smallest loss on its data."""

    paper = "Ghosh et al., NeurIPS 2020"
    clusters: int = setting(2, "number of models, k", low=1)
    clustered: Literal["net", "head"] = setting(
        "net",
        "part of the model that differs between clusters; head: all share one base (weight sharing)",
    )

    @property
    def separates_head(self) -> bool:  # type: ignore[override]  # here it is a setting
        return self.clustered == "head"

    def build(self, net: Net) -> Net:
        if self.clusters > 1:
            parts = {"head": net.head} if self.clustered == "head" else dict(net.named_children())
            copies = (deepcopy(nn.ModuleDict(parts)) for _ in range(self.clusters - 1))
            net.add_module("clusters", nn.ModuleList(map(reset_layers, copies)))
        return net

    def list_models(self, client: Client) -> list[Tensors]:
        """List the tensors of all k cluster models, under the names of the net."""
        now = client.shared()
        first = now.without("clusters.*")
        rest = [now.below(f"clusters.{j}.") for j in range(self.clusters - 1)]
        return [first, *(first | other for other in rest)]

    def estimate_cluster(self, client: Client) -> int:
        """Find the model with the smallest loss on the client's data, and load it into the net."""
        if self.clusters == 1:
            return 0
        models = self.list_models(client)
        losses = [compute_loss(client, w, client.data.train) for w in models]
        best = int(torch.stack(losses).argmin())
        load_into_net(client.net, models[best])
        return best

    def local(self, client: Client) -> Tensors:
        best = torch.tensor(self.estimate_cluster(client))
        client.fit(train=[client.net.base, client.net.head])
        return client.shared().without("clusters.*") | {"ifca/cluster": best}

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        """Average the models of each cluster; the model of a cluster without clients is unchanged."""
        names = list(server.model.without("clusters.*"))
        own = names if self.clustered == "net" else [k for k in names if k.startswith("head.")]
        common = [k for k in names if k not in own]
        model = mean(replies, *common) if common else Tensors()
        for j in range(self.clusters):
            members = [r for r in replies if int(r.tensors["ifca/cluster"]) == j]
            if members:
                model = model | mean(members, *own).under(f"clusters.{j - 1}." if j else "")
        return server.update(model)

    def measures(self, server: Server, replies: Sequence[Reply], after: Server) -> dict[str, float]:
        """Count the clusters that at least one client chose."""
        return {"clusters": float(len({int(r.tensors["ifca/cluster"]) for r in replies}))}

    def adapt(self, client: Client) -> None:
        self.estimate_cluster(client)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return torch.stack([answer(client.net, w, x) for w in self.list_models(client)]).mean(0)
