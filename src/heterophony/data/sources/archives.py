"""The files of a data set by name, in a folder, a zip or a tar; nothing is unpacked to disk."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import DataError

DAMAGE = (
    *(OSError, EOFError, ValueError, RuntimeError),  # RuntimeError: an encrypted zip
    *(zlib.error, zipfile.BadZipFile, tarfile.TarError),
)


@dataclass(frozen=True)
class Files:
    """What a folder or an archive holds; names are below the set's own folder in it."""

    path: Path
    names: Callable[[], Sequence[str]]  # sorted
    content: Callable[[str], bytes | None]

    def read(self, *names: str) -> tuple[Path, bytes]:
        """The first of these that is there, and its content."""
        for name in names:
            try:
                content = self.content(name)
            except DAMAGE as error:
                raise DataError(f"{self.path / name} cannot be read ({brief(error)})") from None
            if content is not None:
                return self.path / name, content
        raise DataError(f"{self.path} has no {' nor '.join(names)}")

    def text(self, name: str) -> str:
        """A small text file."""
        path, content = self.read(name)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise DataError(f"{path} is not text") from None


@contextmanager
def opened(path: Path, root: str) -> Iterator[Files]:
    """The files at a path; ``root`` is the folder that official archives put them in."""
    with ExitStack() as stack:
        try:
            if path.is_dir():
                files = in_folder(path / root if (path / root).is_dir() else path)
            elif path.suffix == ".zip":
                files = in_zip(path, stack.enter_context(zipfile.ZipFile(path)), root)
            else:
                files = in_tar(path, root)
        except DAMAGE as error:
            raise DataError(f"{path} is not a readable archive ({brief(error)})") from None
        yield files


def in_folder(folder: Path) -> Files:
    def names() -> list[str]:
        return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())

    def content(name: str) -> bytes | None:
        path = folder / name
        return path.read_bytes() if path.exists() else None

    return Files(folder, names, content)


def in_zip(path: Path, archive: zipfile.ZipFile, root: str) -> Files:
    inside = below(root, [n for n in archive.namelist() if not n.endswith("/")])
    return Files(
        path,
        lambda: sorted(inside),
        lambda name: archive.read(inside[name]) if name in inside else None,
    )


def in_tar(path: Path, root: str) -> Files:
    """Read at once, as a packed tar can only be read from its beginning."""
    with tarfile.open(path) as archive:
        contents = {
            member.name: file.read() for member in archive if (file := archive.extractfile(member))
        }
    inside = below(root, list(contents))
    return Files(
        path,
        lambda: sorted(inside),
        lambda name: contents[inside[name]] if name in inside else None,
    )


def below(root: str, names: Sequence[str]) -> dict[str, str]:
    """Names below the set's own folder, where there is one, with their whole names."""
    inner = {n.removeprefix(f"{root}/"): n for n in names if n.startswith(f"{root}/")}
    return inner or {n: n for n in names}


def brief(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).splitlines() or [type(error).__name__])[0]
