"""Draws by purpose."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from heterophony.core.randomness import seeded


def test_threads_draw_what_each_would_draw_alone() -> None:
    entered, second_tried = threading.Event(), threading.Event()

    def draw_first() -> list[float]:
        with seeded("first"):
            entered.set()
            second_tried.wait(0.2)  # in vain: the other block waits
            return torch.rand(3).tolist()

    def draw_second() -> list[float]:
        entered.wait()
        with seeded("second"):
            second_tried.set()
            return torch.rand(3).tolist()

    with ThreadPoolExecutor() as threads:
        together = [f.result() for f in [threads.submit(draw_first), threads.submit(draw_second)]]
    alone = []
    for key in ("first", "second"):
        with seeded(key):
            alone.append(torch.rand(3).tolist())
    assert together == alone
