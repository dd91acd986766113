"""Read the pickles of CIFAR without running any code in them.

Nothing is imported for a pickle. The few names in the official files are replaced by the harmless
classes and functions below; any other name is refused before it is looked up.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError


class DtypeStub:
    """Replaces numpy.dtype; bytes are the only type allowed."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"an array of {name!r}, not of bytes")

    def __setstate__(self, state: object) -> None:
        pass  # the byte order, which single bytes do not have


class ArrayStub:
    """Replaces numpy.ndarray while it is being read."""

    values: NDArray[np.uint8]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, _, fortran, content = state
        self.values = np.frombuffer(content, np.uint8).reshape(
            tuple(map(int, shape)), order="F" if fortran else "C"
        )


def make_array_stub(*_: object) -> ArrayStub:
    """Replace numpy's ``_reconstruct``."""
    return ArrayStub()


def encode_latin1(text: str, code: str = "latin1") -> bytes:
    """Replace codecs.encode: it is how Python 3 writes bytes for Python 2."""
    return text.encode("latin1")


ALLOWED_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"): make_array_stub,  # numpy 1
    ("numpy._core.multiarray", "_reconstruct"): make_array_stub,  # numpy 2
    ("numpy", "ndarray"): ArrayStub,
    ("numpy", "dtype"): DtypeStub,
    ("_codecs", "encode"): encode_latin1,
}


class RestrictedUnpickler(pickle._Unpickler):
    """Allows arrays of bytes, and pickle's own types: bytes, str, numbers, list, dict.

    It is the unpickler written in Python: with the one in C, a few hostile bytes can allocate
    gigabytes by storing to a high index of its memo table.
    """

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED_GLOBALS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def unpickle_safely(blob: bytes, where: object) -> dict[str, Any]:
    """Return the dictionary in a pickle of Python 2 or 3, with keys as text."""
    try:
        content = RestrictedUnpickler(io.BytesIO(blob), encoding="bytes").load()
        pairs = {k.decode() if isinstance(k, bytes) else str(k): v for k, v in content.items()}
        return {k: v.values if isinstance(v, ArrayStub) else v for k, v in pairs.items()}
    except Exception as error:  # a damaged pickle can end in almost any
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{where} is not one of the published files, refused: {reason}") from None
