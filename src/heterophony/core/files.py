"""Files: size-limited reads, atomic writes, locks, secrets, archives, and names and text safe to print."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from .errors import BusyError, FolderError, StorageError
from .temporary import temporary_folder

JSON_LIMIT = 1 << 28  # size limit of a JSON file, or of one line of JSON, in bytes
DATA_LIMIT = 1 << 34  # size limit of a file of examples, in bytes
EXPANSION_LIMIT = 200  # largest expansion of a compressed file, if it exceeds the next size
SMALL_BYTES = 1 << 28
TEXT_LIMIT = 1 << 22  # size limit of a file that people write, such as a configuration, in bytes


class UnsuitableFileError(OSError):
    """Raised when a file is a device, a pipe, a folder or a link, or exceeds its size limit."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EINVAL, reason)


@contextmanager
def translate_disk_errors(path: Path) -> Iterator[None]:
    """Convert an OSError inside the block to StorageError, and an UnsuitableFileError to FolderError."""
    try:
        yield
    except UnsuitableFileError as error:
        raise FolderError(f"{path} is damaged: {error.strerror}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"cannot use {path}: {reason}; committed rounds are intact"
            " (make room or fix the permissions, then resume)"
        ) from error


# Reading ----------------------------------------------------------------------------------------


def open_regular_file(path: Path, limit: int | None = None) -> BinaryIO:
    """Open a file for reading; refuse pipes, devices, folders and files larger than ``limit`` bytes."""
    # without O_NONBLOCK, a pipe would wait for a writer
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(check_regular_file(fd, limit), "rb")


def is_file(path: Path) -> bool:
    """Return True if the path is a regular file; False also if its folder cannot be read."""
    try:
        return path.is_file()
    except OSError:
        return False


def check_regular_file(fd: int, limit: int | None = None) -> int:
    """Return a file descriptor; if its file is not regular or is too large, close it and raise an error."""
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(status.st_mode):
            raise UnsuitableFileError("it is not a regular file")
        if limit is not None and status.st_size > limit:
            raise UnsuitableFileError(f"it is larger than {limit} bytes")
    except OSError:
        os.close(fd)
        raise
    return fd


def read_regular_file(path: Path, limit: int) -> bytes:
    """Read a whole regular file of at most ``limit`` bytes."""
    with open_regular_file(path, limit) as file:
        content = file.read(limit + 1)
    if len(content) > limit:  # the file grew, or its size is unknown, as in /proc
        raise UnsuitableFileError(f"it is larger than {limit} bytes")
    return content


def read_text_file(path: Path, limit: int = TEXT_LIMIT) -> str:
    """Read a small regular file as UTF-8 text."""
    return read_regular_file(path, limit).decode().replace("\r\n", "\n")


def check_expansion(compressed: int, expanded: int) -> None:
    """Raise an error if a compressed file expands far more than real data do (a decompression bomb)."""
    if expanded > max(SMALL_BYTES, EXPANSION_LIMIT * compressed):
        raise UnsuitableFileError(f"its {compressed} bytes would become {expanded}")


def decompress_gzip(blob: bytes) -> bytes:
    """Decompress gzip; refuse a decompression bomb."""
    limit = max(SMALL_BYTES, EXPANSION_LIMIT * len(blob))
    with gzip.GzipFile(fileobj=BytesIO(blob)) as file:
        content = file.read(limit + 1)
    check_expansion(len(blob), len(content))
    return content


# Writing ----------------------------------------------------------------------------------------

UNFINISHED = ".new"  # suffix of a file that is still being written


