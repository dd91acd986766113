"""Low-rank parts of layers (FedDecomp, LoRA, FedDPA) and of updates (FedKD), and training split between two parts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from ...core.adapters import LoRA, LoRAConv2d, LoRALinear, has_lora, iterate_lora_layers
from ...core.algorithm import Algorithm, Client, Net, Reply, Server, setting
from ...core.errors import ConfigError
from ...core.net import copy_module
from ...core.tensors import Tensors, answer, match_memory_format, params, weights
from ...core.training import Training
from .distillation import on_one_thread


def split_steps(client: Client, share: int, of: int) -> tuple[int, int]:
    """Split the mini-batches of a round: a fraction ``share / of`` trains the first part, the rest the second.

    Each part gets at least one; a single mini-batch goes to the second part.
    """
    total = client.steps
    first = total * share // of
    if total > 1:
        first = min(max(first, 1), total - 1)
    return first, total - first


FACTOR_PATTERNS = ("*.parametrizations.weight.0.*",)  # names of A and B


class LowRankParametrization(nn.Module):
    """FedDecomp's parametrisation of a weight W as W + s B A; caches the product while A and B do not change."""

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
        """Compute the low-rank part s B A of a weight, or return it from the cache if A and B are unchanged."""
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
    """Add a low-rank part to the layer's weight; it is zero initially."""
    register_parametrization(layer, "weight", LowRankParametrization(layer.weight, unit, scale))


def compute_full_rank_distance(a: Tensors, b: Tensors) -> float:
    """Compute the distance of a net's full-rank part from the state ``b``."""
    return float((a.without(*FACTOR_PATTERNS) - b).square().sqrt())


def forward_full_rank(net: nn.Module, x: Tensor) -> Tensor:
    """Return a net's logits without its low-rank part; the net itself is not changed."""
    alone = params(net).map(Tensor.detach)
    return answer(net, alone | alone.only(*FACTOR_PATTERNS).zeros(), x)


def get_first_factors(client: Client) -> Tensors:
    """Return the low-rank factors that a client had before its first round, in which they are stored."""
    return client.memory.setdefault("first", weights(client.net).only(*FACTOR_PATTERNS))


def measure_changes(after: Server, replies: Sequence[Reply]) -> dict[str, float]:
    """Measure how far FedDecomp's full-rank part moved, and how far its low-rank parts moved on average."""
    moved = compute_full_rank_distance(after.learned, after.memory["first"])
    kinds = [k for k in replies[0].metrics if k.startswith("delta_tau")]
    means = {k: sum(r.metrics[k] for r in replies) / len(replies) for k in kinds}
    return {"delta_sigma": moved, **means}


@torch.no_grad()
def measure_low_rank_change(net: nn.Module, first: Tensors) -> dict[str, float]:
    """Measure how far a client's low-rank part moved: s B A, B A, and A and B themselves."""
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
    """Split local training between the part trained first and the other; steps are split in proportion."""
    how = client.training
    if own_epochs is None:
        first, rest = split_steps(client, 2, of=5)  # as in the authors' code
        return replace(how, steps=first), replace(how, steps=rest)
    if how.steps is None:
        return replace(how, epochs=own_epochs), replace(how, epochs=how.epochs - own_epochs)
    steps = how.steps * min(own_epochs, how.epochs) // max(1, how.epochs)
    return replace(how, steps=steps), replace(how, steps=how.steps - steps)


def check_own_epochs(own_epochs: int | None, training: Training) -> None:
    """Raise ConfigError if FedDecomp's part trained first has more epochs than local training."""
    if own_epochs is not None and training.steps is None and own_epochs > training.epochs:
        raise ConfigError(
            f"algorithm.own_epochs: {own_epochs} is more than training.epochs = {training.epochs}; lower it,"
            " or remove it for 2/5 of local training"
        )


@dataclass(frozen=True)
class LoRAAlgorithm(Algorithm):
    """Train FedAvg on low-rank adapters and the head; the rest of the net is frozen.

    A model that already has adapters (``model.adapter``, ``hp.LoRA`` or ``peft``) is used
    unchanged.
    """

    rank: int = setting(8, "rank of the adapters that are added to a model without adapters", low=1)
    alpha: float = setting(8.0, "updates are scaled by alpha / rank", above=0)

    def build(self, net: Net) -> Net:
        return net if has_lora(net) else LoRA(rank=self.rank, alpha=self.alpha).apply(net)


