"""Compressed replies: quantisation and top-k, with error feedback."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.errors import CodecError, ConfigError, DivergedError
from ..core.settings import setting
from ..core.tensors import Tensors, apply_moves, is_movable, list_moves, matches_any
from .base import PREFIX, Departed, Departure, Protection

UNIT = 2.0**-40  # finer than float32 for all values above 2^-17
LIMIT = 2.0**22  # limit for values, so that their units, and sums of two, fit into 63 bits


def to_units(values: Tensor, what: str) -> Tensor:
    """Round a change to whole units of 2^-40, as int64; raise DivergedError if it is too large or NaN."""
    if not bool((values.abs() < LIMIT).all()):  # also false for NaN
        raise DivergedError(
            f"{what}: a value is at least {LIMIT:g} or not finite; lower training.lr"
        )
    return torch.round(values.double() / UNIT).to(torch.int64)


def round_to_float32(units: Tensor) -> Tensor:
    """Convert units to the nearest float32 values, each of which is a whole number of units."""
    return (units.double() * UNIT).float()


def from_float32(values: Tensor) -> Tensor:
    """Convert received float32 values to units; raise CodecError if one is too large or not finite."""
    if not bool((values.abs() < 2 * LIMIT).all()):
        raise CodecError("a compressed tensor holds a value that is too large or not finite")
    return torch.round(values.double() / UNIT).to(torch.int64)


def keep_significant_bits(units: int, bits: int = 24) -> int:
    """Round an integer up to as many significant bits as a float32 can hold."""
    spare = max(0, units.bit_length() - bits)
    return -(-units >> spare) << spare


@dataclass(frozen=True, repr=False)
class Compression(Protection):
    """Compress every change before it is sent, and keep the remainder on the client (error feedback).

    All values are whole numbers of units, so that the sent and the remembered part add up to exactly the
    change. A subclass defines how one tensor is compressed and restored.
    """

    encodes: ClassVar[bool] = True
    once_per_round: ClassVar[bool] = True  # otherwise, a remainder would be sent twice

    def leave(self, up: Tensors, kept: Tensors, departure: Departure) -> Departed:
        names = [k for k in list_moves(up, departure.received) if self.compresses(k, up[k])]
        sent = dict(up)
        rest = {}
        for name in names:
            moved = up[name].double() - departure.received[name].double()
            units = to_units(moved.contiguous().reshape(-1), f"client {departure.client}, '{name}'")
            if name in kept:
                units = units + kept[name].reshape(-1)
            parts = self.compress(name, units)
            rest[name] = units - self.count_units(parts, units.numel())
            del sent[name]
            sent |= {make_part_name(part, name): v for part, v in parts.items()}
        return Departed(Tensors(sent), Tensors(rest))

    def arrive(self, sent: Tensors, received: Tensors) -> Tensors:
        up = dict(sent)
        moves = {}
        for name, before in received.items():
            keys = {part: make_part_name(part, name) for part in self.list_parts()}
            parts = {part: up.pop(key) for part, key in keys.items() if key in up}
            if not parts:
                continue
            if name in up or not self.compresses(name, before):
                raise CodecError(f"tensor {name!r} is not expected in this form")
            units = self.count_units(parts, prod(before.shape))
            moves[name] = (units.double() * UNIT).reshape(before.shape)
            up[name] = before
        strange = [k for k in up if k.startswith(PREFIX)]
        if strange:
            raise CodecError(f"tensor {strange[0]!r} is not expected")
        return apply_moves(Tensors(up), received, Tensors(moves))

    def compresses(self, name: str, tensor: Tensor) -> bool:
        """Return True if this tensor is compressed; other tensors are sent unchanged."""
        return is_movable(tensor, tensor)

    def list_parts(self) -> tuple[str, ...]:
        """Return the names of a compressed tensor's parts."""
        raise NotImplementedError

    def compress(self, name: str, units: Tensor) -> dict[str, Tensor]:
        """Compress the change of one tensor, given in units; return the parts to send."""
        raise NotImplementedError

    def count_units(self, parts: dict[str, Tensor], numel: int) -> Tensor:
        """Decompress the parts of one tensor to units; raise CodecError if they are not valid."""
        raise NotImplementedError


def make_part_name(part: str, name: str) -> str:
    """Return the name of a part of a compressed tensor in a reply."""
    return f"{PREFIX}{part}/{name}"


def get_part(parts: dict[str, Tensor], part: str, dtype: torch.dtype, numel: int) -> Tensor:
    """Return a part of a compressed tensor; raise CodecError unless it has this type and length."""
    found = parts.get(part)
    if found is None or found.dtype != dtype or tuple(found.shape) != (numel,):
        raise CodecError(f"a compressed tensor must have {numel} {part} of {dtype}")
    return found


