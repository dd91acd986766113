"""FedPara: Hyeon-Woo et al., Low-rank Hadamard product for communication-efficient FL, ICLR 2022."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod, sqrt

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from ..core.algorithm import Algorithm, Net, setting
from ..core.net import find_aliases, iterate_tensors


class HadamardProduct(nn.Module):
    """FedPara's parametrisation W = W1 ⊙ (W2 + plus), each a product of factors; those of W1 come first."""

    def __init__(self, weight: Tensor, gamma: float, plus: float) -> None:
        super().__init__()
        out, into, *window = weight.shape
        r = choose_rank(weight.shape, gamma)
        factors = [(r, r, *window), (r, out), (r, into)] if window else [(out, r), (into, r)]
        # factors of W1 ⊙ W2 are drawn like layers; W1 ⊙ (W2 + 1) is as large as W1, which must be smaller
        last = out if plus else r
        inputs = [r * prod(window), last, into] if window else [last, into]
        self.shapes, self.inputs, self.plus = factors * 2, inputs * 2, plus

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Draw new factors for a weight, whatever it was, with standard deviation √(2 / number of inputs)."""
        each = zip(self.shapes, self.inputs, strict=True)
        return tuple(sqrt(2 / n) * torch.randn(s) for s, n in each)

    def forward(self, *factors: Tensor) -> Tensor:
        half = len(factors) // 2
        return multiply_factors(*factors[:half]) * (multiply_factors(*factors[half:]) + self.plus)


def multiply_factors(*factors: Tensor) -> Tensor:
    """Return the weight of a linear layer, or of a convolution, from its two or three factors."""
    if len(factors) == 2:
        return factors[0] @ factors[1].T
    return torch.einsum("xyzw,xo,yi->oizw", *factors)


def choose_rank(shape: Sequence[int], gamma: float) -> int:
    """Choose the rank of both factor products from gamma; W can always have full rank."""
    out, into, *window = shape
    if not window:
        return max(ceil(sqrt(min(out, into))), ceil(gamma * out * into / (2 * (out + into))))
    half = (out + into) / (2 * prod(window))
    return max(ceil(sqrt(max(out, into))), ceil(sqrt(half**2 + gamma * out * into / 2) - half))


def factorise_net(net: Net, gamma: float, plus: float = 0.0, last: bool = False) -> Net:
    """Replace a net's weights by Hadamard products of factors where that saves parameters.

    Frozen and tied weights, the stem and 1x1 shortcuts are left unchanged. So is the last layer,
    unless ``last`` is true: then it is always factorised, even if that saves nothing.
    """
    layers = [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    tensors = dict(iterate_tensors(net))
    tied = {id(tensors[k]) for k in find_aliases(net)}
    stem = [m for m in layers if isinstance(m, nn.Conv2d)][:1]
    for layer in layers:
        narrow = isinstance(layer, nn.Conv2d) and prod(layer.kernel_size) == 1
        is_last = layer is layers[-1]
        plain = narrow or any(layer is other for other in stem) or (is_last and not last)
        plain = plain or not layer.weight.requires_grad or id(layer.weight) in tied
        product = HadamardProduct(layer.weight, gamma, plus)
        saves = sum(map(prod, product.shapes)) < layer.weight.numel()
        if not plain and (saves or is_last):
            register_parametrization(layer, "weight", product)
    return net


@dataclass(frozen=True)
class FedPara(Algorithm):
    """Average the low-rank factors of weights that are Hadamard products, to send fewer parameters."""

    paper = "Hyeon-Woo et al., ICLR 2022"
    gamma: float = setting(
        0.1, "size of a layer's factors, as a fraction of its parameters", above=0, high=1
    )

    def build(self, net: Net) -> Net:
        return factorise_net(net, self.gamma)
