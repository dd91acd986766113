"""What FedDecomp adds to a network: to every weight a product of two small matrices."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from ...core.client import Training, answer
from ...core.tensors import Tensors, laid_as, params

FACTORS = ("*.parametrizations.weight.0.*",)  # the names of A and B


class PlusLowRank(nn.Module):
    """W becomes W + s B A, read row by row; the product is kept as long as nobody learns it."""

    def __init__(self, weight: Tensor, unit: int, scale: float) -> None:
        super().__init__()
        k = weight.shape[2] if weight.dim() == 4 else 1
        self.a = nn.Parameter(torch.empty(unit * k, weight.shape[1] * k))
        self.b = nn.Parameter(torch.zeros(weight.shape[0] * k, unit * k))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)
        self.scale = scale
        self.kept: tuple[Tensor, Tensor, tuple[int, int], Tensor] | None = None

    def forward(self, weight: Tensor) -> Tensor:
        return laid_as(weight + self.low_rank().view(weight.shape), weight)

    def low_rank(self) -> Tensor:
        a, b = self.a, self.b
        if (torch.is_grad_enabled() and a.requires_grad) or b.is_inference():  # has no version
            return self.scale * (b @ a)
        now = (a._version, b._version)
        if self.kept is None or not (
            self.kept[0] is a and self.kept[1] is b and self.kept[2] == now
        ):
            self.kept = a, b, now, self.scale * (b.detach() @ a.detach())
        return self.kept[3]


def add(layer: nn.Linear | nn.Conv2d, unit: int, scale: float) -> None:
    """Give the layer's weight its low-rank part, which is zero at first."""
    register_parametrization(layer, "weight", PlusLowRank(layer.weight, unit, scale))


def distance(a: Tensors, b: Tensors) -> float:
    """Between two states of the full-rank part."""
    return float((a.without(*FACTORS) - b).square().sqrt())


def plain(net: nn.Module, x: Tensor) -> Tensor:
    """What the full-rank part says alone; the net itself, which others may use, is not changed."""
    alone = params(net).map(Tensor.detach)
    return answer(net, alone | alone.only(*FACTORS).zeros(), x)


@torch.no_grad()
def moved(net: nn.Module, first: Tensors) -> dict[str, float]:
    """How far the low-rank part is from where it was: s B A, B A, and A and B themselves."""
    squares = dict.fromkeys(("effective", "unscaled", "factors"), 0.0)
    for name, part in net.named_modules():
        if isinstance(part, PlusLowRank):
            a, b = first[f"{name}.a"], first[f"{name}.b"]
            product = float((part.b @ part.a - b @ a).square().sum())
            squares["effective"] += part.scale**2 * product
            squares["unscaled"] += product
            squares["factors"] += float((part.a - a).square().sum() + (part.b - b).square().sum())
    return {f"delta_tau_{k}": v**0.5 for k, v in squares.items()}


def divided(how: Training, own_epochs: int) -> tuple[Training, Training]:
    """The training of the part that comes first, and of the other: epochs, or steps in proportion."""
    own = min(own_epochs, how.epochs)
    if how.steps is None:
        return replace(how, epochs=own), replace(how, epochs=how.epochs - own)
    steps = how.steps * own // max(1, how.epochs)
    return replace(how, steps=steps), replace(how, steps=how.steps - steps)
