"""How long to wait before the next attempt to connect."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True)
class BackoffSettings:
    """Seconds between attempts: ``first``, then twice as many each time, at most ``most``.

    After a refusal (wrong credentials, or another process took the identity over) nothing gets
    better by haste, and two processes of one name would throw each other out for ever: these waits
    begin at ``refused`` and end at ten times that.
    """

    first: float = 0.5
    longest: float = 30.0
    first_after_refusal: float = 60.0

    def select_bounds(self, refused: bool) -> tuple[float, float]:
        return (
            (self.first_after_refusal, 10 * self.first_after_refusal)
            if refused
            else (self.first, self.longest)
        )


class ReconnectBackoff:
    """The waits of one link; each is shortened by a share that depends on its name.

    The share keeps devices that lost the same broker from returning in the same instant.
    """

    def __init__(self, name: str, pace: BackoffSettings) -> None:
        self.name = name
        self.settings = pace
        self.failures = 0

    def compute_wait(self, refused: bool, lived: float) -> float:
        """The wait after a connection that worked for ``lived`` seconds."""
        shortest, longest = self.settings.select_bounds(refused)
        if lived > 2 * longest:  # not shorter: who is thrown out after every wait is still failing
            self.failures = 0
        wait = min(longest, shortest * 2.0 ** min(self.failures, 30))
        self.failures += 1
        share = crc32(f"{self.name} {self.failures}".encode()) / 2**33
        return wait * (1 - share)
