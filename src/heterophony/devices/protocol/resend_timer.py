"""When to repeat a message that got no answer: the wait doubles each time, up to a minute."""

from __future__ import annotations

FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0  # seconds


class ResendTimer:
    """Waits for an answer; the caller supplies the time."""

    def __init__(self, now: float) -> None:
        self.reset(now)

    def reset(self, now: float) -> None:
        """Start over with the shortest wait, because the other side made progress."""
        self.wait_seconds = FIRST_WAIT
        self.due_at = now + self.wait_seconds

    def advance_if_due(self, now: float) -> bool:
        """Return whether it is time to repeat the message; if so, double the next wait."""
        if now < self.due_at:
            return False
        self.wait_seconds = min(2 * self.wait_seconds, LONGEST_WAIT)
        self.due_at = now + self.wait_seconds
        return True
