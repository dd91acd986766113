"""Read untrusted files safely: ``.npz``, archives without unpacking, and pickles with a restricted unpickler."""

from __future__ import annotations

import io
import pickle
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import DATA_LIMIT, check_expansion, open_regular_file, read_regular_file


def list_files(folder: Path, *suffixes: str) -> list[Path]:
    """List the visible files of a folder with one of these suffixes, by name."""
    found = [p for suffix in suffixes for p in folder.glob(f"*{suffix}")]
    return sorted(p for p in found if not p.name.startswith("."))


def load_npz(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, NDArray[Any]]:
    """Load the arrays of an ``.npz`` whose names are wanted; a damaged file may raise almost any error."""
    with open_regular_file(path) as opened, zipfile.ZipFile(opened) as archive:
        members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
        members = {name: m for name, m in members.items() if wanted(name)}
        check_expansion(opened.seek(0, 2), sum(m.file_size for m in members.values()))
        return {name: read_member(archive, member) for name, member in members.items()}


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array from an ``.npz``; raise ValueError if its header promises more bytes than the file has."""
    with archive.open(member) as file:
        shape, dtype = read_array_header(file)
    if dtype.hasobject:
        name = member.filename.removesuffix(".npy")
        raise ValueError(f"{name} holds Python objects; store text as np.array({name}, dtype=str)")
    if prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"{member.filename} is cut short")
    with archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def read_array_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the shape and type of an array from the header of its ``.npy``."""
    version = np.lib.format.read_magic(file)
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read_header(file)
    return shape, dtype


READ_ERRORS = (
    *(OSError, EOFError, ValueError, RuntimeError),  # RuntimeError: an encrypted zip
    *(zlib.error, zipfile.BadZipFile, tarfile.TarError),
)


@dataclass(frozen=True)
class ArchiveFiles:
    """The files of a folder or an archive, by their names relative to the data set's own folder."""

    path: Path
    list_names: Callable[[], Sequence[str]]  # sorted
    read_content: Callable[[str], bytes | None]

    def read_first(self, *names: str) -> tuple[Path, bytes]:
        """Return the path and content of the first of these files that exists."""
        for name in names:
            try:
                content = self.read_content(name)
            except READ_ERRORS as error:
                raise DataError(
                    f"{self.path / name} cannot be read ({summarise_error(error)})"
                ) from None
            if content is not None:
                return self.path / name, content
        raise DataError(f"{self.path} has no {' nor '.join(names)}")

    def read_text(self, name: str) -> str:
        """Read a text file of a data set."""
        path, content = self.read_first(name)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise DataError(f"{path} is not text") from None


@contextmanager
def open_archive(path: Path, root: str) -> Iterator[ArchiveFiles]:
    """Open a data set's folder or archive; ``root`` is the top folder of official archives."""
    with ExitStack() as stack:
        try:
            if path.is_dir():
                files = open_folder(path / root if (path / root).is_dir() else path)
            elif path.suffix == ".zip":
                opened = stack.enter_context(open_regular_file(path))
                files = open_zip(path, stack.enter_context(zipfile.ZipFile(opened)), root)
            else:
                files = open_tar(path, root)
        except READ_ERRORS as error:
            raise DataError(
                f"{path} is not a readable archive ({summarise_error(error)})"
            ) from None
        yield files


def open_folder(folder: Path) -> ArchiveFiles:
    """Open a folder that holds the unpacked files of a data set."""

    def list_names() -> list[str]:
        return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())

    def read_content(name: str) -> bytes | None:
        path = folder / name
        return read_regular_file(path, DATA_LIMIT) if path.exists() else None

    return ArchiveFiles(folder, list_names, read_content)


def open_zip(path: Path, archive: zipfile.ZipFile, root: str) -> ArchiveFiles:
    """Open a zip archive that holds the files of a data set."""
    inside = strip_root(root, [n for n in archive.namelist() if not n.endswith("/")])
    size = path.stat().st_size

    def read_content(name: str) -> bytes | None:
        if name not in inside:
            return None
        member = archive.getinfo(inside[name])
        check_expansion(size, member.file_size)
        return archive.read(member)

    return ArchiveFiles(path, lambda: sorted(inside), read_content)


def open_tar(path: Path, root: str) -> ArchiveFiles:
    """Read a whole tar at once, because a compressed tar can only be read from its beginning."""
    contents: dict[str, bytes] = {}
    with open_regular_file(path) as opened, tarfile.open(fileobj=opened) as archive:
        size, expanded = path.stat().st_size, 0
        for member in archive:
            expanded += member.size
            check_expansion(size, expanded)
            # a link may name a missing file, and data sets need no links
            if member.isreg() and (file := archive.extractfile(member)):
                contents[member.name] = file.read()
    inside = strip_root(root, list(contents))
    return ArchiveFiles(
        path,
        lambda: sorted(inside),
        lambda name: contents[inside[name]] if name in inside else None,
    )


def strip_root(root: str, names: Sequence[str]) -> dict[str, str]:
    """Map names below an archive's folder ``root`` to full names; without this folder, map all names to themselves."""
    inner = {n.removeprefix(f"{root}/"): n for n in names if n.startswith(f"{root}/")}
    return inner or {n: n for n in names}


DAMAGES = (EOFError, zlib.error, zipfile.BadZipFile, tarfile.ReadError)


