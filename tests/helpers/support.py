"""Shared helpers of the tests: small federations and nets, short runs, recorded traffic."""

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
    """Return the first few hundred digits, divided unevenly; rounds on them take milliseconds."""
    from heterophony.data.sources import read_source

    whole = read_source("digits")
    part = (whole.x[:examples] * 15, whole.y[:examples])  # bytes from 0 to 240
    return hp.federate(part, clients=clients, partition=hp.Dirichlet(alpha, min_size=8), seed=1)


def played(
    algorithm: str | hp.Algorithm, federation: hp.Federation | None = None, **how
) -> hp.Result:
    """Execute a short run, of three rounds unless ``how`` says otherwise; return its result."""
    settings = {"model": "mlp", "rounds": 3, "participation": 0.5, "training": QUICK, **how}
    return hp.run(algorithm, federation or digits(), **settings)


# Convolutions keep their weights in another memory format within one process than after a file:
# sums that follow the memory's order have other bits there, and linear layers cannot show it.
CALM = {"model": "digitsnet"}


@cache
def calm(name: str) -> hp.Result:
    """Return the undisturbed short run of an algorithm, which disturbed runs must equal."""
    return played(name, **CALM)


@dataclass(frozen=True)
class Fatal:
    """A task that kills the first worker that executes it."""

    task: Callable[..., Reply]
    trace: Path  # exists afterwards

    def __call__(self, *of: object) -> Reply:
        if not self.trace.exists():
            self.trace.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.task(*of)


def model(result: hp.Result) -> hp.Tensors:
    """Return the server's tensors at the end of a run."""
    return result._server.model


def memory(result: hp.Result, client: str) -> dict[str, hp.Tensors]:
    """Return the memory of a client at the end of a run."""
    return dict(result._run_folder.client_store.load_memory(client, before=result.summary.rounds))


def same(a: hp.Tensors, b: hp.Tensors) -> bool:
    """Return True if two groups of tensors have the same names and bits."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def identical(a: hp.Result, b: hp.Result) -> bool:
    """Return True if two runs have the same model hash and the same G and P in every evaluation."""
    counts = [
        [(e["t"], e["G"], e["P"]) for e in r.events if e["event"] == "evaluation"] for r in (a, b)
    ]
    return a.model_sha256 == b.model_sha256 and counts[0] == counts[1]


def untimed(result: hp.Result) -> list[Event]:
    """Return all events without their durations."""
    return [{k: v for k, v in e.items() if k not in ("seconds", "work")} for e in result.events]


class Recorder(Serial):
    """A serial engine that records all jobs and replies."""

    log: list[tuple[Job, Reply]]

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        self.log = getattr(self, "log", [])
        for job in jobs:
            (reply,) = super().run([job])
            self.log.append((job, reply))
            yield reply


class WithBatchNorm(nn.Sequential):
    """A small network with BatchNorm: it has buffers, and cannot train on a batch of one example."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
        )


def net_with_batch_norm() -> hp.Net:
    return hp.split(WithBatchNorm(), 4)


def whole_base() -> hp.Net:
    """Build a net with head depth 0: everything is in the base."""
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    return hp.Net(base, nn.Identity())


def blobs(
    sizes: Sequence[int], classes: int = 3, features: int = 5
) -> list[tuple[np.ndarray, ...]]:
    """Return arrays (x, y) of features for each client, always the same."""
    draw = np.random.default_rng(0)
    return [
        (draw.normal(size=(n, features)).astype(np.float32), np.arange(n) % classes) for n in sizes
    ]


def two_kinds(clients: int = 6) -> hp.Federation:
    """Return clients that disagree: half of them have the opposite labels of the others."""
    draw, parts = np.random.default_rng(0), []
    for i in range(clients):
        x = draw.normal(size=(60, 4)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int)
        y = 1 - y if i % 2 else y
        parts.append((x[:40], y[:40], x[40:], y[40:]))
    return hp.federate(parts)


def counts(result: hp.Result, what: str) -> list[list[int] | None]:
    """Return the correct predictions per client, evaluation by evaluation."""
    return [e[what] for e in result.events if e["event"] == "evaluation"]


def replies(monkeypatch, algorithm, *args, **how) -> tuple[hp.Result, list[list[Reply]]]:
    """Execute a short run; return its result, and the clients' replies in each round."""
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
    """Return the algorithm with ``check(client, fit, loss, **how)`` called in place of ``client.fit``."""

    class Watched(algorithm):
        def local(self, client):
            fit = client.fit
            client.fit = lambda loss=None, **how: check(
                client, fit, loss or client.compute_net_loss, **how
            )
            return super().local(client)

    return Watched(**settings)


def keep_order(patch) -> None:
    """Make ``fit`` use the examples in their order, so that a test can build the same batches."""
    from heterophony.core import client

    def list_epochs(net, n, how, epochs, steps):
        return [torch.arange(n)] * how.epochs

    patch.setattr(client, "iterate_epochs", list_epochs)


class Turns:
    """Participation that selects clients by position, as given for each round."""

    def __init__(self, *turns: Sequence[int]) -> None:
        self.turns = turns

    def chosen(self, t: int, clients: Sequence[str], seed: int) -> list[str]:
        return [clients[i] for i in self.turns[t]]


def wire(algorithm: hp.Algorithm, rounds: int = 2, depth: int = 1) -> list[tuple[int, int]]:
    """Return how many numbers one client receives and sends in each round: ConvNet on CIFAR-10 shapes."""
    x = np.random.default_rng(0).random((10, 3, 32, 32), dtype=np.float32)
    federation = hp.federate([(x, np.arange(10), x, np.arange(10))])
    how = hp.Training(epochs=0, steps=2, batch=5, lr=0.01)
    result = played(algorithm, federation, model="convnet", rounds=rounds, participation=1.0,
                    training=how, head_depth=depth, evaluate_every=rounds)  # fmt: skip
    events = [e for e in result.events if e["event"] == "round"]
    return [(e["bytes_down"] // 4, e["bytes_up"] // 4) for e in events]


def client_after(result: hp.Result, client: str = "0", kept: dict | None = None) -> hp.Client:
    """Build a client after a run, with the tensors that the server would send now and its own memory."""
    plan, server = result.plan, result._server
    sent = plan.algorithm.send(server, client)
    job = Job(kind="evaluate", t=server.t, client=client, tensors=sent)
    return plan.build_client(job, memory(result, client) if kept is None else kept, None)
