"""Looks at the devices of a run now and then: says what is new, writes down how they stand.

The file is for people and nothing reads it back: a run is the same with and without it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ..core.errors import StorageError
from ..core.files import write_atomically
from ..runs.run_index import DEVICES_FILE
from .protocol.server_session import ServerSession
from .protocol.status import build_status

MIN_CHECK_SECONDS = 1.0  # seconds between two looks, at least
MAX_WRITE_SECONDS = 10.0  # seconds after which the file is written though nothing has changed


class StatusWriter:
    """From the start of the server to its end, however that comes."""

    def __init__(
        self,
        hub: ServerSession,
        folder: Path,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server_session, self.path, self.say, self.clock = (
            hub,
            folder / DEVICES_FILE,
            say,
            clock,
        )
        self.clock_offset = time.time() - clock()  # the date of the clock's 0
        self.last_check: float | None = None
        self.last_write = 0.0
        self.last_status: dict[str, Any] = {}
        self.can_write = True

    def update(self) -> None:
        """Often called, seldom at work."""
        for words in self.server_session.stats.log.take_lines():
            self.say(words)
        now = self.clock()
        if self.last_check is not None and now - self.last_check < MIN_CHECK_SECONDS:
            return
        self.last_check = now
        view = build_status(self.server_session, self.clock_offset)
        if view != self.last_status or now - self.last_write >= MAX_WRITE_SECONDS:
            self.write_status(view, now)

    def write_status(self, view: dict[str, Any], now: float) -> None:
        content = {**view, "written": round(self.clock_offset + now)}
        try:
            write_atomically(
                self.path, (json.dumps(content, indent=1) + "\n").encode(), durable=False
            )
        except StorageError as error:  # no reason to end a run
            if self.can_write:
                self.say(f"the devices cannot be shown: {error}")
            self.can_write = False
        else:
            self.can_write = True
        self.last_status, self.last_write = view, now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.last_check is None:
            return  # there was nothing left to play; what was written then still holds
        view = build_status(self.server_session, self.clock_offset)
        if view["state"] != "ended":
            view["state"] = "stopped"
        self.write_status(view, self.clock())
