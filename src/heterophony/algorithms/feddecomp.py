"""FedDecomp: Wu et al., Decoupling general and personalized knowledge, ACM MM 2024."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ..core.algorithm import Algorithm, Client, Net, Reply, Server, setting
from ..core.tensors import Tensors, matches_any, params
from ..core.training import Training
from .parts import low_rank
from .parts.low_rank import FACTOR_PATTERNS


@dataclass(frozen=True)
class FedDecomp(Algorithm):
    """Add a personal low-rank matrix to every shared weight, and train it before the shared weight."""

    paper = "Wu et al., ACM MM 2024"
    mode: Literal["alternating", "simultaneous", "reverse", "fedavg", "local"] = setting(
        "alternating",
        "reverse shares the factors; fedavg and local train both parts and share all or nothing",
    )
    conv_rank: float = setting(0.6, "relative rank of convolutions", above=0, high=1)
    linear_rank: float = setting(0.6, "relative rank of linear layers", above=0, high=1)
    rank_rule: Literal["authors", "paper"] = setting(
        "authors", "rank is relative to the number of outputs, or to the smaller side of the weight"
    )
    scale: Literal["one_over_unit", "none"] = setting(
        "one_over_unit", "factor of B A: 1 over the rank unit, or 1"
    )
    own_epochs: int | None = setting(
        None, "epochs of the part trained first; default: 2/5 of local training", low=0
    )
    reverse_order: Literal["sigma_first", "tau_first"] = setting(
        "sigma_first", "order of training in mode reverse"
    )
    changes: bool = setting(False, "record how far both parts moved from their initial values")

    def check_training(self, training: Training) -> None:
        if self.mode in ("alternating", "reverse"):
            low_rank.check_own_epochs(self.own_epochs, training)

    def build(self, net: Net) -> Net:
        for layer in list(net.modules()):
            # a frozen weight is neither shared nor changed
            if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.requires_grad:
                unit = self.compute_rank_unit(layer.weight)
                scale = 1 / unit if self.scale == "one_over_unit" else 1.0
                low_rank.add_low_rank(layer, unit, scale)
        return net

    def compute_rank_unit(self, weight: Tensor) -> int:
        """Compute the rank unit of a weight: the rank of its personal part, per window width in a convolution."""
        out, into = weight.shape[:2]
        if weight.dim() == 2:
            return max(1, int(self.linear_rank * min(out, into) + 1e-9))
        side = out if self.rank_rule == "authors" else min(out, into)
        return max(1, int(self.conv_rank * side + 1e-9))

    def stays(self, net: Net) -> Iterable[str]:
        factors = [k for k in net.state_dict() if matches_any(k, FACTOR_PATTERNS)]
        rest = [k for k in net.state_dict() if k not in factors]
        return {"reverse": rest, "fedavg": [], "local": ["*"]}.get(self.mode, factors)

    def local(self, client: Client) -> Tensors:
        first = low_rank.get_first_factors(client) if self.changes else None
        if self.mode in ("alternating", "reverse"):
            whole = params(client.net)
            tau, sigma = whole.only(*FACTOR_PATTERNS), whole.without(*FACTOR_PATTERNS)
            if self.mode == "reverse" and self.reverse_order == "sigma_first":
                tau, sigma = sigma, tau
            early, late = low_rank.split_training(client, self.own_epochs)
            client.fit(train=tau.values(), how=early, phase="own")
            client.fit(train=sigma.values(), how=late)
        else:
            client.fit()
        if first is not None:
            client.metrics.update(low_rank.measure_low_rank_change(client.net, first))
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        after = super().merge(server, replies)
        keep = self.changes and "first" not in server.memory
        return after.update(first=server.learned) if keep else after

    def measures(self, server: Server, replies: Sequence[Reply], after: Server) -> dict[str, float]:
        """Measure how far clients are from their mean and, with ``changes``, how far both parts have moved."""
        sent = [r.tensors.only(*after.learned) for r in replies]
        distances = [low_rank.compute_full_rank_distance(w, after.model) for w in sent]
        out = {"model_difference": sum(distances) / len(distances)}
        return out | low_rank.measure_changes(after, replies) if self.changes else out

    def generic(self, client: Client, x: Tensor) -> Tensor:
        personal_factors = self.mode in ("alternating", "simultaneous")
        return low_rank.forward_full_rank(client.net, x) if personal_factors else client.net(x)