def summarise_error(error: Exception) -> str:
    """Describe, in one line, the error that a damaged data file raised."""
    if isinstance(error, DAMAGES):
        return "it is cut short or damaged"
    return (str(error).splitlines() or [type(error).__name__])[0]


PLAIN_DTYPE = re.compile(r"[biuf](1|2|4|8)|[US][0-9]+")
OBJECT_DTYPES = ("O", "O8")  # NumPy wraps a dict in an array of one object


class DtypeStub:
    """Replacement for numpy.dtype that allows only numbers and text."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        text = name.decode() if isinstance(name, bytes) else name
        self.is_object = text in OBJECT_DTYPES
        if not self.is_object and not PLAIN_DTYPE.fullmatch(text):
            raise pickle.UnpicklingError(f"an array of {name!r}, not of numbers or text")
        self.plain = np.dtype(np.uint8 if self.is_object else text)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order: Any = state[1].decode() if isinstance(state[1], bytes) else state[1]
        self.plain = self.plain.newbyteorder(order)


class ArrayStub:
    """Replacement for numpy.ndarray while an array is being unpickled."""

    values: Any  # an array, or the object itself if NumPy wrapped one

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if dtype.is_object:
            self.values = content[0] if not tuple(shape) else fill_objects(shape, content, fortran)
            return
        content = content.encode("latin1") if isinstance(content, str) else content
        self.values = np.frombuffer(content, dtype.plain).reshape(
            tuple(map(int, shape)), order="F" if fortran else "C"
        )


def fill_objects(shape: Any, content: list[Any], fortran: object) -> NDArray[Any]:
    """Return an array of Python objects, which the unpickler has limited to plain ones."""
    sizes = tuple(map(int, shape))
    if not isinstance(content, list) or len(content) != prod(sizes):
        raise pickle.UnpicklingError("an array of Python objects that is cut short")
    values = np.empty(len(content), object)
    for at, value in enumerate(content):
        values[at] = value
    return values.reshape(sizes, order="F" if fortran else "C")


def make_array_stub(*_: object) -> ArrayStub:
    """Replacement for numpy's ``_reconstruct`` while a file is being unpickled."""
    return ArrayStub()


def make_number(dtype: DtypeStub, content: bytes) -> Any:
    """Replacement for numpy's ``scalar`` while a file is being unpickled."""
    if dtype.is_object:
        raise pickle.UnpicklingError("a Python object as a number")
    return np.frombuffer(content, dtype.plain, 1)[0].item()


def encode_latin1(text: str, code: str = "latin1") -> bytes:
    """Replacement for codecs.encode, which Python 3 uses to pickle bytes for Python 2."""
    return text.encode("latin1")


ALLOWED_GLOBALS = {
    ("numpy", "ndarray"): ArrayStub,
    ("numpy", "dtype"): DtypeStub,
    ("_codecs", "encode"): encode_latin1,
}
for package in ("numpy.core", "numpy._core"):  # in NumPy 1 and 2
    ALLOWED_GLOBALS[f"{package}.multiarray", "_reconstruct"] = make_array_stub
    ALLOWED_GLOBALS[f"{package}.multiarray", "scalar"] = make_number


class RestrictedUnpickler(pickle._Unpickler):
    """Unpickler that allows only arrays of numbers and text, and pickle's own plain types.

    These are bytes, str, numbers, list and dict. The class is based on the unpickler written in
    Python: in the one written in C, a few hostile bytes can allocate gigabytes by storing to a high
    index of the memo table.
    """

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED_GLOBALS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is not allowed"
            ) from None


def unpickle_safely(
    blob: bytes, where: object, what: str = "one of the published files"
) -> dict[str, Any]:
    """Return the dictionary in a Python 2 or 3 pickle, with keys as text."""
    try:
        content = RestrictedUnpickler(io.BytesIO(blob), encoding="bytes").load()
        content = content.values if isinstance(content, ArrayStub) else content
        pairs = {parse_key(k): v for k, v in content.items()}
        return {k: v.values if isinstance(v, ArrayStub) else v for k, v in pairs.items()}
    except Exception as error:  # a damaged pickle can raise almost any error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{where} is not {what}: {reason}") from None


def parse_key(key: object) -> str:
    """Convert a key of an unpickled dictionary to text."""
    if not isinstance(key, str | bytes):
        raise pickle.UnpicklingError(f"a key {key!r}")
    return key.decode() if isinstance(key, bytes) else key


def load_pickled_dict(path: Path, name: str) -> dict[str, Any]:
    """Load the dictionary that ``np.savez(path, name=dictionary)`` stored, without running code.

    An ``.npz`` of plain arrays is read as such a dictionary.
    """
    with open_regular_file(path) as opened, zipfile.ZipFile(opened) as archive:
        members = archive.namelist()
        if f"{name}.npy" not in members:
            opened.seek(0)
            return load_npz(path)
        member = archive.getinfo(f"{name}.npy")
        check_expansion(opened.seek(0, 2), member.file_size)
        with archive.open(member) as file:
            shape, dtype = read_array_header(file)
            if not dtype.hasobject or shape:
                raise ValueError(f"{name} is an array {dtype} {shape}, not a dictionary")
            blob = file.read()
    return unpickle_safely(blob, path, "a dictionary of plain arrays")
