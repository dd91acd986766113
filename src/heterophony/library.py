"""The library: ``federate`` data, ``run`` an algorithm, use the models."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from .algorithm import Algorithm
from .algorithms import algorithm as named
from .client import Client, Training
from .config import (
    AggregationSection,
    DataSection,
    EngineSection,
    EvaluationSection,
    ModelSection,
    Top,
    suitable,
)
from .data.dealing import deal, gather
from .data.federation import Federation
from .data.partitions import Dirichlet, Partition
from .data.partitions.rule import Split
from .data.skew import Skew
from .data.source import Source
from .data.sources import arrays, source
from .data.sources.own import unpacked
from .devices import Devices
from .errors import ConfigError, DataError, FolderError
from .faults import Faults, agree
from .models import builder, default_depth
from .net import Net, split
from .participation import Participation, Uniform
from .plan import Job, Plan, settled
from .randomness import seeded
from .results import Accuracy, ClientResult, Event, Fairness, Summary
from .session import execute
from .settings import construct
from .store import RunFolder
from .tensors import Tensors
from .warm import warmed


def federate(
    data: str | Path | Sequence[Any] | Dataset[Any],
    *,
    clients: int = 20,
    partition: Partition | None = None,
    seed: int = 0,
    train_fraction: float = 0.75,
    path: str | None = None,
    transform: str = "half",
    frozen_augment: bool = False,
    split: Split = "merged",
    feature_skew: Skew | None = None,
    new_clients: float = 0.0,
) -> Federation:
    """Clients with data.

    ``data`` is a name (``"fmnist"``), a path to an ``.npz`` or a folder, arrays ``(x, y)`` to be
    dealt by the partition (default: Dirichlet 0.1), or a list with every client's own ``(x, y)``
    or ``(x_train, y_train, x_test, y_test)``. For ``(x, y)`` a torch ``Dataset`` may stand, for
    the four arrays a pair of them. ``transform`` says how stored images become input: ``"half"``
    (to [-1, 1]) or as in ``"fedavg2rep"`` or ``"feddecomp"``, which also move training images at
    random; with ``frozen_augment``, each in one way for the whole run. ``new_clients`` is the share
    of clients, drawn by the seed, that joins only after training.
    """
    construct(DataSection, {"new_clients": new_clients}, "data")
    if isinstance(data, list):
        dealt = own_data([unpacked(d) for d in data], train_fraction, seed)
    else:
        found = found_in(data, path)
        rule = partition or Dirichlet()
        dealt = deal(found, clients, rule, train_fraction, seed, split, feature_skew)
    return dealt.transformed(transform, frozen_augment).keeping_out(new_clients, seed)


def found_in(data: Any, path: str | None) -> Source:
    """The data set that a name, a path, arrays or Datasets mean."""
    if isinstance(data, str | Path):
        return source(str(data), path)
    given = unpacked(data)
    if len(given) not in (2, 4):
        raise DataError("give (x, y) or (x_train, y_train, x_test, y_test)")
    return arrays(*pooled(given), official=len(given[1]) if len(given) == 4 else None)


def own_data(parts: Sequence[Sequence[Any]], train_fraction: float, seed: int) -> Federation:
    if not parts or any(len(p) not in (2, 4) for p in parts):
        raise DataError("every client brings (x, y) or (x_train, y_train, x_test, y_test)")
    both = [pooled(p) for p in parts]
    shapes = [(x.shape[1:], x.dtype) for x, _ in both]
    for i, (shape, dtype) in enumerate(shapes):
        if (shape, dtype) != shapes[0]:
            raise DataError(
                f"client {i} has examples of shape {shape} and type {dtype},"
                f" client 0 of {shapes[0][0]} and {shapes[0][1]}"
            )
    whole = arrays(np.concatenate([x for x, _ in both]), np.concatenate([y for _, y in both]))
    trains = [len(p[1]) if len(p) == 4 else None for p in parts]
    return gather(whole, [len(y) for _, y in both], trains, train_fraction, seed)


def pooled(data: Sequence[Any]) -> tuple[Any, Any]:
    """Examples and labels, training before test."""
    plain = [np.asarray(a) for a in data]
    for x, y in zip(plain[::2], plain[1::2], strict=True):
        if x.shape[:1] != y.shape[:1]:
            raise DataError(f"examples {x.shape} and labels {y.shape} are not equally many")
    try:
        return np.concatenate(plain[::2]), np.concatenate(plain[1::2])
    except ValueError:
        raise DataError(
            f"training examples {plain[0].shape} and test examples {plain[2].shape} must be alike"
        ) from None


def run(
    algorithm: str | Algorithm,
    federation: Federation,
    *,
    model: str | nn.Module | Callable[[], nn.Module] | None = None,
    rounds: int = 100,
    participation: float | int | Participation = 1.0,
    training: Training | None = None,
    seed: int = 0,
    head_depth: int | None = None,
    evaluate_every: int = 1,
    weights: Literal["samples", "uniform"] = "samples",
    buffers: Literal["local", "average"] = "local",
    new_client_rounds: int = 1,
    init: str | Path | None = None,
    faults: Faults | None = None,
    devices: Devices | None = None,
    engine: str = "serial",
    workers: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Result:
    """One run. ``participation`` is a share (float), a number (int) or a rule.

    ``model`` is a name, a module (its weights are the start) or a function that makes one.
    Without ``out`` the run lives in a temporary folder, as long as its result does. With
    ``resume``, an interrupted run in ``out`` goes on. ``weights`` says what a client counts in a
    mean, ``buffers`` whether BatchNorm's running statistics stay or travel. ``init`` is a checkpoint
    to begin with: of the same model, but for the head, which is new where its shape differs.
    Clients who join after training play ``new_client_rounds`` alone. ``faults`` says what goes
    wrong in a round, ``devices`` what the simulated clock counts.
    """
    how = named(algorithm)() if isinstance(algorithm, str) else algorithm
    construct(EngineSection, {"name": engine, "workers": workers}, "engine")
    said = {
        "head_depth": head_depth,
        "buffers": buffers,
        "init": None if init is None else str(init),
    }
    section = construct(ModelSection, said, "model")
    asked = {"every": evaluate_every, "new_client_rounds": new_client_rounds}
    measured = construct(EvaluationSection, asked, "evaluation")
    plan = Plan(
        how,
        warmed(modelled(model, federation, section.head_depth or how.head_depth), section.init),
        federation,
        Top(rounds=rounds).rounds,
        shared_by(participation, len(federation.clients)),
        training or Training(),
        Top(seed=seed).seed,
        measured.every,
        construct(AggregationSection, {"weights": weights}, "aggregation").weights,
        section.buffers,
        measured.new_client_rounds,
        faults or Faults(),
        devices or Devices(),
    )
    agree(plan.faults, plan.devices, plan.participation, federation.clients)
    temporary = None if out is not None else tempfile.mkdtemp(prefix="heterophony-")
    folder = RunFolder(Path(temporary or str(out)))
    try:
        if not (resume and folder.config.exists()):
            folder.create(described(plan, model, section.init))
        elif folder.reopen() != described(plan, model, section.init):
            raise FolderError(f"{out} holds a run with other settings; choose another out=")
        summary = execute(plan, folder, engine, workers, on_event)
    finally:
        folder.close()
    return Result(summary, plan, folder, temporary)


def modelled(
    model: str | nn.Module | Callable[[], nn.Module] | None,
    federation: Federation,
    depth: int | None,
) -> Callable[[], Net]:
    """Something that makes the net, whatever the user gave."""
    if model is None or isinstance(model, str):
        build = builder(model or suitable(federation.shape, federation.x.dtype))
        depth = depth or default_depth(build)
        return partial(build, federation.shape, federation.classes, depth)
    return partial(as_net, model)


def as_net(model: nn.Module | Callable[[], nn.Module]) -> Net:
    made = deepcopy(model) if isinstance(model, nn.Module) else model()
    return made if isinstance(made, Net) else split(made)


def shared_by(participation: float | int | Participation, clients: int) -> Participation:
    if isinstance(participation, bool):
        raise ConfigError("participation: must be a share, a number or a rule, not a truth value")
    if isinstance(participation, int):
        rule = Uniform(count=participation)
    elif isinstance(participation, float):
        rule = Uniform(rate=participation)
    else:
        return participation
    rule.size(clients)
    return rule


def described(plan: Plan, model: object, init: str | None = None) -> str:
    """The configuration of a run begun from Python: for people; its data are not in it."""
    federation, name = plan.federation, type(plan.algorithm).__name__.lower()
    net = model or suitable(federation.shape, federation.x.dtype)
    rule = plan.participation
    how = federation.transform
    sections: dict[str, dict[str, Any]] = {
        "data": {
            "name": federation.name,
            "clients": len(federation.clients),
            "transform": how and how.name,
            "frozen_augment": how and how.moves and how.moves.frozen,
        },
        "model": {
            "name": net if isinstance(net, str) else type(net).__name__,
            "buffers": plan.buffers,
            "init": init,
        },
        "algorithm": {"name": name, **asdict(plan.algorithm)},
        "local": asdict(plan.training),
        "aggregation": {"weights": plan.weights},
        "evaluation": {"every": plan.every, "new_client_rounds": plan.new_client_rounds},
        # the default repr holds an address, which another process does not have
        "library": {"participation": repr(rule) if is_dataclass(rule) else type(rule).__name__},
    }
    if plan.faults != Faults():
        sections["library"]["faults"] = repr(plan.faults)
    if plan.devices != Devices():
        sections["library"]["devices"] = repr(plan.devices)
    told = {k: {n: plain(v) for n, v in d.items() if v is not None} for k, d in sections.items()}
    return tomli_w.dumps({"seed": plan.seed, "rounds": plan.rounds, **told})


def plain(value: Any) -> bool | int | float | str:
    """A setting as TOML can hold it; one of a user's own types as text."""
    return value if isinstance(value, bool | int | float | str) else repr(value)