class DualAdapter(nn.Module):
    """FedDPA's layer with a common and a personal LoRA update, mixed example by example.

    ``mix`` is the share of the personal update, per example or for all; None leaves it out.
    """

    mix: Tensor | None = None

    def __init__(self, layer: LoRALinear | LoRAConv2d) -> None:
        super().__init__()
        self.common, self.own = layer, copy_module(layer)
        for name in ("weight", "bias"):  # what both updates have in common
            self.own._parameters[name] = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mix is None:
            common: Tensor = self.common(x)
            return common
        plain = self.common.forward_plain(x)
        mix = self.mix.to(plain).reshape(-1, *[1] * (plain.dim() - 1))
        return plain + (1 - mix) * self.common.forward_update(x) + mix * self.own.forward_update(x)


def list_lora_layers(net: Net, what: str) -> dict[str, LoRALinear | LoRAConv2d]:
    """Return the layers that ``LoRA`` adapted, by name; ``what`` begins the error if there are none."""
    layers = dict(iterate_lora_layers(net))
    if not layers:
        raise ConfigError(
            f"algorithm: {what} LoRA layers of this package, but the model has adapters of another"
            " package; pass the plain model, with model.adapter or hp.LoRA"
        )
    return layers


def draw_adapter(layer: LoRALinear | LoRAConv2d, rank: int) -> None:
    """Replace a layer's LoRA adapter by a new one of this rank: A is drawn, B is 0."""
    a, b = layer.lora_A, layer.lora_B
    drawn = nn.init.kaiming_uniform_(torch.empty(rank, *a.shape[1:]), a=5**0.5)
    layer.lora_A = nn.Parameter(drawn.to(a))
    layer.lora_B = nn.Parameter(b.new_zeros(len(b), rank, *b.shape[2:]))


def add_personal_adapters(net: Net) -> Net:
    """Add a second, personal adapter to every layer that has a low-rank adapter."""
    layers = list_lora_layers(net, "feddpa adds a second adapter to")
    for path, layer in layers.items():
        net.set_submodule(path, DualAdapter(layer))
    return net


@contextmanager
def mixing_adapters(net: nn.Module, mix: Tensor | None) -> Iterator[None]:
    """Set the share of FedDPA's personal adapters inside the ``with`` block."""
    layers = [m for m in net.modules() if isinstance(m, DualAdapter)]
    for layer in layers:
        layer.mix = mix
    try:
        yield
    finally:
        for layer in layers:
            layer.mix = None


# Updates by their largest singular values --------------------------------------------------------

LOW_RANK = "low_rank/"  # prefix of matrices sent in compressed form


def compress_moves(after: Tensors, before: Tensors, energy: float) -> Tensors:
    """Compress an update: send only the largest singular components of each matrix's change."""
    flat = {k: (v - before[k]).flatten(1) for k, v in after.items() if v.dim() > 1}
    sent = {LOW_RANK + k: compress_matrix(moved, energy) for k, moved in flat.items()}
    return after.without(*flat) | sent


def compress_matrix(matrix: Tensor, energy: float) -> Tensor:
    """Compress a matrix by SVD: one row per singular value, with value times left vector, then right vector.

    The largest singular values are kept, until their squares exceed the share ``energy`` of the sum of
    squares. If that is no smaller than the matrix, the rows are the matrix itself, padded with zeros.
    """
    length, size = sum(matrix.shape), matrix.numel()
    if bool(matrix.isfinite().all()):
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        squares = values.double().square().cumsum(0)
        rank = int((squares <= energy * squares[-1]).sum()) + 1 if bool(values.any()) else 0
        if min(rank, len(values)) * length < size:
            return torch.cat([(left[:, :rank] * values[:rank]).T, right[:rank]], 1)
    rows = -(-size // length)
    return nn.functional.pad(matrix.reshape(-1), (0, rows * length - size)).view(rows, length)


def restore_moves(sent: Tensors, before: Tensors) -> Tensors:
    """Decompress the tensors of a reply: rebuild each matrix whose change was compressed."""
    out = dict(sent.without(f"{LOW_RANK}*"))
    with on_one_thread():
        for name, rows in sent.below(LOW_RANK).items():
            old = before[name]
            out[name] = old + restore_matrix(rows, old.flatten(1).shape).view(old.shape)
    return Tensors(out)


def restore_matrix(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """Rebuild a matrix from the rows that ``compress_matrix`` returns."""
    height, width = shape
    if len(rows) * (height + width) < height * width:
        return rows[:, :height].T @ rows[:, height:]
    return rows.reshape(-1)[: height * width].view(height, width)
