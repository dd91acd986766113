"""A meeting of clients in one process: each runs up to its training pass, then all passes run together.

A client that reaches a pass does not train yet: the next client starts inside its call of ``fit``, and so
on. When the last client has arrived, all passes run as one computation, and the clients continue, the last one
first. Any further pass of a client runs on its own. Algorithms do not notice, but the traceback of an
error inside an algorithm also shows the frames of the clients that are waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from .groups import DirectPass, DrawingPullError, run_passes

Result = TypeVar("Result")
MEETING = ContextVar["Meeting[object] | None"]("meeting", default=None)


@dataclass(eq=False)
class WaitingPass:
    """A training pass, the packing that it needs, and whether it has run."""

    one: DirectPass
    packing: int
    has_run: bool = False
    error: Exception | None = None


class Meeting(Generic[Result]):
    """Jobs that run nested, and the training passes that wait until all clients have arrived."""

    def __init__(self, jobs: Sequence[Callable[[], Result]]) -> None:
        self.left = list(enumerate(jobs))[::-1]
        self.results, self.errors = dict[int, Result](), dict[int, Exception]()
        self.waiting = list[WaitingPass]()

    def run(self) -> list[Result]:
        """Run all clients' jobs; return their results in order, or raise the error of the first failed job."""
        token = MEETING.set(self)  # type: ignore[arg-type]
        try:
            while self.left:
                self.start_next()
        finally:
            MEETING.reset(token)
        if self.errors:
            raise self.errors[min(self.errors)]
        return [self.results[i] for i in sorted(self.results)]

    def start_next(self) -> None:
        """Run the next job up to its end; jobs that it starts in turn run inside this call."""
        number, job = self.left.pop()
        try:
            with torch.enable_grad():  # even if the waiting client has switched gradients off
                self.results[number] = job()
        except Exception as error:  # only this job fails: the waiting client continues
            self.errors[number] = error

    def join(self, one: DirectPass, packing: int) -> None:
        """Wait until all other jobs have started, then run this training pass together with theirs."""
        mine = WaitingPass(one, packing)
        self.waiting.append(mine)
        while self.left and not mine.has_run:
            self.start_next()
        if not mine.has_run:
            self.run_waiting()
        if mine.error is not None:
            raise mine.error

    def run_waiting(self) -> None:
        """Run all waiting training passes; those with equal keys run together."""
        groups = dict[tuple[object, ...], list[WaitingPass]]()
        for each in self.waiting:
            groups.setdefault((each.one.key, each.packing), []).append(each)
        self.waiting.clear()
        for group in groups.values():
            error = None
            try:
                run_passes([each.one for each in group], group[0].packing)
            except Exception as problem:
                error = problem
            for each in group:
                each.has_run, each.error = True, error


def train_directly(one: DirectPass, packing: int) -> bool:
    """Run a pass, in the current meeting of clients if any; return False if it needs autograd."""
    meeting = MEETING.get()
    try:
        if meeting is None or not packing:
            run_passes([one])
        else:
            meeting.join(one, packing)
    except DrawingPullError:
        return False
    return True
