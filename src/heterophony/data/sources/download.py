"""Find a data set's files on this machine, or download and check them."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...core.errors import DataError
from ...core.files import decompress_gzip

CHUNK_BYTES = 1 << 16
TIMEOUTS = (15, 60)  # seconds to connect, and between two chunks


@dataclass(frozen=True)
class RemoteFile:
    """A data set's file to download: its URL and MD5."""

    url: str
    md5: str
    md5_is_of_decompressed: bool = False  # mirrors may compress the same bytes differently

    @property
    def name(self) -> str:
        """The file name, which is the last part of the URL."""
        return self.url.rpartition("/")[2]


def download_file(remote: RemoteFile, folder: Path) -> Path:
    """Download a data set's file, unless the folder already has it with the published checksum."""
    import pooch  # type: ignore[import-untyped]  # imported only for downloads

    pooch.get_logger().setLevel(logging.WARNING)
    known = None if remote.md5_is_of_decompressed else f"md5:{remote.md5}"
    path = Path(
        pooch.retrieve(
            remote.url,
            fname=remote.name,
            path=folder,
            known_hash=known,
            downloader=download_resumable,
        )
    )
    if remote.md5_is_of_decompressed:
        check_md5(path, remote.md5)
    return path


def check_md5(path: Path, md5: str) -> None:
    """Raise ValueError, and delete a compressed download, if its content has a different MD5."""
    try:
        content = decompress_gzip(path.read_bytes())
    except (OSError, EOFError, zlib.error):  # not gzip: for example a login page
        content = b""
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        path.unlink()
        raise ValueError(f"{path.name} is not the published file")


def download_resumable(url: str, output: str, _pooch: object = None) -> None:
    """Download into a ``.part`` file next to the output, and rename it at the end.

    The ``.part`` survives a lost connection or a signal. The download is retried as long as each attempt
    receives some bytes.
    """
    part = Path(output).with_name(url.rpartition("/")[2] + ".part")
    with open_part_exclusively(part) as file, show_progress(part.stem) as show:
        while True:
            before = file.tell()
            try:
                download_rest(url, file, show)
                break
            except OSError as error:  # errors of requests have no errno
                if error.errno is not None or file.tell() <= before:
                    raise
        file.flush()
        part.replace(output)


@contextmanager
def open_part_exclusively(part: Path) -> Iterator[IO[bytes]]:
    """Open the ``.part`` file at its end, locked for this process."""
    with open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.fstat(file.fileno()).st_ino == part.stat().st_ino
        except OSError:
            mine = False
        if not mine:  # locked by another process, or just finished and renamed by it
            raise DataError(f"{part.stem} is being downloaded by another process; wait for it")
        try:
            yield file
        finally:
            if not file.tell():
                part.unlink(missing_ok=True)


def download_rest(url: str, file: IO[bytes], show: Callable[[int, int | None], None]) -> None:
    """Download the missing bytes and append them to the file."""
    import requests

    have = file.tell()
    headers = {"Accept-Encoding": "identity"}  # so that sizes count the file's own bytes
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUTS) as response:
        if response.status_code == 416:  # nothing is missing, or the part is another file's
            if response.headers.get("Content-Range") != f"bytes */{have}":
                truncate_file(file)
                download_rest(url, file, show)
            return
        response.raise_for_status()
        if response.status_code != 206:  # the server sends the whole file
            truncate_file(file)
        size = response.headers.get("Content-Length")
        total = file.tell() + int(size) if size else None
        for piece in response.iter_content(CHUNK_BYTES):
            file.write(piece)
            show(file.tell(), total)
    if total is not None and file.tell() != total:
        raise OSError("the connection was cut")


def truncate_file(file: IO[bytes]) -> None:
    """Empty a ``.part`` file, so that its download starts again."""
    file.truncate(0)
    file.seek(0)


@contextmanager
def show_progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar on a terminal; elsewhere, print a line every 30 seconds."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from ...core.status_line import STDERR, show_slow_work

    if not STDERR.is_terminal:
        with show_slow_work(f"downloading {name}"):
            yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=STDERR) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def explain_failure(error: Exception) -> str:
    """Describe in a few words why a download failed."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "its checksum is not the published one"


SYSTEM_FOLDER = Path("/usr/share/datasets")  # folder of Debian's data set packages


@dataclass(frozen=True)
class DatasetFiles:
    """The files of a data set, and where they can be downloaded.

    Each of ``alternatives`` is a list of files below a folder that together form the data set. A
    file may have ``.gz`` appended; ``*`` matches any name.
    """

    folder: str  # name of the folder in a cache
    alternatives: tuple[tuple[str, ...], ...]
    remote_files: tuple[RemoteFile, ...] = ()
    hint: str = ""  # shown in errors: how else to get the files
    system_name: str | None = None  # name of the folder below SYSTEM_FOLDER

    def find_in(self, path: Path) -> Path | None:
        """Return the archive, or the folder that holds all files; None if neither is at the path."""
        if path.is_file():
            return path
        for names in self.alternatives:
            if all(is_present(path, name) for name in names):
                archive = path / names[0]
                return archive if len(names) == 1 and archive.is_file() else path
        return None

    def list_search_paths(self) -> list[Path]:
        """List the folders to search for the data set on this machine, in order."""
        system = [SYSTEM_FOLDER / self.system_name] if self.system_name else []
        return [root / self.folder for root in list_cache_folders()] + system

    def find_local(self) -> Path | None:
        """Return the data set's path on this machine, or None."""
        return next(filter(None, map(self.find_in, self.list_search_paths())), None)


def list_cache_folders() -> list[Path]:
    """List the cache folders for data sets; downloads go to the first one."""
    own = os.environ.get("HETEROPHONY_DATA")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    shared = Path(base).expanduser() / "heterophony"
    return [Path(own).expanduser(), shared] if own else [shared]


def find_or_download(wanted: DatasetFiles, path: Path | None) -> Path:
    """Find the data set at the given path; without a path, find it on this machine or download it."""
    if path is None:
        return wanted.find_local() or download_to_cache(wanted)
    if local := wanted.find_in(path):
        return local
    if not path.exists():
        raise DataError(f"data.path: there is no {path}")
    missing = "; or ".join(find_missing_file(path, names) for names in wanted.alternatives)
    raise DataError(f"data.path: {path} does not hold {wanted.folder}: it lacks {missing}")


def download_to_cache(wanted: DatasetFiles) -> Path:
    """Download a data set into the first cache folder; if that fails, the error lists all searched folders."""
    looked = " and ".join(map(str, wanted.list_search_paths()))
    missing = f"data set '{wanted.folder}' is not on this machine (looked in {looked})"
    if not wanted.remote_files:
        raise DataError(f"{missing}; {wanted.hint}")
    folder = list_cache_folders()[0] / wanted.folder
    try:
        for remote in wanted.remote_files:
            download_file(remote, folder)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors
        raise DataError(
            f"{missing} and could not be downloaded ({explain_failure(error)}); {wanted.hint}"
        ) from None
    return wanted.find_in(folder) or folder


def is_present(folder: Path, name: str) -> bool:
    """Return True if a folder has this file of a data set, possibly compressed; ``*`` matches any name."""
    return any(folder.glob(name)) or (folder / f"{name}.gz").exists()


def find_missing_file(folder: Path, names: Sequence[str]) -> str:
    """Return the first of a data set's files that is missing in the folder."""
    return next(name for name in names if not is_present(folder, name))
