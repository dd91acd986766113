"""How long to wait before the next attempt to connect."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True)
class Pace:
    """Seconds between attempts: ``first``, then twice as many each time, at most ``most``.

    After a refusal (wrong credentials, or another process took the identity over) nothing gets
    better by haste, and two processes of one name would throw each other out for ever: these waits
    begin at ``refused`` and end at ten times that.
    """

    first: float = 0.5
    most: float = 30.0
    refused: float = 60.0

    def bounds(self, refused: bool) -> tuple[float, float]:
        return (self.refused, 10 * self.refused) if refused else (self.first, self.most)


class Waits:
    """The waits of one link; each is shortened by a share that depends on its name.

    The share keeps devices that lost the same broker from returning in the same instant.
    """

    def __init__(self, name: str, pace: Pace) -> None:
        self.name = name
        self.pace = pace
        self.failures = 0

    def after(self, refused: bool, lived: float) -> float:
        """The wait after a connection that worked for ``lived`` seconds."""
        shortest, longest = self.pace.bounds(refused)
        if lived > 2 * longest:  # not shorter: who is thrown out after every wait is still failing
            self.failures = 0
        wait = min(longest, shortest * 2.0 ** min(self.failures, 30))
        self.failures += 1
        share = crc32(f"{self.name} {self.failures}".encode()) / 2**33
        return wait * (1 - share)
