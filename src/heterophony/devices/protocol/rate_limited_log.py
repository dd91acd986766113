"""Lines for the server's terminal, limited so that no device can flood it. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BURST_LINES = 5  # about one subject at once
SECONDS_PER_LINE = 10.0  # after a burst


@dataclass
class TokenBucket:
    """How many lines about one subject may follow; the allowance is refilled over time."""

    updated_at: float
    tokens: float = MAX_BURST_LINES
    suppressed: int = 0

    def try_take(self, now: float) -> bool:
        """Return whether a line is allowed now; count it as suppressed if not."""
        refill = (now - self.updated_at) / SECONDS_PER_LINE
        self.tokens, self.updated_at = min(MAX_BURST_LINES, self.tokens + refill), now
        if self.tokens < 1:
            self.suppressed += 1
            return False
        self.tokens -= 1
        return True


class RateLimitedLog:
    """Lines that were added and not read yet. The caller keeps the number of subjects small."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.buckets: dict[str, TokenBucket] = {}

    def add_line(self, subject: str, line: str, now: float) -> None:
        bucket = self.buckets.setdefault(subject, TokenBucket(now))
        if not bucket.try_take(now):
            return
        if suppressed := bucket.suppressed:
            line, bucket.suppressed = f"{line} (and {suppressed} more, left out)", 0
        self.lines.append(line)

    def take_lines(self) -> list[str]:
        """Return the lines since the last call."""
        lines, self.lines = self.lines, []
        return lines
