"""Read and write .zip archives of small folders, such as the runs of a table; damaged ones are refused."""

from __future__ import annotations

import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath

from .files import (
    UnsuitableFileError,
    check_expansion,
    is_file,
    open_regular_file,
    translate_disk_errors,
    write_atomically,
)

ARCHIVE_SUFFIX = ".zip"
ARCHIVE_LIMIT = 1 << 30  # bytes of an archive, and of its content
MEMBER_LIMIT = 100_000  # files in an archive
FIRST_DATE = (
    1980,
    1,
    1,
    0,
    0,
    0,
)  # the earliest that the format can hold: equal files, equal bytes
METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError)


def find_archive(path: Path, name: str) -> Path | None:
    """Return the archive that a path stands for: itself, or the file ``name`` in the folder."""
    if path.suffix == ARCHIVE_SUFFIX and is_file(path):
        return path
    return path / name if is_file(path / name) else None


@contextmanager
def unpack(archive: Path) -> Iterator[Path]:
    """Give a temporary folder with the content of an archive.

    Raise FolderError if the archive is damaged, has a file outside of its folder, or would become
    too large. Nothing is written before all names and sizes are checked.
    """
    with tempfile.TemporaryDirectory(prefix="heterophony-") as temporary:
        folder = Path(temporary).resolve()
        extract(archive, folder)
        yield folder


def extract(archive: Path, folder: Path) -> None:
    """Write the files of an archive into an empty folder."""
    with translate_disk_errors(archive), open_regular_file(archive, ARCHIVE_LIMIT) as file:
        try:
            with zipfile.ZipFile(file) as content:
                for member in check_members(content.infolist(), archive.stat().st_size):
                    target = folder / member.filename
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content.read(member))  # at most the size that was checked
        except DAMAGE:
            raise UnsuitableFileError("it is not a complete .zip archive") from None


def check_members(members: list[zipfile.ZipInfo], size: int) -> list[zipfile.ZipInfo]:
    """Return the files among the members; refuse names that leave the folder, and large content."""
    if len(members) > MEMBER_LIMIT:
        raise UnsuitableFileError(f"it has more than {MEMBER_LIMIT} files")
    content = sum(member.file_size for member in members)
    check_expansion(size, content)
    if content > ARCHIVE_LIMIT:
        raise UnsuitableFileError(f"its content is larger than {ARCHIVE_LIMIT} bytes")
    found = {}
    for member in members:
        path = PurePosixPath(member.filename)
        named = path.parts and not path.is_absolute() and ".." not in path.parts
        if not named or "\\" in member.filename:
            raise UnsuitableFileError(f"{member.filename!r} is outside of it")
        if member.is_dir():
            continue
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or member.compress_type not in METHODS:
            raise UnsuitableFileError(f"{member.filename!r} is not a plain file")
        found[path] = member
    if any(parent in found for path in found for parent in path.parents):
        raise UnsuitableFileError("a file in it is a folder as well")
    return list(found.values())


def pack_folders(folders: Iterable[Path], archive: Path) -> None:
    """Write the files of some folders into an archive, each below its folder's name."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as content:
        for folder in sorted(folders, key=lambda folder: folder.name):
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                name = (folder.name / path.relative_to(folder)).as_posix()
                member = zipfile.ZipInfo(name, FIRST_DATE)
                member.external_attr = (stat.S_IFREG | 0o644) << 16
                member.compress_type = zipfile.ZIP_DEFLATED
                content.writestr(member, path.read_bytes())
    write_atomically(archive, packed.getvalue())
