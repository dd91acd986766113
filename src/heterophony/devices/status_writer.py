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
from ..core.files import write
from ..run.run_index import DEVICES
from .protocol.server_session import Hub
from .protocol.status import overview

EVERY = 1.0  # seconds between two looks, at least
ALIVE = 10.0  # seconds after which the file is written though nothing has changed


class Lookout:
    """From the start of the server to its end, however that comes."""

    def __init__(
        self,
        hub: Hub,
        folder: Path,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hub, self.path, self.say, self.clock = hub, folder / DEVICES, say, clock
        self.zero = time.time() - clock()  # the date of the clock's 0
        self.looked: float | None = None
        self.written = 0.0
        self.told: dict[str, Any] = {}
        self.works = True

    def look(self) -> None:
        """Often called, seldom at work."""
        for words in self.hub.ledger.news.read():
            self.say(words)
        now = self.clock()
        if self.looked is not None and now - self.looked < EVERY:
            return
        self.looked = now
        view = overview(self.hub, self.zero)
        if view != self.told or now - self.written >= ALIVE:
            self.write(view, now)

    def write(self, view: dict[str, Any], now: float) -> None:
        content = {**view, "written": round(self.zero + now)}
        try:
            write(self.path, (json.dumps(content, indent=1) + "\n").encode(), durable=False)
        except StorageError as error:  # no reason to end a run
            if self.works:
                self.say(f"the devices cannot be shown: {error}")
            self.works = False
        else:
            self.works = True
        self.told, self.written = view, now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.looked is None:
            return  # there was nothing left to play; what was written then still holds
        view = overview(self.hub, self.zero)
        if view["state"] != "ended":
            view["state"] = "stopped"
        self.write(view, self.clock())
