"""Algorithms on low-rank adapters: they add adapters where the model has none."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from ...core.adapters import LoRA, LoRAConv2d, LoRALinear, has_lora, iterate_lora_layers
from ...core.algorithm import Algorithm, Net, setting
from ...core.errors import ConfigError
from ...core.net import copy_module


@dataclass(frozen=True)
class LoRAAlgorithm(Algorithm):
    """FedAvg on low-rank adapters and the head; the rest of the net is given.

    A model that has adapters (``model.adapter``, ``hp.LoRA`` or ``peft``) is used as it is.
    """

    rank: int = setting(8, "rank of adapters, where the model has none", low=1)
    alpha: float = setting(8.0, "updates are scaled by alpha / rank", above=0)

    def build(self, net: Net) -> Net:
        return net if has_lora(net) else LoRA(rank=self.rank, alpha=self.alpha).apply(net)


class DualAdapter(nn.Module):
    """A layer with a common low-rank update and a personal one, mixed example by example.

    ``mix`` is the share of the personal update, for each example or for all; None: none of it.
    """

    mix: Tensor | None = None

    def __init__(self, layer: LoRALinear | LoRAConv2d) -> None:
        super().__init__()
        self.common, self.own = layer, copy_module(layer)
        for name in ("weight", "bias"):  # the two have these in common
            self.own._parameters[name] = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mix is None:
            common: Tensor = self.common(x)
            return common
        plain = self.common.forward_plain(x)
        mix = self.mix.to(plain).reshape(-1, *[1] * (plain.dim() - 1))
        return plain + (1 - mix) * self.common.forward_update(x) + mix * self.own.forward_update(x)


def add_personal_adapters(net: Net) -> Net:
    """Give every layer that has a low-rank adapter a second one, which is personal."""
    layers = list(iterate_lora_layers(net))
    if not layers:
        raise ConfigError(
            "algorithm: feddpa adds a second adapter to LoRA layers of this package, and the model has"
            " adapters of another one; give the plain model, with model.adapter or hp.LoRA"
        )
    for path, layer in layers:
        parent, _, name = path.rpartition(".")
        setattr(net.get_submodule(parent), name, DualAdapter(layer))
    return net


@contextmanager
def mixing(net: nn.Module, mix: Tensor | None) -> Iterator[None]:
    """Use this share of the personal adapters inside the block."""
    layers = [m for m in net.modules() if isinstance(m, DualAdapter)]
    for layer in layers:
        layer.mix = mix
    try:
        yield
    finally:
        for layer in layers:
            layer.mix = None
