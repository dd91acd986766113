"""Lines for the terminal of the server, so few that no device can flood it. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BURST_LINES = 5  # lines about one device at once
SECONDS_PER_LINE = 10.0  # seconds after which one more may follow


@dataclass
class TokenBucket:
    """What may be said of one device: its lines come back with the time."""

    updated_at: float
    tokens: float = MAX_BURST_LINES
    suppressed: int = 0

    def try_take(self, now: float) -> bool:
        self.tokens, self.updated_at = (
            min(MAX_BURST_LINES, self.tokens + (now - self.updated_at) / SECONDS_PER_LINE),
            now,
        )
        if self.tokens < 1:
            self.suppressed += 1
            return False
        self.tokens -= 1
        return True


class RateLimitedLog:
    """What was told and not read yet. ``about`` are few: all strangers are one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.buckets: dict[str, TokenBucket] = {}

    def add_line(self, about: str, words: str, now: float) -> None:
        allowance = self.buckets.setdefault(about, TokenBucket(now))
        if not allowance.try_take(now):
            return
        if missed := allowance.suppressed:
            words, allowance.suppressed = f"{words} (and {missed} more, left out)", 0
        self.lines.append(words)

    def take_lines(self) -> list[str]:
        """The lines since the last time."""
        lines, self.lines = self.lines, []
        return lines