def write_atomically(
    path: Path, content: bytes, durable: bool = True, private: bool = False
) -> None:
    """Write a file so that readers see the old content or the new one, even after a crash.

    Without ``durable`` there is no fsync: a power cut may lose the file. A ``private`` file is
    readable only by its owner, even while it is being written.
    """
    with translate_disk_errors(path):
        make_folder(path.parent, durable)
        # nobody can guess the name, so nobody can put a link there
        new = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}{UNFINISHED}")
        mode = 0o600 if private else 0o666
        try:
            with open(new, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        if durable:
            sync_folder(path.parent)


def remove_unfinished_files(folder: Path, below: bool = True) -> None:
    """Remove files that killed processes left unfinished in a folder and in its subfolders ``below``.

    No other process may be writing there.
    """
    search = folder.rglob if below else folder.glob
    with translate_disk_errors(folder):
        for path in search(f".*.{'[0-9a-f]' * 16}{UNFINISHED}"):
            path.unlink(missing_ok=True)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder with these files; after a crash, it has all of them or does not exist.

    The files are first written to a hidden folder next to it, which the next attempt replaces.
    """
    new = written = folder.with_name(f".{folder.name}.new")
    try:
        shutil.rmtree(new, ignore_errors=True)
        make_folder(new)
        for name, content in files.items():
            with (new / name).open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(new)
        written = new.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(written, ignore_errors=True)
        raise StorageError(
            f"cannot write {folder}: {error.strerror}; nothing was added (make room or fix the"
            " permissions, then try again)"
        ) from error


def open_for_owner_only(path: str, flags: int) -> int:
    """Open a file, for ``open(opener=…)``: a new file is readable only by its owner, links are refused."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def open_to_append(path: Path) -> BinaryIO:
    """Open a regular file for appending, or create it; refuse links instead of following them."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsuitableFileError("it is a link to another file") from None
        raise
    return os.fdopen(check_regular_file(fd), "ab")


def truncate_file(path: Path, size: int) -> None:
    """Truncate a regular file to ``size`` bytes; refuse links instead of following them."""
    with open_to_append(path) as file:
        file.truncate(size)


def make_folder(folder: Path, durable: bool = True) -> None:
    """Create a folder and its missing parents, so that they survive a power cut.

    Nothing is ever put into a folder whose own name is not synced yet. So only an empty folder can
    have an unsynced name, left by a process that was killed before it synced the name.
    """
    if not durable:
        folder.mkdir(parents=True, exist_ok=True)
        return
    try:
        with os.scandir(folder) as entries:
            if any(entries):
                return
    except FileNotFoundError:
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder to the disk, so that the names of its files survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_folder(folder: Path) -> int:
    """Lock a folder for this process. The lock is released when the process exits, even if it crashes.

    Names in the folder that a killed process did not sync are synced, so readers can rely on them.
    """
    with translate_disk_errors(folder):
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise BusyError(
            f"{folder} is in use by another process; wait for it, or stop it first"
        ) from None
    try:
        with translate_disk_errors(folder):
            sync_folder(folder)
    except StorageError:
        os.close(lock)
        raise
    return lock


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Lock a folder inside the ``with`` block; create it if it does not exist."""
    with translate_disk_errors(folder):
        make_folder(folder)
    lock = lock_folder(folder)
    try:
        yield
    finally:
        os.close(lock)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically, indented for human readers."""
    write_atomically(path, encode_json(content))


def encode_json(content: Any) -> bytes:
    """Return content as the bytes of a JSON file, indented for human readers."""
    return (json.dumps(content, indent=2) + "\n").encode()


def read_json(path: Path) -> Any:
    """Read a JSON file; raise FolderError if it is missing or damaged."""
    try:
        return json.loads(read_regular_file(path, JSON_LIMIT))
    except FileNotFoundError:
        raise FolderError(f"{path} does not exist") from None
    except (ValueError, RecursionError):
        raise FolderError(f"{path} is damaged: it is not JSON") from None
    except UnsuitableFileError as error:
        raise FolderError(f"{path} is damaged: {error.strerror}") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None


# control characters except line breaks and tabs; marks that reverse the direction of text; surrogates
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
REPLACEMENT = "\ufffd"
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def clean_text(text: str) -> str:
    """Replace characters of a text that a terminal would interpret, such as escape sequences."""
    return UNPRINTABLE.sub(REPLACEMENT, text)


def clean_line(text: str) -> str:
    """Replace characters of a text that a terminal would interpret, and join its lines into one."""
    return clean_text(" ".join(text.split("\n")))


def quote_formula(cell: object) -> object:
    """Prefix the text of a CSV cell with an apostrophe if a spreadsheet would evaluate it as a formula."""
    if isinstance(cell, str) and cell.lstrip(" ").startswith(FORMULA_SIGNS):
        return f"'{cell}"
    return cell


SECRET_FILE = "secret"  # noqa: S105  # the name of a file
SECRET_BYTES = 32


def load_secret(folder: Path, create: bool, warn: Callable[[str], object]) -> bytes:
    """Read the secret of a run folder; if there is none and ``create`` allows it, draw and store one.

    Call ``warn`` if other users of the machine may read the secret.
    """
    path = folder / SECRET_FILE
    if not path.exists():
        if not create:
            raise FolderError(
                f"{path} is missing: without it the noise of the run cannot be drawn again; restore"
                " it, or start a new run"
            )
        write_atomically(path, draw_secret(), private=True)
    with translate_disk_errors(path):
        secret, mode = read_regular_file(path, SECRET_BYTES), stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        warn(
            f"{path} has mode {mode:04o}: whoever can read it can subtract the noise of the run; use"
            f" `chmod 600 {path}`"
        )
    if len(secret) != SECRET_BYTES:
        raise FolderError(f"{path} is damaged: it must have {SECRET_BYTES} bytes; restore it")
    return secret


def digest_secret(folder: Path) -> str:
    """Return a digest that identifies a run folder's secret; an empty string if the folder has none."""
    path = folder / SECRET_FILE
    with translate_disk_errors(path):
        if not path.exists():
            return ""
        secret = read_regular_file(path, SECRET_BYTES)
    return hashlib.sha256(b"digest of a secret|" + secret).hexdigest()


def draw_secret() -> bytes:
    """Draw a secret, which seeds a run's noise, from the operating system's random source."""
    return os.urandom(SECRET_BYTES)


# names that become part of MQTT topics, certificates and commands
NAME_PATTERN = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,64}")
NAME_RULE = "use 1 to 64 letters, digits, '.', '_' or '-', not beginning with '.'"


