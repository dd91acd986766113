"""FedEM: Marfoq et al., Federated multi-task learning under a mixture of distributions, NeurIPS 2021.

All components are trained on the same mini-batches; the authors' code draws them separately for
each one. G is measured with equal weights for all components.
"""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core.algorithm import Algorithm, Client, Net, setting
from ..core.tensors import Tensors
from .parts.clusters import reset_layers


@dataclass(frozen=True)
class FedEM(Algorithm):
    """Train several common models; each client predicts with its own mixture of them, found by EM."""

    paper = "Marfoq et al., NeurIPS 2021"
    needs_classes = True
    components: int = setting(3, "number of models, M", low=1)

    def build(self, net: Net) -> Net:
        if self.components > 1:
            parts = nn.ModuleDict({"base": net.base, "head": net.head})
            copies = (deepcopy(parts) for _ in range(self.components - 1))
            net.add_module("components", nn.ModuleList(map(reset_layers, copies)))
        return net

    def local(self, client: Client) -> Tensors:
        if self.components == 1:
            client.fit()
            return client.shared()
        shares = self.estimate_shares(client)  # share of each component in each example
        client.memory["fedem"] = Tensors({"weights": shares.mean(0)})
        labels = client.data.train.labels

        def loss(x: Tensor, at: Tensor) -> Tensor:
            losses = list_losses(list_outputs(client.net, x), labels[at])
            return (shares[at] * losses).sum(1).mean()

        client.fit(loss, data=client.data.train.number())
        return client.shared()

    @torch.no_grad()
    def estimate_shares(self, client: Client) -> Tensor:
        """Estimate the share of each component model in each training example: the E step of EM."""
        client.net.eval()
        batches = client.data.train.batches(250)
        losses = torch.cat([list_losses(list_outputs(client.net, x), y) for x, y in batches])
        return (self.get_weights(client).to(losses).log() - losses).softmax(1)

    def get_weights(self, client: Client) -> Tensor:
        """Return the client's weights of the component models, equal until it has estimated them."""
        kept = client.memory.get("fedem", Tensors()).get("weights")
        return torch.full((self.components,), 1 / self.components) if kept is None else kept

    def adapt(self, client: Client) -> None:
        """Estimate the weights of a client that has none yet; the components are not trained."""
        if self.components > 1 and "fedem" not in client.memory:
            client.memory["fedem"] = Tensors({"weights": self.estimate_shares(client).mean(0)})

    def predict(self, client: Client, x: Tensor) -> Tensor:
        return mix_outputs(client.net, x, self.get_weights(client))

    def generic(self, client: Client, x: Tensor) -> Tensor:
        return mix_outputs(client.net, x, torch.full((self.components,), 1 / self.components))


def list_outputs(net: Net, x: Tensor) -> list[Tensor]:
    """Return the outputs of all component models."""
    others = getattr(net, "components", ())
    return [net(x), *(part["head"](part["base"](x)) for part in others)]


def list_losses(outputs: list[Tensor], y: Tensor) -> Tensor:
    """Return the loss of each example (row) with each component model (column)."""
    return torch.stack([cross_entropy(z.float(), y, reduction="none") for z in outputs], 1)


def mix_outputs(net: Net, x: Tensor, weights: Tensor) -> Tensor:
    """Return the log-probabilities of the weighted mixture of all component models."""
    outputs = list_outputs(net, x)
    if len(outputs) == 1:
        return outputs[0]
    each = torch.stack([z.float().log_softmax(1) for z in outputs])
    return (each + weights.to(each).log()[:, None, None]).logsumexp(0)
