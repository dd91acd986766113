"""A status line for slow work: updated in place in a notebook, printed from time to time in a batch log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any

from rich.console import Console

from .files import clean_text

# one console for all output, so that lines printed while a bar is shown stay above it
STDERR = Console(stderr=True)
LOG_SECONDS = 30.0  # seconds between two lines in a log
NOTEBOOK_SECONDS = 0.5  # seconds between two changes of the line in a notebook
PATIENCE_SECONDS = 2.0  # seconds at a terminal until slow work is announced

Describe = Callable[[], str]  # describes the current work; empty if there is none


class LogLines:
    """Prints a line to stderr on request, and every 30 seconds from a thread.

    The thread prints its first line after ``patience`` seconds.
    """

    def __init__(self, describe: Describe, patience: float | None = None) -> None:
        self.describe = describe
        self.patience = LOG_SECONDS if patience is None else patience
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._print_repeatedly, daemon=True)

    def start(self) -> None:
        """Start the thread that prints lines."""
        self._thread.start()

    def update(self) -> None:
        """Ignore the update: the next printed line shows it."""

    def stop(self) -> None:
        """Stop printing lines. A signal handler may call this method, so it does not wait."""
        self._stopped.set()

    def print_line(self) -> None:
        """Print a line that describes the current work; print nothing if there is none."""
        if text := clean_text(self.describe()):
            if STDERR.is_terminal:
                STDERR.print(text, soft_wrap=True, highlight=False, markup=False)
            else:
                print(text, file=sys.stderr, flush=True)

    def _print_repeatedly(self) -> None:
        """Print lines from the thread until ``stop`` is called."""
        wait = self.patience
        while not self._stopped.wait(wait):
            self.print_line()
            wait = LOG_SECONDS


class NotebookLine:
    """Shows one line with a bar in a notebook, and updates it in place."""

    def __init__(
        self,
        describe: Describe,
        compute_fraction: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.describe, self.compute_fraction, self.clock = describe, compute_fraction, clock
        self._display: Any = import_module("IPython.display").display
        self._handle: Any = None
        self._shown_at = 0.0

    def start(self) -> None:
        """Show the line in the notebook."""
        self.print_line()

    def update(self) -> None:
        """Update the line, at most every half second."""
        if self.clock() - self._shown_at >= NOTEBOOK_SECONDS:
            self.print_line()

    def stop(self) -> None:
        """Keep the line as it was last shown."""

    def print_line(self) -> None:
        """Update the line in the notebook to describe the current work."""
        text = self.describe()
        bar = f'<progress value="{self.compute_fraction():.4f}" max="1"></progress>'
        content = {"text/plain": text, "text/html": f"{bar} {escape(text)}"}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
        self._shown_at = self.clock()


@contextmanager
def show_slow_work(what: str) -> Iterator[None]:
    """Print a status line while slow work runs in the block: after 2 seconds at a terminal, 30 in a log."""
    begun = time.monotonic()
    patience = PATIENCE_SECONDS if STDERR.is_terminal else LOG_SECONDS
    lines = LogLines(lambda: f"{what}, {format_seconds(time.monotonic() - begun)} so far", patience)
    lines.start()
    try:
        yield
    finally:
        lines.stop()


def format_seconds(seconds: float) -> str:
    """Format a duration as ``1:05`` or ``2:03:20``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
