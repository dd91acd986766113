"""Low-rank parts of layers (FedDecomp), and rounds split between two parts with FedAvg's work."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from ...core.algorithm import Client, Reply, Server
from ...core.errors import ConfigError
from ...core.tensors import Tensors, answer, match_memory_format, params, weights
from ...core.training import Training


def split_steps(client: Client, share: int, of: int) -> tuple[int, int]:
    """Split the mini-batches of the round: ``share`` of ``of`` for the first part, then the rest.

    Both parts have one at least; a single mini-batch is the second part's.
    """
    total = client.steps
    first = total * share // of
    if total > 1:
        first = min(max(first, 1), total - 1)
    return first, total - first


FACTOR_PATTERNS = ("*.parametrizations.weight.0.*",)  # names of A and B


class LowRankParametrization(nn.Module):
    """Replace W by W + s B A, read row by row; the product is cached while A and B do not change."""

    def __init__(self, weight: Tensor, unit: int, scale: float) -> None:
        super().__init__()
        k = weight.shape[2] if weight.dim() == 4 else 1
        self.a = nn.Parameter(torch.empty(unit * k, weight.shape[1] * k))
        self.b = nn.Parameter(torch.zeros(weight.shape[0] * k, unit * k))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)
        self.scale = scale
        self.cached_product: tuple[Tensor, Tensor, tuple[int, int], Tensor] | None = None

    def forward(self, weight: Tensor) -> Tensor:
        return match_memory_format(weight + self.compute_low_rank().view(weight.shape), weight)

    def compute_low_rank(self) -> Tensor:
        a, b = self.a, self.b
        trains = torch.is_grad_enabled() and a.requires_grad
        # an inference tensor has no version; what torch.export traces must not be cached
        if trains or b.is_inference() or torch.compiler.is_compiling():
            return self.scale * (b @ a)
        now = (a._version, b._version)
        if self.cached_product is None or not (
            self.cached_product[0] is a
            and self.cached_product[1] is b
            and self.cached_product[2] == now
        ):
            self.cached_product = a, b, now, self.scale * (b.detach() @ a.detach())
        return self.cached_product[3]


def add_low_rank(layer: nn.Linear | nn.Conv2d, unit: int, scale: float) -> None:
    """Add a low-rank part to the layer's weight; it is zero at first."""
    register_parametrization(layer, "weight", LowRankParametrization(layer.weight, unit, scale))


def compute_full_rank_distance(a: Tensors, b: Tensors) -> float:
    """Compute the distance of two states of the full-rank part."""
    return float((a.without(*FACTOR_PATTERNS) - b).square().sqrt())


def forward_full_rank(net: nn.Module, x: Tensor) -> Tensor:
    """Return the logits of the full-rank part alone; the net itself is not changed."""
    alone = params(net).map(Tensor.detach)
    return answer(net, alone | alone.only(*FACTOR_PATTERNS).zeros(), x)


def remember_factors(client: Client) -> Tensors:
    """Return the factors that the client began with, which are the initial ones."""
    return client.memory.setdefault("first", weights(client.net).only(*FACTOR_PATTERNS))


def average_changes(after: Server, replies: Sequence[Reply]) -> dict[str, float]:
    """Measure how far the full-rank part moved, and average how far the low-rank parts did."""
    moved = compute_full_rank_distance(after.learned, after.memory["first"])
    kinds = [k for k in replies[0].metrics if k.startswith("delta_tau")]
    means = {k: sum(r.metrics[k] for r in replies) / len(replies) for k in kinds}
    return {"delta_sigma": moved, **means}


@torch.no_grad()
def measure_low_rank_change(net: nn.Module, first: Tensors) -> dict[str, float]:
    """Measure how far the low-rank part moved: s B A, B A, and A and B themselves."""
    squares = dict.fromkeys(("effective", "unscaled", "factors"), 0.0)
    for name, part in net.named_modules():
        if isinstance(part, LowRankParametrization):
            a, b = first[f"{name}.a"], first[f"{name}.b"]
            product = float((part.b @ part.a - b @ a).square().sum())
            squares["effective"] += part.scale**2 * product
            squares["unscaled"] += product
            squares["factors"] += float((part.a - a).square().sum() + (part.b - b).square().sum())
    return {f"delta_tau_{k}": v**0.5 for k, v in squares.items()}


def split_training(client: Client, own_epochs: int | None) -> tuple[Training, Training]:
    """Split local training between the part trained first and the other; steps in proportion."""
    how = client.training
    if own_epochs is None:
        first, rest = split_steps(client, 2, of=5)  # as in the authors' code
        return replace(how, steps=first), replace(how, steps=rest)
    if how.steps is None:
        return replace(how, epochs=own_epochs), replace(how, epochs=how.epochs - own_epochs)
    steps = how.steps * min(own_epochs, how.epochs) // max(1, how.epochs)
    return replace(how, steps=steps), replace(how, steps=how.steps - steps)


def check_own_epochs(own_epochs: int | None, training: Training) -> None:
    """Refuse more epochs for the part trained first than there are."""
    if own_epochs is not None and training.steps is None and own_epochs > training.epochs:
        raise ConfigError(
            f"algorithm.own_epochs: {own_epochs} of local.epochs = {training.epochs} leave none for"
            " the part trained second; lower it, or leave it out for 2/5 of local training"
        )
