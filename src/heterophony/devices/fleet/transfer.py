"""Copy files to a board: only those whose content differs from what it has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .agent import call_board
from .hosts import Board
from .ssh import SshRunner

PIECE = 1 << 20
BYTES_PER_SECOND = 200_000  # slower links are taken for broken
PRIVATE = 0o600


@dataclass(frozen=True)
class Content:
    """What a file on a board shall hold: a file here, or bytes."""

    source: Path | bytes
    mode: int = 0o644

    @property
    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    def digest(self) -> str:
        if isinstance(self.source, bytes):
            return hashlib.sha256(self.source).hexdigest()
        with open(self.source, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def iterate(self) -> Iterator[bytes]:
        if isinstance(self.source, bytes):
            yield self.source
            return
        with open(self.source, "rb") as file:
            while piece := file.read(PIECE):
                yield piece


def push_files(
    ssh: SshRunner, board: Board, contents: Mapping[str, Content], only: Sequence[str] = ()
) -> int:
    """Copy what differs; return how many files were copied or deleted.

    In the folders of ``only`` nothing but these files stays.
    """
    digests = {path: content.digest() for path, content in contents.items()}
    asked = call_board(ssh, board, "missing", {"files": digests, "only": list(only)}, seconds=600)
    missing = [path for path in contents if path in set(asked["missing"])]
    if not missing and not asked["others"]:
        return 0
    return send_files(ssh, board, contents, digests, missing, only)


def send_files(
    ssh: SshRunner,
    board: Board,
    contents: Mapping[str, Content],
    digests: Mapping[str, str],
    missing: Sequence[str],
    only: Sequence[str],
) -> int:
    """Copy the missing ones of these files; return how many were copied or deleted."""
    files = [
        {
            "path": path,
            "size": contents[path].size,
            "sha256": digests[path],
            "mode": contents[path].mode,
        }
        for path in missing
    ]
    request = {"files": files, "only": list(only), "keep": list(contents)}
    size = sum(contents[path].size for path in missing)
    pieces = join_contents(contents[path] for path in missing)
    answer = call_board(ssh, board, "receive", request, pieces, 120 + size / BYTES_PER_SECOND)
    return int(answer["received"]) + int(answer["deleted"])


def join_contents(contents: Iterable[Content]) -> Iterator[bytes]:
    for content in contents:
        yield from content.iterate()
