"""The result of a finished run: its numbers, its events, and its trained models."""

from __future__ import annotations

import shutil
import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.algorithm import Algorithm
from ..core.client import Client
from ..core.errors import DataError
from ..core.randomness import seeded
from ..core.tensors import Tensors
from ..jobs.plan import Job, Plan
from ..jobs.work import select_tensors_after_joining
from .events import Event
from .store import RunFolder
from .summary import Accuracy, ClientResult, Fairness, Summary


class Result:
    """A finished run: its numbers, its events, and its trained models."""

    def __init__(
        self,
        summary: Summary,
        plan: Plan,
        folder: RunFolder,
        temporary: str | None = None,
    ) -> None:
        self.summary, self.plan, self.folder = summary, plan, folder.path
        self._run_folder = folder
        if temporary is not None:
            weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)

    def __repr__(self) -> str:
        g = "no G" if self.G is None else f"G {self.G.last:.4f}"
        return f"<Result {self.summary.algorithm}: {g}, P {self.P.last:.4f} (last)>"

    @property
    def G(self) -> Accuracy | None:
        return self.summary.G

    @property
    def P(self) -> Accuracy:
        return self.summary.P

    @property
    def clients(self) -> dict[str, ClientResult]:
        return self.summary.clients

    @property
    def fairness(self) -> dict[str, Fairness | None]:
        return self.summary.fairness

    @property
    def model_sha256(self) -> str:
        return self.summary.model_sha256

    @property
    def events(self) -> list[Event]:
        return list(self._run_folder.iterate_events())

    def personal(self, client: str) -> Model:
        """Return the personal model of a client."""
        if client not in self.plan.federation.train:
            raise DataError(f"there is no client '{client}'")
        last = self.summary.rounds + (
            client in self.plan.federation.new
        )  # new clients train after the last round
        return self._build_model(
            client, self._run_folder.client_store.load_memory(client, before=last)
        )

    def generic(self) -> Model:
        """Return the generic model."""
        if not self.plan.algorithm.common:
            raise DataError(f"{self.summary.algorithm} has no common model")
        server = self._server
        return self._build_model(None, {"net": server.average | server.model})

    @property
    def _server(self) -> Any:
        return self._run_folder.restore_newest_commit(self.plan.federation.sizes())

    def _build_model(self, client: str | None, memory: dict[str, Tensors] | Any) -> Model:
        plan, server = self.plan, self._server
        name = client or plan.federation.clients[0]
        received = plan.algorithm.send(server, client) if client is not None else Tensors()
        if client in plan.federation.new:
            received = select_tensors_after_joining(plan.algorithm, received, memory)
        job = Job(kind="evaluate", t=server.t, client=name, tensors=received)
        built = plan.build_client(job, memory, self._run_folder.client_store)
        if client is not None:
            with seeded(plan.seed, "tune", server.t, client):  # as when P was measured
                plan.algorithm.tune(built)
        return Model(plan.algorithm, built, generic=client is None)


class Model(nn.Module):
    """A trained model. It takes stored examples (bytes) or scaled numbers, and returns logits."""

    def __init__(self, algorithm: Algorithm, client: Client, generic: bool) -> None:
        super().__init__()
        self.net, self._scale = client.net, client.data.test.scale
        self._predict = partial(algorithm.generic if generic else algorithm.predict, client)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.as_tensor(x)
        return self._predict(self._scale(x) if x.dtype == torch.uint8 else x)
