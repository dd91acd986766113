"""Reads the pickles of CIFAR without running anything that is in them.

Nothing is imported for a pickle: the few names that the official files mention stand for the
harmless things below, and any other is refused before it is looked up.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError


class DtypeStub:
    """Stands for numpy.dtype: bytes are the only kind there is."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"an array of {name!r}, not of bytes")

    def __setstate__(self, state: object) -> None:
        pass  # the order of bytes, which single ones do not have


class ArrayStub:
    """Stands for numpy.ndarray while it is being read."""

    values: NDArray[np.uint8]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, _, fortran, content = state
        self.values = np.frombuffer(content, np.uint8).reshape(
            tuple(map(int, shape)), order="F" if fortran else "C"
        )


def make_array_stub(*_: object) -> ArrayStub:
    """Stands for numpy's function of that name."""
    return ArrayStub()


def encode_latin1(text: str, code: str = "latin1") -> bytes:
    """Stands for codecs.encode: how Python 3 writes bytes for Python 2."""
    return text.encode("latin1")


ALLOWED_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"): make_array_stub,  # numpy 1
    ("numpy._core.multiarray", "_reconstruct"): make_array_stub,  # numpy 2
    ("numpy", "ndarray"): ArrayStub,
    ("numpy", "dtype"): DtypeStub,
    ("_codecs", "encode"): encode_latin1,
}


class RestrictedUnpickler(pickle._Unpickler):
    """Admits arrays of bytes, and what pickle makes by itself: bytes, str, numbers, list, dict.

    It is the unpickler written in Python, as that in C gives a few bytes gigabytes of memory
    if they ask for a high place in its table.
    """

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED_GLOBALS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def unpickle_safely(blob: bytes, where: object) -> dict[str, Any]:
    """The dictionary in a pickle of Python 2 or 3; its keys as text, arrays as numpy's."""
    try:
        found = RestrictedUnpickler(io.BytesIO(blob), encoding="bytes").load()
        pairs = {k.decode() if isinstance(k, bytes) else str(k): v for k, v in found.items()}
        return {k: v.values if isinstance(v, ArrayStub) else v for k, v in pairs.items()}
    except Exception as error:  # a damaged pickle can end in almost any
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{where} is not one of the published files, refused: {said}") from None
