"""Read the arrays of an ``.npz``; how large they will be is checked before anything is read."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.files import check_expansion, open_regular_file


def load_npz(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, NDArray[Any]]:
    """Load the wanted arrays of an ``.npz``; raise almost any error if the file is damaged."""
    with open_regular_file(path) as opened, zipfile.ZipFile(opened) as archive:
        members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
        members = {name: m for name, m in members.items() if wanted(name)}
        check_expansion(opened.seek(0, 2), sum(m.file_size for m in members.values()))
        return {name: read_member(archive, member) for name, member in members.items()}


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array; a header that promises more bytes than there are is refused."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(file)
    if dtype.hasobject:
        name = member.filename.removesuffix(".npy")
        raise ValueError(f"{name} holds Python objects; store text as np.array({name}, dtype=str)")
    if prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"{member.filename} is cut short")
    with archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
