"""Named tensors with vector arithmetic: the form of every model, message and memory.

The functions at the end convert between a module and its tensors: ``weights`` and ``state`` copy
its tensors, ``params`` returns the live parameters, ``frozen`` copies the module, and
``load_into_net`` writes tensors back.

Parameters that are frozen when a run starts are *given*: all clients have them, but none trains or sends
them. ``weights``, ``params`` and ``state`` leave them out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .net import (
    Memo,
    Module,
    copy_part,
    find_aliases,
    iterate_named_parameters,
    iterate_tensors,
    list_state,
    load_tensors,
)

Kind = Literal["shared", "personal", "given"]  # sent in a round; kept on the client; never trained
GIVEN_MARK = "_heterophony_given"  # an attribute of parameters; ``deepcopy`` does not copy it


class Tensors(dict[str, Tensor]):
    """A dict from names to tensors with vector arithmetic: ``w - lr * g``, ``a.dot(b)``.

    Names are always sorted, whatever the order of insertion. Sums over names are therefore
    computed in one order, and equal content gives equal bits on every engine. The second operand
    must have every name of the first.
    """

    def __init__(self, items: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = ()) -> None:
        super().__init__(sorted(dict(items).items()))

    def map(self, f: Callable[..., Tensor], *others: Tensors) -> Tensors:
        """Apply ``f`` to every tensor, together with the tensors of the same name in ``others``."""
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
        """Return the inner product with other tensors, as vectors; its bits do not depend on the memory format."""
        return sum_scalars((v.contiguous() * other[k].contiguous()).sum() for k, v in self.items())

    def square(self) -> Tensor:
        """Return the squared norm of all tensors, taken as one vector."""
        return self.dot(self)

    def sum(self) -> Tensor:
        """Return the sum of the entries of all tensors."""
        return sum_scalars(v.contiguous().sum() for v in self.values())

    def zeros(self) -> Tensors:
        """Return tensors of zeros with the same names, shapes and types."""
        return self.map(torch.zeros_like)

    def only(self, *patterns: str) -> Tensors:
        """Select the tensors whose name matches one of the patterns (``head.*``)."""
        return Tensors({k: v for k, v in self.items() if matches_any(k, patterns)})

    def without(self, *patterns: str) -> Tensors:
        """Select the tensors whose name matches none of the patterns."""
        return Tensors({k: v for k, v in self.items() if not matches_any(k, patterns)})

    def under(self, prefix: str) -> Tensors:
        """Prefix the name of every tensor: ``under("own.")`` turns ``w`` into ``own.w``."""
        return Tensors({prefix + k: v for k, v in self.items()})

    def below(self, prefix: str) -> Tensors:
        """Select the tensors whose name starts with the prefix, and remove the prefix."""
        return Tensors({k[len(prefix) :]: v for k, v in self.items() if k.startswith(prefix)})

    @property
    def nbytes(self) -> int:
        """The number of bytes of all tensors, not counting names."""
        return sum(v.nbytes for v in self.values())

    def digest(self) -> str:
        """Return the sha256 of all tensors: their names, types, shapes and values."""
        h = hashlib.sha256()
        for name, v in self.items():
            h.update(f"{name!r}|{v.dtype}|{tuple(v.shape)}|".encode())
            h.update(tensor_to_bytes(v))
        return h.hexdigest()


Memory = Mapping[str, Tensors]  # named sets of tensors: what a client or a server remembers


def tensor_to_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor's values in row-major order, whatever its memory format."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def sum_scalars(terms: Iterable[Tensor]) -> Tensor:
    """Add up scalar tensors in the order given; without any, return 0."""
    out: Tensor | None = None
    for term in terms:
        out = term if out is None else out + term
    return torch.zeros(()) if out is None else out


def mix(items: Sequence[Tensors], shares: Sequence[float]) -> Tensors:
    """Return the weighted sum of ``items``, accumulated in float64 in the order given.

    Integer tensors, such as BatchNorm's counters, are taken from the first item instead of being
    summed. All items must have the same names and shapes, so that no tensor is silently left out
    or broadcast.
    """
    pairs = list(zip(items, shares, strict=True))
    shapes = [{k: v.shape for k, v in item.items()} for item in items]
    if any(other != shapes[0] for other in shapes[1:]):
        names = {k for s in shapes for k in s if any(s[k] != other.get(k) for other in shapes)}
        raise ValueError(f"cannot add tensors of different names or shapes: {sorted(names)}")

    def mix_tensor(name: str, first: Tensor) -> Tensor:
        if not first.is_floating_point():
            return first.clone()
        # start from -0.0: -0.0 + x is x for every x, whereas 0.0 + -0.0 is 0.0
        out = first.new_full(first.shape, -0.0, dtype=torch.float64)
        for item, share in pairs:
            out.add_(item[name], alpha=share)  # in float64
        return out.to(first.dtype)

    return Tensors({k: mix_tensor(k, v) for k, v in items[0].items()}) if items else Tensors()


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return True if a tensor's name matches one of the patterns (``head.*``)."""
    return any(fnmatchcase(name, p) for p in patterns)


