"""Where clients of one process meet: each runs to its next pass of training, then all train together.

Every client runs in a thread of its own, but only one thread runs at a time: a client that reaches a pass
waits until all others wait or have ended. An algorithm knows nothing of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from typing import ClassVar, Generic, TypeVar

import torch

from .groups import GROUP_SIZE, DirectPass, DrawingPullError, run_passes
from .randomness import GeneratorStates

Result = TypeVar("Result")
MEMBER = ContextVar["Member[object] | None"]("member", default=None)


class Runner:
    """A thread that runs members, one after the other; it waits in between."""

    idle: ClassVar[list[Runner]] = []

    def __init__(self) -> None:
        self.go, self.back = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.back.acquire()
        self.task: Callable[[], object] = torch.get_num_threads
        threading.Thread(target=self.run, daemon=True).start()

    @classmethod
    def take(cls) -> Runner:
        return cls.idle.pop() if cls.idle else cls()

    def run(self) -> None:
        torch.set_num_threads(torch.get_num_threads())  # OpenMP counts them by thread
        while True:
            self.go.acquire()
            self.task()
            self.back.release()

    def switch(self) -> None:
        """Let the thread run until it waits or its task has ended."""
        self.go.release()
        self.back.acquire()

    def wait(self) -> None:
        """Wait, in the thread itself, for the next ``switch``."""
        self.back.release()
        self.go.acquire()


class Member(Generic[Result]):
    """One client of a meeting: a task, and the pass of training that it waits for."""

    def __init__(self, task: Callable[[], Result]) -> None:
        self.task, self.results = task, list[Result]()
        self.error: BaseException | None = None
        self.waiting: tuple[DirectPass, int] | None = None  # a pass, and how it is aligned
        self.refusal: BaseException | None = None  # raised where the member waits
        self.states: GeneratorStates | None = None
        self.runner = Runner.take()
        self.runner.task = partial(copy_context().run, self.run)

    def run(self) -> None:
        MEMBER.set(self)  # type: ignore[arg-type]
        try:
            self.results.append(self.task())
        except BaseException as error:
            self.error = error

    def advance(self) -> None:
        """Let the member run until it waits again or has ended; the random draws are its own."""
        self.waiting = None
        if self.states is not None:
            self.states.restore()
        self.runner.switch()
        self.states = GeneratorStates.save() if self.waiting else None
        if not self.waiting:
            Runner.idle.append(self.runner)

    def meet(self, one: DirectPass, unit: int) -> None:
        """Wait, in the member's own thread, until the pass was run with those of others."""
        self.waiting = one, unit
        self.runner.wait()
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal


def run_together(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run all tasks, and the passes of training in them together; return their results in order.

    Raise the error of the first task that has one, after all have ended.
    """
    before, members = GeneratorStates.save(), [Member(task) for task in tasks]
    try:
        for member in members:
            member.advance()
        while waiting := [member for member in members if member.waiting]:
            run_waiting(waiting)
            for member in waiting:
                member.advance()
    finally:
        for member in members:  # after an interruption, for instance
            while member.waiting:
                member.refusal = KeyboardInterrupt()
                member.advance()
        before.restore()
    for member in members:
        if member.error is not None:
            raise member.error
    return [member.results[0] for member in members]


def run_waiting(members: Sequence[Member[Result]]) -> None:
    """Run the passes that members wait for: equal ones together, others one after the other."""
    groups = dict[tuple[object, ...], list[Member[Result]]]()
    for member in members:
        assert member.waiting is not None
        one, unit = member.waiting
        groups.setdefault((one.key, unit), []).append(member)
    for group in groups.values():
        for first in range(0, len(group), GROUP_SIZE):
            part = group[first : first + GROUP_SIZE]
            waiting = [member.waiting for member in part if member.waiting]
            try:
                run_passes([one for one, _ in waiting], waiting[0][1])
            except Exception as error:
                for member in part:
                    member.refusal = error


def train_directly(one: DirectPass, unit: int) -> bool:
    """Run a pass, with those of other clients if they meet; return False if it needs autograd."""
    member = MEMBER.get()
    try:
        if member is None or not unit:
            run_passes([one])
        else:
            member.meet(one, unit)
    except DrawingPullError:
        return False
    return True
