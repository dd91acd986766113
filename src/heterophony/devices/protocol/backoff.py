"""When to say it again: after a silence that doubles each time, up to a minute."""

from __future__ import annotations

FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0  # seconds


class ResendTimer:
    """Waits for an answer; the clock is the caller's."""

    def __init__(self, now: float) -> None:
        self.reset(now)

    def reset(self, now: float) -> None:
        """There was a sign of life: be patient from here."""
        self.wait_seconds = FIRST_WAIT
        self.due_at = now + self.wait_seconds

    def advance_if_due(self, now: float) -> bool:
        """Is it time to say it again? Then the next time is later."""
        if now < self.due_at:
            return False
        self.wait_seconds = min(2 * self.wait_seconds, LONGEST_WAIT)
        self.due_at = now + self.wait_seconds
        return True
