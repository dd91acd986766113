"""Examples with several arrays, or sequences of different lengths, packed as rows of one tensor.

A pool of examples is always one tensor: a row of 32-bit words holds the bytes of all arrays of an
example. A hook in front of the net unpacks a mini-batch, pads its sequences to the longest one, and
calls the net with the inputs that its author wrote it for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .samples import BYTES_TO_PLUS_MINUS_ONE

WORD_BYTES = 4
MASK = "attention_mask"
DTYPES = {"uint8": torch.uint8, "bool": torch.bool, "int64": torch.int64, "float32": torch.float32}
Inputs = tuple[Tensor, ...] | dict[str, Tensor]


@dataclass(frozen=True)
class Field:
    """One array of an example."""

    name: str  # key of a dict, or position in a tuple
    dtype: str  # as stored
    shape: tuple[int, ...]  # shape; for sequences, of the longest one
    is_sequence: bool = False  # whether lengths differ
    mask: str = ""  # name of the mask, an input that marks values other than padding; empty if there is none

    @property
    def words(self) -> int:
        """The number of words in a row; the first word of a sequence is its length."""
        size = prod(self.shape) * DTYPES[self.dtype].itemsize
        return -(-size // WORD_BYTES) + self.is_sequence

    def describe(self) -> str:
        """Describe the array's name and shape in a message."""
        sides = "×".join(map(str, self.shape)) or "one number"
        return f"{self.name} {'up to ' * self.is_sequence}{sides}"

    def convert(self, values: Tensor) -> Tensor:
        """Convert stored values to network input: uint8 to [-1, 1]; other values are unchanged."""
        if values.dtype != torch.uint8:
            return values
        values = BYTES_TO_PLUS_MINUS_ONE(values)
        is_image = values.dim() == 4
        return values.contiguous(memory_format=torch.channels_last) if is_image else values


@dataclass(frozen=True)
class Record:
    """The arrays that an example consists of, and how they are passed to the net.

    The arrays of a dict are passed by name, others in order; masks come after them.
    """

    form: Literal["sequence", "tuple", "dict"]
    fields: tuple[Field, ...]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """Rebuild a record from its JSON form, the result of ``to_dict``."""
        fields = (Field(**{**f, "shape": tuple(f["shape"])}) for f in values["fields"])
        return cls(values["form"], tuple(fields))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a dict that JSON can hold."""
        return asdict(self)

    def describe(self) -> str:
        """Describe one example in a message."""
        return ", ".join(f.describe() for f in self.fields)

    def unpack(self, rows: Tensor, as_stored: bool = False) -> Inputs:
        """Unpack rows into network input, or into values as stored; sequences are padded with 0."""
        inputs, masks = dict[str, Tensor](), dict[str, Tensor]()
        for field, words in zip(
            self.fields, rows.split([f.words for f in self.fields], 1), strict=True
        ):
            lengths = words[:, 0].clamp(1, field.shape[0]) if field.is_sequence else None
            # new memory: an 8-byte type must not start at an odd word
            flat = words[:, int(field.is_sequence) :].clone(memory_format=torch.contiguous_format)
            values = flat.view(DTYPES[field.dtype])[:, : prod(field.shape)]
            values = values.reshape(len(rows), *field.shape)
            if lengths is not None:
                values = values[:, : int(lengths.max())]
                if field.mask:
                    masks[field.mask] = make_padding_mask(lengths, values.shape[1])
            inputs[field.name] = values if as_stored else field.convert(values)
        return self.arrange(inputs, masks)

    def arrange(self, inputs: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Inputs:
        """Arrange inputs and masks as the dict or tuple that the net's forward expects."""
        if self.form == "dict":
            return {**inputs, **masks}
        return (*inputs.values(), *masks.values())


def make_padding_mask(lengths: Tensor, longest: int) -> Tensor:
    """Make the mask of padded sequences (batch × longest length): True for values, False for padding."""
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def pad_sequences(sequences: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Stack sequences of different lengths, padded with 0; also return the mask of their values."""
    lengths = torch.tensor([len(s) for s in sequences])
    stacked = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    return stacked, make_padding_mask(lengths, stacked.shape[1])


@dataclass(frozen=True)
class Unpack:
    """A forward hook that unpacks rows, and passes tuples and dicts as separate arguments."""

    record: Record

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = args[0]
        inputs = self.record.unpack(x) if isinstance(x, Tensor) else x
        return ((), inputs) if isinstance(inputs, dict) else (inputs, {})


def unpack_inputs(module: nn.Module, record: Record | None) -> None:
    """Make a net accept the packed rows of this record; without a record, change nothing."""
    if record is not None:
        module.register_forward_pre_hook(Unpack(record), with_kwargs=True)


def find_record(module: nn.Module) -> Record | None:
    """Return the record whose packed rows a net accepts; None if it takes plain tensors."""
    hooks = (h for part in module.modules() for h in part._forward_pre_hooks.values())
    return next((h.record for h in hooks if isinstance(h, Unpack)), None)
