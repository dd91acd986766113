"""Named tensors that add and scale like vectors: the only thing that travels or is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn


class Tensors(dict[str, Tensor]):
    """A dict of tensors with the arithmetic of the papers: ``w - lr * g``, ``a.dot(b)``.

    Names are always in sorted order, however they came: sums over names then have one order,
    and equal content has equal bits on every engine.
    """

    def __init__(self, items: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = ()) -> None:
        super().__init__(sorted(dict(items).items()))

    def map(self, f: Callable[..., Tensor], *others: Tensors) -> Tensors:
        """``f`` on every tensor, together with those of the same name in ``others``."""
        return Tensors({k: f(v, *(o[k] for o in others)) for k, v in self.items()})

    def __add__(self, other: Tensors) -> Tensors:
        return self.map(torch.add, other)

    def __sub__(self, other: Tensors) -> Tensors:
        return self.map(torch.sub, other)

    def __mul__(self, factor: float) -> Tensors:
        return self.map(lambda v: v * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Tensors:
        return self.map(lambda v: v / divisor)

    def __or__(self, other: Mapping[str, Tensor]) -> Tensors:  # type: ignore[override]  # stays Tensors
        return Tensors({**self, **other})

    def dot(self, other: Tensors) -> Tensor:
        """The inner product over all names, summed row by row whatever the memory format."""
        return sum_scalars((v.contiguous() * other[k].contiguous()).sum() for k, v in self.items())

    def square(self) -> Tensor:
        """The squared norm."""
        return self.dot(self)

    def sum(self) -> Tensor:
        """The sum of all entries."""
        return sum_scalars(v.contiguous().sum() for v in self.values())

    def zeros(self) -> Tensors:
        """The same names and shapes, all zero."""
        return self.map(torch.zeros_like)

    def only(self, *patterns: str) -> Tensors:
        """Those whose name matches one of the patterns."""
        return Tensors({k: v for k, v in self.items() if matches_any(k, patterns)})

    def without(self, *patterns: str) -> Tensors:
        """Those whose name matches none of the patterns."""
        return Tensors({k: v for k, v in self.items() if not matches_any(k, patterns)})

    def under(self, prefix: str) -> Tensors:
        """The same tensors, every name with the prefix before it."""
        return Tensors({prefix + k: v for k, v in self.items()})

    def below(self, prefix: str) -> Tensors:
        """Those below the prefix, named without it."""
        return Tensors({k[len(prefix) :]: v for k, v in self.items() if k.startswith(prefix)})

    @property
    def nbytes(self) -> int:
        """The bytes of the values alone, without names."""
        return sum(v.numel() * v.element_size() for v in self.values())

    def digest(self) -> str:
        """A sha256 of names, types, shapes and values: equal if and only if all are."""
        h = hashlib.sha256()
        for name, v in self.items():
            h.update(f"{name!r}|{v.dtype}|{tuple(v.shape)}|".encode())
            h.update(tensor_to_bytes(v))
        return h.hexdigest()


def tensor_to_bytes(tensor: Tensor) -> bytes:
    """The values in row-major order, whatever the memory format."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def sum_scalars(terms: Iterable[Tensor]) -> Tensor:
    """The sum of scalars in the order given; 0 where there are none."""
    out: Tensor | None = None
    for term in terms:
        out = term if out is None else out + term
    return torch.zeros(()) if out is None else out


def mix(items: Sequence[Tensors], shares: Sequence[float]) -> Tensors:
    """The weighted sum, accumulated in float64 and in the order given.

    Integer tensors (BatchNorm's counters) have no mean: the first one's are kept. All must have
    the same names and shapes: nothing is left out of a sum, or spread over it, in silence.
    """
    pairs = list(zip(items, shares, strict=True))
    shapes = [{k: v.shape for k, v in item.items()} for item in items]
    if any(other != shapes[0] for other in shapes[1:]):
        names = {k for s in shapes for k in s if any(s[k] != other.get(k) for other in shapes)}
        raise ValueError(f"cannot add tensors of different names or shapes: {sorted(names)}")

    def mix_tensor(name: str, first: Tensor) -> Tensor:
        if not first.is_floating_point():
            return first.clone()
        out = torch.full(first.shape, -0.0, dtype=torch.float64)  # -0 + x is x, also for -0
        for item, share in pairs:
            out.add_(item[name].double(), alpha=share)
        return out.to(first.dtype)

    return Tensors({k: mix_tensor(k, v) for k, v in items[0].items()}) if items else Tensors()


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Does the name match one of the patterns (``head.*``)?"""
    return any(fnmatchcase(name, p) for p in patterns)


def weights(module: nn.Module) -> Tensors:
    """The module's parameters as they are now, detached."""
    return Tensors({k: v.detach().clone() for k, v in module.named_parameters()})


def params(module: nn.Module) -> Tensors:
    """The module's live parameters, for the terms of a loss."""
    return Tensors(module.named_parameters())


def frozen(module: nn.Module) -> nn.Module:
    """A still copy of the module: a teacher, an anchor."""
    return deepcopy(module).requires_grad_(False)


def match_memory_format(values: Tensor, like: Tensor) -> Tensor:
    """The values in the other's memory format: with another, convolutions round differently."""
    return torch.empty_strided(like.shape, like.stride(), dtype=values.dtype).copy_(values)
