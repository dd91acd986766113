"""Print events of the devices of a run, and write their status to a file now and then.

The file is for people. Nothing reads it back: a run is the same with and without it.
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

MIN_CHECK_SECONDS = 1.0  # between two checks for changes
MAX_WRITE_SECONDS = 10.0  # between two writes, even if nothing has changed


class StatusWriter:
    """Writes the status from the start of the server to its end, however that comes."""

    def __init__(
        self,
        session: ServerSession,
        folder: Path,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session, self.path, self.say = session, folder / DEVICES_FILE, say
        self.clock = clock
        self.clock_offset = time.time() - clock()  # the date of the clock's 0
        self.last_check: float | None = None
        self.last_write = 0.0
        self.last_status: dict[str, Any] = {}
        self.can_write = True

    def update(self) -> None:
        """Print new lines, and write the status if it is time to; cheap to call often."""
        for line in self.session.stats.log.take_lines():
            self.say(line)
        now = self.clock()
        if self.last_check is not None and now - self.last_check < MIN_CHECK_SECONDS:
            return
        self.last_check = now
        status = build_status(self.session, self.clock_offset)
        if status != self.last_status or now - self.last_write >= MAX_WRITE_SECONDS:
            self.write_status(status, now)

    def write_status(self, status: dict[str, Any], now: float) -> None:
        content = {**status, "written": round(self.clock_offset + now)}
        try:
            write_atomically(
                self.path, (json.dumps(content, indent=1) + "\n").encode(), durable=False
            )
        except StorageError as error:  # not a reason to end the run
            if self.can_write:
                self.say(f"cannot write the status of the devices: {error}")
            self.can_write = False
        else:
            self.can_write = True
        self.last_status, self.last_write = status, now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.last_check is None:
            return  # the run had ended before; the status written then is still right
        status = build_status(self.session, self.clock_offset)
        if status["state"] != "ended":
            status["state"] = "stopped"
        self.write_status(status, self.clock())
