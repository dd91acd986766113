"""Adapters for fine-tuning: small trainable parts of a frozen net (LoRA, bottlenecks, biases, the head).

``apply`` changes a module in place: everything except the adapter and the head is frozen, and so
*given* in a run. The net's own parameters keep their names; LoRA adds ``lora_A`` and ``lora_B``
next to the weight of each adapted layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from .errors import ConfigError, find_name
from .net import Net, copy_module
from .settings import check_settings, construct, setting
from .tensors import matches_any

AnyModule = TypeVar("AnyModule", bound=nn.Module)
LORA_A, LORA_B = "*lora_A*", "*lora_B*"  # patterns that also match the names of ``peft``

LARGEST_WIDTH = 4096  # widest part added to a layer; memory grows with it


class LoRALinear(nn.Linear):
    """A linear layer with a low-rank update ``scale * B A``: Hu et al., LoRA, ICLR 2022.

    ``update`` is None, or the sum of the adapters merged into the weight so far.
    """

    update: nn.Parameter | None

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        for name, parameter in layer._parameters.items():
            self.register_parameter(name, parameter)
        self.register_parameter("update", None)
        self.scale = scale
        self.lora_A = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_B = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_plain(x) + self.forward_update(x)

    def forward_plain(self, x: Tensor) -> Tensor:
        """Compute the output of the layer without its low-rank update."""
        return F.linear(x, add_update(self), self.bias)

    def forward_update(self, x: Tensor) -> Tensor:
        """Compute what the low-rank update adds to the output."""
        return self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)

    def compute_merged_weight(self) -> Tensor:
        """Return the weight of a plain layer with the same outputs."""
        return add_update(self) + self.scale * (self.lora_B @ self.lora_A)


class LoRAConv2d(nn.Conv2d):
    """A convolution with a low-rank update: a convolution to ``rank`` channels, then a 1x1 convolution."""

    update: nn.Parameter | None

    def __init__(self, layer: nn.Conv2d, rank: int, scale: float) -> None:
        nn.Module.__init__(self)
        plain = {k: v for k, v in vars(layer).items() if not k.startswith("_")}
        vars(self).update(plain)  # stride, padding and other settings of the layer
        self._reversed_padding_repeated_twice = layer._reversed_padding_repeated_twice
        for name, parameter in layer._parameters.items():
            self.register_parameter(name, parameter)
        self.register_parameter("update", None)
        self.scale = scale
        out, into, *kernel = layer.weight.shape
        self.lora_A = nn.Parameter(layer.weight.new_empty(rank, into, *kernel))
        self.lora_B = nn.Parameter(layer.weight.new_zeros(out, rank, 1, 1))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_plain(x) + self.forward_update(x)

    def forward_plain(self, x: Tensor) -> Tensor:
        """Compute the output of the layer without its low-rank update."""
        out: Tensor = self._conv_forward(x, add_update(self), self.bias)
        return out

    def forward_update(self, x: Tensor) -> Tensor:
        """Compute what the low-rank update adds to the output."""
        return self.scale * F.conv2d(self._conv_forward(x, self.lora_A, None), self.lora_B)

    def compute_merged_weight(self) -> Tensor:
        """Return the weight of a plain layer with the same outputs."""
        product = torch.einsum("or,rihw->oihw", self.lora_B[:, :, 0, 0], self.lora_A)
        return add_update(self) + self.scale * product


def add_update(layer: LoRALinear | LoRAConv2d) -> Tensor:
    """Return a LoRA layer's weight plus the adapters merged into it earlier, without its current adapter."""
    return layer.weight if layer.update is None else layer.weight + layer.update


class BottleneckAdapter(nn.Module):
    """A layer followed by a residual bottleneck whose output is zero at first: Houlsby et al., ICML 2019."""

    def __init__(self, layer: nn.Linear, width: int) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.out_features, width, device=layer.weight.device)
        self.up = nn.Linear(width, layer.out_features, device=layer.weight.device)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        added: Tensor = self.up(F.relu(self.down(y)))
        return y + added


LORA_LAYERS = (LoRALinear, LoRAConv2d)


@dataclass(frozen=True)
class Adapter:
    """Adapter settings: which small parts to add to a net, and which of the net's parameters to train."""

    kind: ClassVar[str] = ""
    train: tuple[str, ...] | None = setting(
        None, "patterns of parameters to train besides the adapter; default: those of the head"
    )

    def __post_init__(self) -> None:
        for name in ("targets", "train"):  # a file holds a list
            if isinstance(value := getattr(self, name, None), list):
                object.__setattr__(self, name, tuple(value))
        check_settings(self)

    def apply(self, module: AnyModule) -> AnyModule:
        """Add the adapter to a module and freeze everything else except the head; return the module."""
        head = list_head_parameters(module) if self.train is None else []
        module.requires_grad_(False)
        self.add_parts(module, {name.rpartition(".")[0] for name in head})
        for name, parameter in module.named_parameters():
            if name in head or matches_any(name, self.train or ()):
                parameter.requires_grad_(True)
        return module

    def add_parts(self, module: nn.Module, head: set[str]) -> None:
        """Add the adapter's trainable parts to a frozen module, outside the layers of its head."""