def mark_given(net: nn.Module) -> None:
    """Mark the parameters that are frozen now as given, before training freezes and unfreezes others."""
    for _, p in iterate_named_parameters(net):
        if not p.requires_grad:
            setattr(p, GIVEN_MARK, True)


def is_given(tensor: Tensor) -> bool:
    """Return True if this is a parameter that was frozen when the run started."""
    return getattr(tensor, GIVEN_MARK, False)


def copy_net(net: Module) -> Module:
    """Return a copy of the net that shares the memory of the given parameters, which never change."""
    memo: Memo = {id(p): share_memory(p) for _, p in iterate_named_parameters(net) if is_given(p)}
    copied: Any = copy_part(net, memo)
    return copied  # type: ignore[no-any-return]


def share_memory(parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter that shares a given one's memory but can move to a GPU separately."""
    shared = nn.Parameter(parameter.detach(), requires_grad=False)
    setattr(shared, GIVEN_MARK, True)
    return shared


def state(net: nn.Module) -> Tensors:
    """Return a detached copy of the net's parameters and buffers: tied ones once, given ones not at all."""
    left_out = find_aliases(net).keys() | {k for k, v in iterate_tensors(net) if is_given(v)}
    tensors = list_state(net)
    return Tensors({k: v.detach().clone() for k, v in tensors.items() if k not in left_out})


def weights(module: nn.Module) -> Tensors:
    """Return a detached copy of the module's parameters, without buffers and given parameters."""
    return params(module).map(lambda p: p.detach().clone())


def params(module: nn.Module) -> Tensors:
    """Return the module's live parameters, so that a loss on them has gradients."""
    return Tensors((k, p) for k, p in iterate_named_parameters(module) if not is_given(p))


def frozen(module: nn.Module) -> nn.Module:
    """Return a copy of the module that does not train: a teacher or a reference."""
    return copy_net(module).requires_grad_(False)


def match_memory_format(values: Tensor, like: Tensor) -> Tensor:
    """Copy a tensor into the memory format of ``like``, on which rounding in convolutions depends."""
    return values.new_empty_strided(like.shape, like.stride()).copy_(values)


def load_into_net(net: nn.Module, tensors: Tensors) -> None:
    """Copy the tensors into the net's parameters and buffers of the same names."""
    unknown = load_tensors(net, tensors)
    if unknown:
        raise KeyError(
            f"the net has no tensor named {unknown[0]!r}; extras have a '/' in their name"
        )


def answer(net: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Run the net on ``x`` with ``tensors`` in place of its own parameters; the net does not change."""
    out: Tensor = functional_call(net, dict(tensors), (x,))
    return out


def list_moves(up: Tensors, received: Tensors) -> list[str]:
    """List the tensors of a reply that are changes (moves) of tensors that the client received."""
    return [k for k, v in up.items() if k in received and is_movable(v, received[k])]


def is_movable(after: Tensor, before: Tensor) -> bool:
    """Return True if a sent tensor is a change of a received one: same shape, no integer type."""
    return after.is_floating_point() and after.shape == before.shape


def compute_moves(up: Tensors, received: Tensors) -> Tensors:
    """Compute how far a reply moves each received tensor: the difference, in float64."""
    return Tensors({k: up[k].double() - received[k].double() for k in list_moves(up, received)})


def apply_moves(up: Tensors, received: Tensors, moves: Tensors) -> Tensors:
    """Replace the moves in a reply's tensors with these; leave its other tensors unchanged."""
    return up | {k: (received[k].double() + v).to(up[k].dtype) for k, v in moves.items()}


def compute_norm(moves: Tensors) -> float:
    """Return the Euclidean norm of a reply's moves, taken as one vector."""
    return float(sum(float(v.square().sum()) for v in moves.values()) ** 0.5)
