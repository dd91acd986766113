"""The serial engine: one job after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import torch

from ..core.accelerator import prepared_torch
from ..core.algorithm import Reply
from ..jobs.client_store import FolderClientStore
from ..jobs.plan import Job, Plan
from ..jobs.work import work_together
from .base import SERIAL, Engine, EngineSpec, batch_for


class Serial(Engine):
    """Uses one torch thread, as every worker does, so that all engines produce the same bits."""

    def __init__(
        self, plan: Plan, client_store: FolderClientStore, spec: EngineSpec = SERIAL
    ) -> None:
        self.plan, self.client_store, self.compute = plan, client_store, spec.compute
        self.previous_threads = torch.get_num_threads()

    def __enter__(self) -> Self:
        torch.set_num_threads(1)
        self.prepared = prepared_torch(self.compute)
        self.prepared.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.prepared.__exit__(None, None, None)
        torch.set_num_threads(self.previous_threads)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        for batch in batch_for(self.plan, self.compute, jobs, 1):
            yield from work_together(self.plan, batch, self.client_store, self.compute)