class Result:
    """A finished run: its numbers, its events, and its models ready to use."""

    def __init__(
        self,
        summary: Summary,
        plan: Plan,
        folder: RunFolder,
        temporary: str | None = None,
    ) -> None:
        self.summary, self.plan, self.folder = summary, plan, folder.path
        self._run = folder
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
        return list(self._run.read())

    def personal(self, client: str) -> Model:
        """The client's own model."""
        if client not in self.plan.federation.train:
            raise DataError(f"there is no client '{client}'")
        last = self.summary.rounds + (client in self.plan.federation.new)  # they came after it
        return self._model(client, self._run.place.memory(client, before=last))

    def generic(self) -> Model:
        """Everybody's model."""
        if not self.plan.algorithm.common:
            raise DataError(f"{self.summary.algorithm} has no common model")
        server = self._server
        return self._model(None, {"net": server.average | server.model})

    @property
    def _server(self) -> Any:
        return self._run.newest(self.plan.federation.sizes())

    def _model(self, client: str | None, memory: dict[str, Tensors] | Any) -> Model:
        plan, server = self.plan, self._server
        who = client or plan.federation.clients[0]
        received = plan.algorithm.send(server, client) if client is not None else Tensors()
        if client in plan.federation.new:
            received = settled(plan.algorithm, received, memory)
        job = Job("evaluate", server.t, who, received)
        made = plan.client(job, memory, self._run.place)
        if client is not None:
            with seeded(plan.seed, "tune", server.t, client):  # as when P was measured
                plan.algorithm.tune(made)
        return Model(plan.algorithm, made, generic=client is None)


class Model(nn.Module):
    """A trained model: give it examples as stored (bytes) or as scaled numbers; returns logits."""

    def __init__(self, algorithm: Algorithm, client: Client, generic: bool) -> None:
        super().__init__()
        self.net, self._scale = client.net, client.data.test.scale
        self._predict = partial(algorithm.generic if generic else algorithm.predict, client)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.as_tensor(x)
        return self._predict(self._scale(x) if x.dtype == torch.uint8 else x)
