"""Finished replies on a device's disk, by task: training once is enough, whatever happens then.

A file is the message that announces the reply (two lines), a line end, and the reply.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

from ...core.errors import CodecError
from ...core.files import disk, write
from . import messages
from .chunks import Outgoing
from .messages import Done


class Shelf:
    """Kept until the server has gone on to a later round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: dict[str, Done] = {}
        with disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.iterdir()):
                self.find(path)

    def find(self, path: Path) -> None:
        """What lies there from before; what is damaged goes, and costs only time."""
        text, seal, reply = [*path.read_bytes().split(b"\n", 2), b"", b""][:3]
        try:
            done = messages.decode(text + b"\n" + seal, Done)
        except CodecError:
            path.unlink()
            return
        if path.name == done.id and hashlib.sha256(reply).hexdigest() == done.reply.sha256:
            self.done[done.id] = done
        else:
            path.unlink()

    def put(self, done: Done, reply: bytes) -> None:
        write(self.folder / done.id, messages.encode(done) + b"\n" + reply)
        self.done[done.id] = done

    def drop(self, id: str) -> None:
        if self.done.pop(id, None) is not None:
            with disk(self.folder):
                (self.folder / id).unlink(missing_ok=True)

    def outgoing(self, sha256: str) -> Outgoing | None:
        """The reply with this content, to be read chunk by chunk."""
        for done in self.done.values():
            if done.reply.sha256 == sha256:
                return Outgoing(done.reply, partial(self.read, done))
        return None

    def read(self, done: Done, offset: int, size: int) -> bytes:
        path = self.folder / done.id
        with disk(path), open(path, "rb") as file:
            file.seek(len(messages.encode(done)) + 1 + offset)
            return file.read(size)