def sort_names(names: Iterable[str]) -> list[str]:
    """Sort names of clients or runs in natural order: 2 before 10, site-2 before site-10."""
    return sorted(names, key=make_natural_sort_key)


def make_natural_sort_key(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return the sort key of a name in natural order; site-02 comes before site-2."""
    parts = re.split(r"([0-9]+)", name)  # alternately text and numbers
    numbers = [part.lstrip("0") for part in parts[1::2]]
    key = [(0, part) for part in parts]
    key[1::2] = [(len(number), number) for number in numbers]  # like int(), for any length
    return key, name


ARCHIVE_SUFFIX = ".zip"
ARCHIVE_LIMIT = 1 << 30  # size limit of an archive, and of its content, in bytes
MEMBER_LIMIT = 100_000  # number of files allowed in an archive
# the earliest date of the zip format, for all files: equal files give equal archives
FIRST_DATE = (1980, 1, 1, 0, 0, 0)
METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError)


def find_archive(path: Path, name: str) -> Path | None:
    """Find a .zip archive: the path itself, or the file ``name`` in this folder; None if there is neither."""
    if path.suffix == ARCHIVE_SUFFIX and is_file(path):
        return path
    return path / name if is_file(path / name) else None


@contextmanager
def unpack_archive(archive: Path) -> Iterator[Path]:
    """Extract a .zip archive into a temporary folder that exists inside the ``with`` block.

    Raise FolderError if the archive is damaged, has a file outside its folder, or would become
    too large. Nothing is written before all names and sizes are checked.
    """
    with temporary_folder() as folder:
        extract(archive, folder)
        yield folder


def extract(archive: Path, folder: Path) -> None:
    """Extract a .zip archive into an empty folder."""
    with translate_disk_errors(archive), open_regular_file(archive, ARCHIVE_LIMIT) as file:
        try:
            with zipfile.ZipFile(file) as content:
                for member in check_archive_members(content.infolist(), archive.stat().st_size):
                    target = folder / member.filename
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content.read(member))  # at most the size that was checked
        except DAMAGE:
            raise UnsuitableFileError("it is not a complete .zip archive") from None


def check_archive_members(members: list[zipfile.ZipInfo], size: int) -> list[zipfile.ZipInfo]:
    """Return the files of a .zip archive; refuse names outside its folder and content that is too large."""
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
            raise UnsuitableFileError(f"{member.filename!r} is outside its folder")
        if member.is_dir():
            continue
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or member.compress_type not in METHODS:
            raise UnsuitableFileError(f"{member.filename!r} is not a plain file")
        found[path] = member
    if any(parent in found for path in found for parent in path.parents):
        raise UnsuitableFileError("a name in it is both a file and a folder")
    return list(found.values())


def pack_folders(folders: Iterable[Path], archive: Path) -> None:
    """Write the files of several folders into a .zip archive, each under the name of its folder."""
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
