"""Notice a broker that no longer answers.

Paho pings when nothing was written or read for ``keepalive`` seconds and gives up when the answer
takes as long. Beyond that, every packet that must be answered (connect, subscribe, publish) has to be
answered within two keepalives of the last answer. So a half-open connection is noticed within two
keepalives and one poll, without any message that MQTT does not send anyway.
"""

from __future__ import annotations

import time


class Watchdog:
    """Measures the time since the last answer, or since an answer became due."""

    def __init__(self, keepalive: int) -> None:
        self.max_seconds = 2 * keepalive
        self.reset()

    def reset(self) -> None:
        self.waiting_since = time.monotonic()

    def check(self) -> None:
        """Raise TimeoutError if an answer is overdue; call only while one is due."""
        if time.monotonic() - self.waiting_since > self.max_seconds:
            raise TimeoutError(f"no answer for {self.max_seconds} s")
