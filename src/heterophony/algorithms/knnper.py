"""kNN-Per: Marfoq et al., Personalized federated learning through local memorization, ICML 2022.

As in the authors' code, the kernel uses squared distances divided by the width of the features.
The authors' code chooses λ per client on held-out examples; here it is one setting for all clients.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..core.algorithm import Algorithm, Client, setting
from ..core.tensors import Tensors
from .parts.distillation import square_distances


@dataclass(frozen=True)
class KNNPer(Algorithm):
    """Train FedAvg; mix its predictions with the labels of the nearest features in the client's own data."""

    paper = "Marfoq et al., ICML 2022"
    uses_features = True
    needs_classes = True
    lam: float = setting(0.5, "share of the nearest neighbours in the prediction", low=0, high=1)
    neighbours: int = setting(10, "number of nearest neighbours, k", low=1)
    scale: float = setting(
        1.0, "width of the kernel, relative to the width of the features", above=0
    )

    def adapt(self, client: Client) -> None:
        if self.lam:
            client.memory["datastore"] = build_datastore(client)

    def predict(self, client: Client, x: Tensor) -> Tensor:
        if not self.lam:
            return client.net(x)
        # new clients predict without tuning
        store = client.memory.get("datastore") or build_datastore(client)
        z = client.net.base(x)
        model = client.net.head(z).float().softmax(1)
        near = self.ask_neighbours(z.float().flatten(1), store)
        mixed = self.lam * near + (1 - self.lam) * model
        return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()

    def ask_neighbours(self, z: Tensor, store: Tensors) -> Tensor:
        """Predict class probabilities from the nearest features in the datastore, weighted by a kernel."""
        distances = square_distances(z, store["features"])
        near, at = distances.topk(min(self.neighbours, distances.shape[1]), largest=False)
        # softmax is the normalised kernel, and does not divide 0 by 0 if all are far away
        weights = (-near / (z.shape[1] * self.scale)).softmax(1)
        return (weights[:, :, None] * store["classes"][at]).sum(1)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return client.net(x)


def build_datastore(client: Client) -> Tensors:
    """Build a client's datastore: the features of its training examples, with their classes."""
    z, labels = client.features().flatten(1), client.data.train.labels
    return Tensors({"features": z, "classes": one_hot(labels, client.data.classes).to(z)})
