"""What several tests need: a small federation, a run in memory's time, recorded traffic."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

import heterophony as hp
from heterophony.core.algorithm import Reply
from heterophony.engines.base import Serial
from heterophony.jobs.plan import Job
from heterophony.runs.events import Event

QUICK = hp.Training(epochs=1, batch=16, lr=0.05)


@cache
def digits(clients: int = 6, examples: int = 420, alpha: float = 0.3) -> hp.Federation:
    """The first few hundred digits, dealt unevenly; small enough for rounds in milliseconds."""
    from heterophony.data.sources import read_source

    whole = read_source("digits")
    part = (whole.x[:examples] * 15, whole.y[:examples])  # bytes from 0 to 240
    return hp.federate(part, clients=clients, partition=hp.Dirichlet(alpha, min_size=8), seed=1)


def played(
    algorithm: str | hp.Algorithm, federation: hp.Federation | None = None, **how
) -> hp.Result:
    """A short run."""
    settings = {"model": "mlp", "rounds": 3, "participation": 0.5, "training": QUICK, **how}
    return hp.run(algorithm, federation or digits(), **settings)


# Convolutions keep their weights in another memory format within one process than after a file:
# sums that follow the memory's order have other bits there, and linear layers cannot show it.
CALM = {"model": "digitsnet"}


@cache
def calm(name: str) -> hp.Result:
    """The short run of an algorithm as it is, undisturbed: what others must be equal to."""
    return played(name, **CALM)


@dataclass(frozen=True)
class Fatal:
    """A task that kills the first worker who does it."""

    task: Callable[..., Reply]
    trace: Path  # is there afterwards

    def __call__(self, *of: object) -> Reply:
        if not self.trace.exists():
            self.trace.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.task(*of)


def model(result: hp.Result) -> hp.Tensors:
    """The server's tensors at the end."""
    return result._server.model


def memory(result: hp.Result, client: str) -> dict[str, hp.Tensors]:
    """What the client keeps at the end."""
    return dict(result._run_folder.client_store.load_memory(client, before=result.summary.rounds))


def same(a: hp.Tensors, b: hp.Tensors) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def identical(a: hp.Result, b: hp.Result) -> bool:
    """The same run: server, clients' memories, and every count ever measured."""
    counts = [
        [(e["t"], e["G"], e["P"]) for e in r.events if e["event"] == "evaluation"] for r in (a, b)
    ]
    return a.model_sha256 == b.model_sha256 and counts[0] == counts[1]


def untimed(result: hp.Result) -> list[Event]:
    """Every event, but for how long it took."""
    return [{k: v for k, v in e.items() if k not in ("seconds", "work")} for e in result.events]


class Recorder(Serial):
    """A serial engine that keeps all that passes through it."""

    log: list[tuple[Job, Reply]]

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        self.log = getattr(self, "log", [])
        for job in jobs:
            (reply,) = super().run([job])
            self.log.append((job, reply))
            yield reply


class WithBatchNorm(nn.Sequential):
    """A small network with normalisation: buffers, and batches that must not be of one."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
        )


def net_with_batch_norm() -> hp.Net:
    return hp.split(WithBatchNorm(), 4)


def whole_base() -> hp.Net:
    """Head depth 0: everything is base."""
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    return hp.Net(base, nn.Identity())


def blobs(
    sizes: Sequence[int], classes: int = 3, features: int = 5
) -> list[tuple[np.ndarray, ...]]:
    """Per-client arrays (x, y) of features, deterministic."""
    draw = np.random.default_rng(0)
    return [
        (draw.normal(size=(n, features)).astype(np.float32), np.arange(n) % classes) for n in sizes
    ]


def two_kinds(clients: int = 6) -> hp.Federation:
    """Clients that disagree: half of them have the labels of the others, turned around."""
    draw, parts = np.random.default_rng(0), []
    for i in range(clients):
        x = draw.normal(size=(60, 4)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int)
        y = 1 - y if i % 2 else y
        parts.append((x[:40], y[:40], x[40:], y[40:]))
    return hp.federate(parts)


def counts(result: hp.Result, what: str) -> list[list[int] | None]:
    """Right answers per client, evaluation by evaluation."""
    return [e[what] for e in result.events if e["event"] == "evaluation"]


def replies(monkeypatch, algorithm, *args, **how) -> tuple[hp.Result, list[list[Reply]]]:
    """A short run, and what the clients sent up in each of its rounds."""
    from heterophony.engines import base

    kept: list[Recorder] = []

    def record(plan, place, *_):
        kept.append(Recorder(plan, place))
        return kept[0]

    with monkeypatch.context() as patch:
        patch.setattr(base, "Serial", record)
        result = played(algorithm, *args, **how)
    trained = [(job.t, reply) for job, reply in kept[0].log if job.kind == "train"]
    order = {c: i for i, c in enumerate(result.plan.federation.clients)}
    rounds = [[r for at, r in trained if at == t] for t in range(result.summary.rounds)]
    return result, [sorted(r, key=lambda reply: order[reply.client]) for r in rounds]


def watching(algorithm: type[hp.Algorithm], check, **settings) -> hp.Algorithm:
    """The algorithm, calling ``check(client, fit, loss, **how)`` in place of each ``client.fit``."""

    class Watched(algorithm):
        def local(self, client):
            fit = client.fit
            client.fit = lambda loss=None, **how: check(
                client, fit, loss or client.compute_net_loss, **how
            )
            return super().local(client)

    return Watched(**settings)


def keep_order(patch) -> None:
    """Let ``fit`` take the examples in their order, so that a test can take the same batches."""
    from heterophony.core import client

    def list_epochs(net, n, how, epochs, steps):
        return [torch.arange(n)] * how.epochs

    patch.setattr(client, "iterate_epochs", list_epochs)


class Turns:
    """Who takes part, round by round, by position."""

    def __init__(self, *turns: Sequence[int]) -> None:
        self.turns = turns

    def chosen(self, t: int, clients: Sequence[str], seed: int) -> list[str]:
        return [clients[i] for i in self.turns[t]]


def wire(algorithm: hp.Algorithm, rounds: int = 2, depth: int = 1) -> list[tuple[int, int]]:
    """Numbers that go down and up in each round of one client: ConvNet on CIFAR-10 shapes."""
    x = np.random.default_rng(0).random((10, 3, 32, 32), dtype=np.float32)
    federation = hp.federate([(x, np.arange(10), x, np.arange(10))])
    how = hp.Training(epochs=0, steps=2, batch=5, lr=0.01)
    result = played(algorithm, federation, model="convnet", rounds=rounds, participation=1.0,
                    training=how, head_depth=depth, evaluate_every=rounds)  # fmt: skip
    events = [e for e in result.events if e["event"] == "round"]
    return [(e["bytes_down"] // 4, e["bytes_up"] // 4) for e in events]


def client_after(result: hp.Result, client: str = "0", kept: dict | None = None) -> hp.Client:
    """A client after a run, with what the server would send it now and what it keeps."""
    plan, server = result.plan, result._server
    sent = plan.algorithm.send(server, client)
    job = Job(kind="evaluate", t=server.t, client=client, tensors=sent)
    return plan.build_client(job, memory(result, client) if kept is None else kept, None)
