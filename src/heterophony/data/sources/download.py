"""Downloads that go on where they were cut off, and count only when their checksum is right."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...core.errors import DataError

CHUNK_BYTES = 1 << 16  # bytes
TIMEOUTS = (15, 60)  # seconds to connect, and between two pieces


@dataclass(frozen=True)
class RemoteFile:
    """A file to download."""

    url: str
    md5: str
    md5_is_of_decompressed: bool = (
        False  # the sum is of the decompressed bytes: repackagers' headers differ
    )

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def download_file(remote: RemoteFile, folder: Path) -> Path:
    """The file in the folder, fetched if it is not there or not the published one."""
    import pooch  # type: ignore[import-untyped]  # only where something is fetched

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
    """Refuse, and remove, a packed download whose content is not the published one."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error):  # not even packed: a portal's page, half a file
        content = b""
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        path.unlink()
        raise ValueError(f"{path.name} is not the published file")


def download_resumable(url: str, output: str, _pooch: object = None) -> None:
    """Fetch into a ``.part`` beside the output, which outlives a lost connection or a signal.

    As long as every try brings something, the next one goes on from there.
    """
    part = Path(output).with_name(url.rpartition("/")[2] + ".part")
    with open_part_exclusively(part) as file, show_progress(part.stem) as show:
        while True:
            before = file.tell()
            try:
                download_rest(url, file, show)
                break
            except OSError as error:  # requests' errors are; those of the disk have a number
                if error.errno is not None or file.tell() <= before:
                    raise
        file.flush()
        part.replace(output)


@contextmanager
def open_part_exclusively(part: Path) -> Iterator[IO[bytes]]:
    """The part, open at its end, for this process alone."""
    with open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.fstat(file.fileno()).st_ino == part.stat().st_ino
        except OSError:
            mine = False
        if not mine:  # or it was just finished and renamed
            raise DataError(f"{part.stem} is being downloaded by another process; wait for it")
        try:
            yield file
        finally:
            if not file.tell():
                part.unlink(missing_ok=True)


def download_rest(url: str, file: IO[bytes], show: Callable[[int, int | None], None]) -> None:
    """Ask for what is missing and write it to the end of the file."""
    import requests

    have = file.tell()
    headers = {"Accept-Encoding": "identity"}  # sizes are of the file, not of a packed stream
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUTS) as answer:
        if answer.status_code == 416:  # nothing is missing, or the part is of another file
            if answer.headers.get("Content-Range") != f"bytes */{have}":
                truncate_file(file)
                download_rest(url, file, show)
            return
        answer.raise_for_status()
        if answer.status_code != 206:  # the server cannot go on
            truncate_file(file)
        size = answer.headers.get("Content-Length")
        total = file.tell() + int(size) if size else None
        for piece in answer.iter_content(CHUNK_BYTES):
            file.write(piece)
            show(file.tell(), total)
    if total is not None and file.tell() != total:
        raise OSError("the connection was cut")


def truncate_file(file: IO[bytes]) -> None:
    """From the beginning."""
    file.truncate(0)
    file.seek(0)


@contextmanager
def show_progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Progress for people: only where stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def explain_failure(error: Exception) -> str:
    """Why, in a few words."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "its checksum is not the published one"
