"""Compute how long to wait before the next attempt to connect."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True)
class BackoffSettings:
    """Seconds between attempts: ``first``, doubled after each failure, at most ``longest``.

    After a refusal (wrong credentials, or another process uses the name) hurry does not help, and two
    processes of one name would disconnect each other for ever. So these waits start at
    ``first_after_refusal`` and end at ten times that.
    """

    first: float = 0.5
    longest: float = 30.0
    first_after_refusal: float = 60.0

    def select_bounds(self, refused: bool) -> tuple[float, float]:
        if refused:
            return self.first_after_refusal, 10 * self.first_after_refusal
        return self.first, self.longest


class ReconnectBackoff:
    """The waits of one transport, each shortened by a fraction that depends on its name.

    The fraction keeps devices that lost the same broker from returning at the same instant.
    """

    def __init__(self, name: str, settings: BackoffSettings) -> None:
        self.name = name
        self.settings = settings
        self.failures = 0

    def compute_wait(self, refused: bool, active_seconds: float) -> float:
        """Return the wait after a connection that was active for so many seconds."""
        shortest, longest = self.settings.select_bounds(refused)
        if active_seconds > 2 * longest:  # a name that is refused after every wait still fails
            self.failures = 0
        wait = min(longest, shortest * 2.0 ** min(self.failures, 30))
        self.failures += 1
        fraction = crc32(f"{self.name} {self.failures}".encode()) / 2**33
        return wait * (1 - fraction)
