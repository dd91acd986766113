"""Pack examples that are dicts, tuples or sequences of different lengths into rows of 32-bit words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.errors import DataError
from ..core.records import MASK, WORD_BYTES, Field, Record

Form = Literal["sequence", "tuple", "dict"]
Values = NDArray[Any] | list[NDArray[Any]]  # a list: sequences of different lengths


def find_packing_form(x: Any, count: int) -> Form | None:
    """Return the form in which examples are packed; None for a plain array, which needs no packing."""
    if isinstance(x, Mapping):
        return "dict"
    if isinstance(x, tuple) and x and all(hasattr(v, "__len__") and len(v) == count for v in x):
        return "tuple"
    return "sequence" if has_different_lengths(x) else None


def has_different_lengths(values: Any) -> bool:
    """Return True for a list of sequences that cannot form one array."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return False
    if not isinstance(values, np.ndarray | list | tuple):
        return False
    shapes = {np.shape(v)[:1] for v in values if hasattr(v, "__len__") and not isinstance(v, str)}
    return len(shapes) > 1


def pack_examples(parts: Sequence[Any], counts: Sequence[int]) -> tuple[NDArray[np.int32], Record]:
    """Pack the examples of all parts, one part after another; ``counts`` has each part's number of labels."""
    forms = {find_packing_form(x, n) for x, n in zip(parts, counts, strict=True)}
    form: Form = next(f for f in ("dict", "tuple", "sequence") if f in forms)
    named = [name_arrays(x, form) for x in parts]
    names = list(named[0])
    for x, count in zip(named, counts, strict=True):
        if sorted(x) != sorted(names):
            raise DataError(f"x: some examples have {', '.join(names)}, others {', '.join(x)}")
        for name, values in x.items():
            check_count(name, values, count)
    fields, columns = list[Field](), list[NDArray[np.int32]]()
    lengths = dict[str, list[int]]()
    for name in names:
        values = join_values(name, [x[name] for x in named])
        if isinstance(values, list):
            lengths[name] = [len(v) for v in values]
        fields.append(describe_field(name, values))
        columns.append(pack_values(fields[-1], values))
    return np.concatenate(columns, 1), Record(form, name_masks(fields, lengths))


def name_arrays(x: Any, form: Form) -> dict[str, Any]:
    """Return the arrays of examples by name: the keys of a dict, or the positions in a tuple."""
    if form == "dict":
        if not isinstance(x, Mapping) or not x or not all(isinstance(k, str) for k in x):
            raise DataError("x: must be a dict of arrays by name in every part, or in none")
        return dict(x)
    if form == "tuple":
        if not isinstance(x, tuple):
            raise DataError("x: must be a tuple of arrays in every part, or in none")
        return {str(i): v for i, v in enumerate(x)}
    return {"x": x}


def check_count(name: str, values: Any, count: int) -> None:
    """Raise DataError if an array does not have one example per label."""
    if not hasattr(values, "__len__") or len(values) != count:
        found = len(values) if hasattr(values, "__len__") else "no"
        raise DataError(f"x: '{name}' has {found} examples, but there are {count} labels")


def join_values(name: str, parts: Sequence[Any]) -> Values:
    """Join one input of the training and test examples into one array or list of sequences."""
    if not any(has_different_lengths(p) for p in parts):
        arrays = [arrange_values(name, np.asarray(p)) for p in parts]
        if len({a.shape[1:] for a in arrays}) == 1:
            return np.concatenate(arrays)
        parts = arrays
    values = [convert_type(name, np.asarray(v)) for p in parts for v in p]
    first = values[0]
    for i, v in enumerate(values):
        if not v.ndim or (v.shape[1:], v.dtype) != (first.shape[1:], first.dtype):
            raise DataError(
                f"x: example {i} of '{name}' is {v.dtype} {v.shape}, example 0 is {first.dtype}"
                f" {first.shape}; only the length of a sequence may differ"
            )
        if not len(v):
            raise DataError(f"x: example {i} of '{name}' is an empty sequence; leave it out")
    return values


def convert_type(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Convert numbers to a type that packed examples can have: uint8, bool, int64 or float32."""
    if values.dtype in (np.uint8, np.bool_):
        return values
    if np.issubdtype(values.dtype, np.integer):
        return values.astype(np.int64)
    if not np.issubdtype(values.dtype, np.floating):
        raise DataError(f"x: '{name}' of type {values.dtype} cannot be used; convert it to numbers")
    if not np.isfinite(values).all():
        raise DataError(f"x: '{name}' holds NaN or infinity")
    return values.astype(np.float32)


def arrange_values(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Convert an array to a type that packed examples can have, and uint8 images to N×C×H×W."""
    values = convert_type(name, values)
    if 0 in values.shape[1:]:
        raise DataError(f"x: '{name}' is {'×'.join(map(str, values.shape))}: it has no values")
    return move_channels_first(values) if values.dtype == np.uint8 else values


def move_channels_first(images: NDArray[Any]) -> NDArray[Any]:
    """Return uint8 images N×H×W or N×H×W×C as N×C×H×W; other shapes are unchanged."""
    images = images[:, None] if images.ndim == 3 else images
    if images.ndim == 4 and images.shape[-1] in (1, 3, 4) and images.shape[1] not in (1, 3):
        return images.transpose(0, 3, 1, 2)
    return images


def describe_field(name: str, values: Values) -> Field:
    """Return the ``Field`` of one input of packed examples: its name, type and shape."""
    if isinstance(values, np.ndarray):
        return Field(name, str(values.dtype), values.shape[1:])
    longest = max(len(v) for v in values)
    return Field(name, str(values[0].dtype), (longest, *values[0].shape[1:]), is_sequence=True)


def pack_values(field: Field, values: Values) -> NDArray[np.int32]:
    """Pack one input of all examples into words; a sequence becomes its length and its padded values."""
    rows = np.zeros((len(values), field.words), np.int32)
    if isinstance(values, list):
        rows[:, 0] = [len(v) for v in values]
        padded = np.zeros((len(values), *field.shape), values[0].dtype)
        for row, value in zip(padded, values, strict=True):
            row[: len(value)] = value
        values = padded
    raw = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
    begin = WORD_BYTES * field.is_sequence
    rows.view(np.uint8)[:, begin : begin + raw.shape[1]] = raw
    return rows


def name_masks(fields: Sequence[Field], lengths: Mapping[str, list[int]]) -> tuple[Field, ...]:
    """Add to each sequence field the name of its mask; sequences with equal lengths share a mask.

    If the data include a mask, the fields are returned unchanged.
    """
    if any(f.name == MASK for f in fields):
        return tuple(fields)
    same = len({tuple(n) for n in lengths.values()}) == 1
    return tuple(
        replace(f, mask=(MASK if same else f"{f.name}_mask") if f.is_sequence else "")
        for f in fields
    )
