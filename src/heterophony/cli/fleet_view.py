"""The live view of a fleet: one row per board on a terminal, lines elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ..core.plain_text import clean_line
from ..core.status_line import STDERR
from ..devices.fleet.parallel import View

MARKS = {"waiting": "·", "working": "[yellow]…[/]", "done": "[green]✓[/]", "failed": "[red]✗[/]"}


class TerminalView(View):
    """Shows all boards in place while a step runs; what failed is printed as an error afterwards."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet  # say nothing of boards on which all is well
        self.title = ""
        self.rows: dict[str, tuple[str, str]] = {}
        self.lock = threading.Lock()
        self.live: Live | None = None

    def begin(self, title: str, boards: Sequence[str]) -> None:
        self.title, self.rows = title, dict.fromkeys(boards, ("waiting", ""))
        if STDERR.is_terminal:
            self.live = Live(self.draw(), console=STDERR, transient=True, refresh_per_second=8)
            self.live.start()

    def update(self, board: str, state: str, text: str) -> None:
        with self.lock:
            self.rows[board] = state, text
            if self.live:
                self.live.update(self.draw())

    def end(self) -> None:
        if self.live:
            self.live.stop()
            self.live = None
        if not self.quiet:
            for board, (state, text) in self.rows.items():
                if state == "done":
                    line = f"{board}: {self.title}: {text}"
                    STDERR.print(escape(clean_line(line)), soft_wrap=True, highlight=False)

    def draw(self) -> Table:
        """Return the table of all boards, as they are now."""
        table = Table(title=self.title, box=None, show_header=False, title_justify="left")
        for board, (state, text) in self.rows.items():
            table.add_row(MARKS[state], escape(board), escape(clean_line(text)))
        return table
