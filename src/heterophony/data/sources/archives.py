"""Read the files of a data set from a folder, a zip or a tar, without unpacking to disk."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import DataError
from ...core.files import DATA_LIMIT, check_expansion, open_regular_file, read_regular_file

READ_ERRORS = (
    *(OSError, EOFError, ValueError, RuntimeError),  # RuntimeError: an encrypted zip
    *(zlib.error, zipfile.BadZipFile, tarfile.TarError),
)


@dataclass(frozen=True)
class ArchiveFiles:
    """The files of a folder or an archive, by their names below the data set's own folder."""

    path: Path
    list_names: Callable[[], Sequence[str]]  # sorted
    read_content: Callable[[str], bytes | None]

    def read_first(self, *names: str) -> tuple[Path, bytes]:
        """Return path and content of the first of these files that exists."""
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
        """Read a text file."""
        path, content = self.read_first(name)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise DataError(f"{path} is not text") from None


@contextmanager
def open_archive(path: Path, root: str) -> Iterator[ArchiveFiles]:
    """Open a folder or an archive; ``root`` is the folder that official archives have inside."""
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
    def list_names() -> list[str]:
        return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())

    def read_content(name: str) -> bytes | None:
        path = folder / name
        return read_regular_file(path, DATA_LIMIT) if path.exists() else None

    return ArchiveFiles(folder, list_names, read_content)


def open_zip(path: Path, archive: zipfile.ZipFile, root: str) -> ArchiveFiles:
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
    """Read a whole tar at once: a compressed one can only be read from its beginning."""
    contents: dict[str, bytes] = {}
    with open_regular_file(path) as opened, tarfile.open(fileobj=opened) as archive:
        size, expanded = path.stat().st_size, 0
        for member in archive:
            expanded += member.size
            check_expansion(size, expanded)
            # a link names another file, perhaps none; a data set has no need of it
            if member.isreg() and (file := archive.extractfile(member)):
                contents[member.name] = file.read()
    inside = strip_root(root, list(contents))
    return ArchiveFiles(
        path,
        lambda: sorted(inside),
        lambda name: contents[inside[name]] if name in inside else None,
    )


def strip_root(root: str, names: Sequence[str]) -> dict[str, str]:
    """Map names below ``root`` to full names; if nothing is below it, take all names."""
    inner = {n.removeprefix(f"{root}/"): n for n in names if n.startswith(f"{root}/")}
    return inner or {n: n for n in names}


def summarise_error(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0]
