"""Finished replies on a device's disk, by task: after a restart nothing is trained again.

A file holds the message that announces the reply (two lines), a line end, and the reply.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

from ...core.errors import CodecError
from ...core.files import translate_disk_errors, write_atomically
from . import messages
from .chunks import OutgoingBlob
from .messages import Done


class ReplyStore:
    """Replies that are kept until the server has reached a later round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.announcements: dict[str, Done] = {}
        with translate_disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.iterdir()):
                self.load_file(path)

    def load_file(self, path: Path) -> None:
        """Load a reply of an earlier start; delete a damaged one, which is then computed again."""
        text, checksum, reply = [*path.read_bytes().split(b"\n", 2), b"", b""][:3]
        try:
            done = messages.decode_message(text + b"\n" + checksum, Done)
        except CodecError:
            path.unlink()
            return
        if path.name == done.id and hashlib.sha256(reply).hexdigest() == done.reply.sha256:
            self.announcements[done.id] = done
        else:
            path.unlink()

    def put(self, done: Done, reply: bytes) -> None:
        write_atomically(self.folder / done.id, messages.encode_message(done) + b"\n" + reply)
        self.announcements[done.id] = done

    def drop(self, id: str) -> None:
        if self.announcements.pop(id, None) is not None:
            with translate_disk_errors(self.folder):
                (self.folder / id).unlink(missing_ok=True)

    def find_reply(self, sha256: str) -> OutgoingBlob | None:
        """Return the reply with this content, read from disk chunk by chunk."""
        for done in self.announcements.values():
            if done.reply.sha256 == sha256:
                return OutgoingBlob(done.reply, partial(self.read_range, done))
        return None

    def read_range(self, done: Done, offset: int, size: int) -> bytes:
        path = self.folder / done.id
        with translate_disk_errors(path), open(path, "rb") as file:
            file.seek(len(messages.encode_message(done)) + 1 + offset)
            return file.read(size)
