"""Lines for the terminal of the server, so few that no device can flood it. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

BURST = 5  # lines about one device at once
PAUSE = 10.0  # seconds after which one more may follow


@dataclass
class Allowance:
    """What may be said of one device: its lines come back with the time."""

    at: float
    lines: float = BURST
    left_out: int = 0

    def granted(self, now: float) -> bool:
        self.lines, self.at = min(BURST, self.lines + (now - self.at) / PAUSE), now
        if self.lines < 1:
            self.left_out += 1
            return False
        self.lines -= 1
        return True


class News:
    """What was told and not read yet. ``about`` are few: all strangers are one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.allowances: dict[str, Allowance] = {}

    def tell(self, about: str, words: str, now: float) -> None:
        allowance = self.allowances.setdefault(about, Allowance(now))
        if not allowance.granted(now):
            return
        if missed := allowance.left_out:
            words, allowance.left_out = f"{words} (and {missed} more, left out)", 0
        self.lines.append(words)

    def read(self) -> list[str]:
        """The lines since the last time."""
        lines, self.lines = self.lines, []
        return lines
