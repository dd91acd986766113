"""Do the same on all boards at once, and show how far each one is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from ...core.errors import HeterophonyError
from .hosts import Board

MAX_THREADS = 32
Step = Callable[[Board], str]  # returns what was done, in a few words


@dataclass
class Outcome:
    """What was done on each board, or why it failed."""

    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class View:
    """Shows the state of each board; the command line has one for terminals."""

    def begin(self, title: str, boards: Sequence[str]) -> None:
        """A step begins on these boards."""

    def update(self, board: str, state: str, text: str) -> None:
        """A board is ``working``, ``done`` or ``failed``."""

    def end(self) -> None:
        """The step has ended on all boards."""


def do_on_boards(title: str, boards: Sequence[Board], step: Step, view: View) -> Outcome:
    """Do a step on all boards, in parallel; one that fails does not stop the others."""
    outcome = Outcome()

    def do(board: Board) -> str:
        view.update(board.name, "working", "")
        return step(board)

    view.begin(title, [b.name for b in boards])
    try:
        with ThreadPoolExecutor(min(MAX_THREADS, max(1, len(boards)))) as threads:
            futures = {threads.submit(do, board): board.name for board in boards}
            for future in as_completed(futures):
                name = futures[future]
                try:
                    outcome.done[name] = future.result()
                    view.update(name, "done", outcome.done[name])
                except HeterophonyError as error:
                    outcome.failed[name] = str(error)
                    view.update(name, "failed", outcome.failed[name])
    finally:
        view.end()
    return outcome