def get_float_units(parts: dict[str, Tensor], part: str, numel: int) -> Tensor:
    """Return the units of a compressed tensor's part that holds float32 values."""
    return from_float32(get_part(parts, part, torch.float32, numel))


STEPS = 127  # quantisation steps of 8 bits in each direction


@dataclass(frozen=True, repr=False)
class Quantize(Compression):
    """Send every change as 8-bit or 1-bit values with one scale per tensor; remember the rounding error."""

    bits: Literal[1, 8, 32] = setting(8, "bits per value; 32 changes nothing")

    @property
    def is_identity(self) -> bool:
        return self.bits == 32

    def compresses(self, name: str, tensor: Tensor) -> bool:
        return super().compresses(name, tensor) and tensor.numel() > 0

    def list_parts(self) -> tuple[str, ...]:
        return ("levels", "scale") if self.bits == 8 else ("signs", "scale")

    def compress(self, name: str, units: Tensor) -> dict[str, Tensor]:
        if self.bits == 8:
            step = keep_significant_bits(max(1, -(-int(units.abs().max()) // STEPS)))
            levels = torch.round(units.double() / step).clamp(-STEPS, STEPS).to(torch.int8)
            return {"levels": levels, "scale": make_scale(step)}
        mean = int(units.abs().double().mean())
        return {"signs": pack_signs(units >= 0), "scale": make_scale(keep_significant_bits(mean))}

    def count_units(self, parts: dict[str, Tensor], numel: int) -> Tensor:
        scale = get_float_units(parts, "scale", 1)
        if self.bits == 8:
            return get_part(parts, "levels", torch.int8, numel).long() * scale
        signs = unpack_signs(get_part(parts, "signs", torch.uint8, -(-numel // 8)), numel)
        return torch.where(signs, scale, -scale)


def make_scale(units: int) -> Tensor:
    """Return the scale of a quantised tensor, a number of units, as the float32 tensor to send."""
    return round_to_float32(torch.tensor([units]))


def pack_signs(positive: Tensor) -> Tensor:
    """Pack the signs of a quantised tensor into bytes, eight in each."""
    return torch.from_numpy(np.packbits(positive.numpy()))


def unpack_signs(packed: Tensor, numel: int) -> Tensor:
    """Unpack the signs that ``pack_signs`` packed."""
    return torch.from_numpy(np.unpackbits(packed.numpy(), count=numel)).bool()


@dataclass(frozen=True, repr=False)
class TopK(Compression):
    """Send only the largest changes of every tensor; remember the others and send them later."""

    ratio: float = setting(0.1, "fraction of each tensor's values that is sent", above=0, high=1)
    ratios: dict[str, Any] = field(
        default_factory=dict,
        metadata={
            "doc": "fractions for tensors whose names match a pattern, as in { 'head.*' = 1.0 }"
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for pattern, ratio in self.ratios.items():
            if type(ratio) not in (int, float) or not 0 < ratio <= 1:
                raise ConfigError(
                    f"ratios: the ratio of '{pattern}' must be above 0 and at most 1, not {ratio!r}"
                )

    @property
    def is_identity(self) -> bool:
        return all(r == 1 for r in (self.ratio, *self.ratios.values()))

    def get_ratio(self, name: str) -> float:
        """Return the fraction of a tensor that is sent, from the first pattern that matches its name."""
        found = [r for pattern, r in self.ratios.items() if matches_any(name, [pattern])]
        return float(found[0]) if found else self.ratio

    def compresses(self, name: str, tensor: Tensor) -> bool:
        return super().compresses(name, tensor) and self.get_ratio(name) < 1 and tensor.numel() > 0

    def list_parts(self) -> tuple[str, ...]:
        return ("values", "positions")

    def compress(self, name: str, units: Tensor) -> dict[str, Tensor]:
        k = ceil(self.get_ratio(name) * units.numel() - 1e-9)
        # the largest first and, among equal values, the first, so that every machine sends the same
        order = torch.argsort(units.abs(), descending=True, stable=True)
        positions = order[: max(1, k)].sort().values
        values = round_to_float32(units[positions])
        return {"values": values, "positions": positions.to(torch.int32)}

    def count_units(self, parts: dict[str, Tensor], numel: int) -> Tensor:
        k = parts.get("positions", torch.empty(0)).numel()
        positions = get_part(parts, "positions", torch.int32, k).long()
        rising = bool((positions[1:] > positions[:-1]).all())
        if not k or not rising or int(positions[0]) < 0 or int(positions[-1]) >= numel:
            raise CodecError("the positions of a sparse tensor must increase and be below its size")
        out = torch.zeros(numel, dtype=torch.int64)
        out[positions] = get_float_units(parts, "values", k)
        return out