@dataclass(frozen=True)
class LoRA(Adapter):
    """Low-rank updates of linear layers and convolutions: Hu et al., ICLR 2022."""

    kind = "lora"
    rank: int = setting(8, "rank of the update", low=1, high=LARGEST_WIDTH)
    alpha: float = setting(16.0, "the update is scaled by alpha / rank", above=0)
    targets: tuple[str, ...] = setting(("*",), "patterns of the layers to adapt")

    def add_parts(self, module: nn.Module, head: set[str]) -> None:
        scale = self.alpha / self.rank
        for path, layer in find_targets(module, self.targets, head, nn.Linear, nn.Conv2d).items():
            kind: Any = LoRALinear if isinstance(layer, nn.Linear) else LoRAConv2d
            module.set_submodule(path, kind(layer, self.rank, scale))


@dataclass(frozen=True)
class Bottleneck(Adapter):
    """Residual bottlenecks after linear layers: Houlsby et al., ICML 2019."""

    kind = "bottleneck"
    width: int = setting(8, "units of the bottleneck", low=1, high=LARGEST_WIDTH)
    targets: tuple[str, ...] = setting(("*",), "patterns of the linear layers to adapt")

    def add_parts(self, module: nn.Module, head: set[str]) -> None:
        for path, layer in find_targets(module, self.targets, head, nn.Linear).items():
            assert isinstance(layer, nn.Linear)
            module.set_submodule(path, BottleneckAdapter(layer, self.width))


@dataclass(frozen=True)
class BiasOnly(Adapter):
    """Train only biases: Ben Zaken et al., BitFit, ACL 2022."""

    kind = "bias"

    def add_parts(self, module: nn.Module, head: set[str]) -> None:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name.rpartition(".")[2] == "bias")


@dataclass(frozen=True)
class LastLayer(Adapter):
    """Train only the head: linear probing."""

    kind = "last_layer"


ADAPTERS: dict[str, type[Adapter]] = {a.kind: a for a in (LoRA, Bottleneck, BiasOnly, LastLayer)}


def build_adapter(table: Mapping[str, Any]) -> Adapter:
    """Build an adapter from ``model.adapter``, as in ``{kind = "lora", rank = 8}``."""
    settings = dict(table)
    kind = settings.pop("kind", None)
    if kind is None:
        raise ConfigError(f"adapter.kind: missing; choose {', '.join(ADAPTERS)}")
    cls = ADAPTERS[find_name(ADAPTERS, str(kind), "adapter.kind")]
    return construct(cls, settings, "adapter")


def list_head_parameters(module: nn.Module) -> list[str]:
    """List the parameters of a net's head, or of the last layer if the module is not a net."""
    if isinstance(module, Net):
        return [f"head.{name}" for name, _ in module.head.named_parameters()]
    owners = [name.rpartition(".")[0] for name, _ in module.named_parameters()]
    return [k for k, _ in module.named_parameters() if k.rpartition(".")[0] == owners[-1]]


def find_targets(
    module: nn.Module, targets: tuple[str, ...], head: set[str], *kinds: type[nn.Module]
) -> dict[str, nn.Module]:
    """Find the layers to adapt: those of these kinds, outside the head, whose names match the patterns."""
    layers = {
        path: layer
        for path, layer in module.named_modules()
        if type(layer) in kinds and path not in head and getattr(layer, "groups", 1) == 1
    }
    found = {path: layer for path, layer in layers.items() if matches_any(path, targets)}
    if not found:
        known = f"it has {', '.join(list(layers)[:12])}{' …' * (len(layers) > 12)}"
        raise ConfigError(
            f"model.adapter: no layer of the net matches targets {list(targets)};"
            f" {known if layers else 'it has no layer of a kind that can be adapted'}"
        )
    return found


def iterate_lora_layers(module: nn.Module) -> Iterator[tuple[str, LoRALinear | LoRAConv2d]]:
    """Iterate over the names and layers of a net's LoRA layers."""
    for name, layer in module.named_modules():
        if isinstance(layer, LORA_LAYERS):
            yield name, layer


def merge_adapters(module: AnyModule) -> AnyModule:
    """Merge the LoRA updates of a net into its weights, in place; the outputs stay the same."""
    for path, layer in list(iterate_lora_layers(module)):
        module.set_submodule(path, merge_layer(layer))
    return module


@torch.no_grad()
def merge_layer(layer: LoRALinear | LoRAConv2d) -> nn.Module:
    """Return a plain layer with the same outputs as a LoRA layer."""
    plain: Any = copy_module(layer)
    plain.weight.copy_(layer.compute_merged_weight())
    del plain.lora_A, plain.lora_B, plain.scale, plain.update
    plain.__class__ = type(layer).__base__
    return plain  # type: ignore[no-any-return]


def has_lora(module: nn.Module) -> bool:
    """Return True if the module has LoRA adapters of this package or of ``peft``."""
    return any(matches_any(name, (LORA_A, LORA_B)) for name, _ in module.named_parameters())
