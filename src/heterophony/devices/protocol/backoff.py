"""When to say it again: after a silence that doubles each time, up to a minute."""

from __future__ import annotations

FIRST, LONGEST = 2.0, 60.0  # seconds


class Patience:
    """Waits for an answer; the clock is the caller's."""

    def __init__(self, now: float) -> None:
        self.renew(now)

    def renew(self, now: float) -> None:
        """There was a sign of life: be patient from here."""
        self.wait = FIRST
        self.due = now + self.wait

    def over(self, now: float) -> bool:
        """Is it time to say it again? Then the next time is later."""
        if now < self.due:
            return False
        self.wait = min(2 * self.wait, LONGEST)
        self.due = now + self.wait
        return True
