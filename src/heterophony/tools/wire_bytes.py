"""Measure the bytes that an algorithm sends and receives in one round on a reference network."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

from ..core.algorithm import Algorithm
from ..core.net import Net
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..core.training import Training
from ..data.federation import Federation
from ..engines.serial import Serial
from ..jobs.client_store import FolderClientStore
from ..jobs.plan import Plan
from ..models import get_default_head_depth
from ..models.convnet import convnet
from ..population.participation import Uniform
from ..runs.loop import run_round

IMAGE_SHAPE, CLASS_COUNT = (3, 32, 32), 10  # those of CIFAR-10


def measure_wire_bytes(algorithm: Algorithm) -> dict[str, int]:
    """Measure the bytes down to and up from one client that holds every class.

    They are those of its second round: before that, the server has nothing from its clients.
    """
    plan = Plan(
        algorithm=algorithm,
        model=partial(make_reference_net, algorithm),
        federation=make_reference_federation(),
        rounds=9,
        participation=Uniform(rate=1.0),
        # nothing is learned: tensors have their size anyway
        training=Training(epochs=1, batch=CLASS_COUNT, lr=0.0, momentum=0.0),
        evaluate_every=9,
    )
    # from round 1 on: round 0 would be evaluated
    server = replace(plan.create_initial_server(), t=1, statistics=plan.buffer_names)
    with tempfile.TemporaryDirectory(prefix="heterophony-") as folder:
        store = FolderClientStore(Path(folder) / "clients", Path(folder) / "scratch")
        with Serial(plan, store) as engine:
            for _ in range(2):
                server, _, done = run_round(plan, engine, server)
    return {"down": done["bytes_down"], "up": done["bytes_up"]}


def measure_relative_to_fedavg(algorithm: Algorithm) -> dict[str, float]:
    """Measure the bytes down and up, divided by FedAvg's."""
    return {way: n / measure_fedavg()[way] for way, n in measure_wire_bytes(algorithm).items()}


@cache
def measure_fedavg() -> dict[str, int]:
    return measure_wire_bytes(Algorithm())


def make_reference_net(algorithm: Algorithm) -> Net:
    """ConvNet for CIFAR-10, with the algorithm's own head depth where its paper says one."""
    depth = algorithm.head_depth or get_default_head_depth(convnet)
    return convnet(IMAGE_SHAPE, CLASS_COUNT, depth)


def make_reference_federation() -> Federation:
    """Make one client with an example of every class: only shapes and labels matter."""
    rows = torch.arange(CLASS_COUNT)
    x = torch.zeros(CLASS_COUNT, *IMAGE_SHAPE, dtype=torch.uint8)
    labels = tuple(map(str, range(CLASS_COUNT)))
    return Federation(
        "reference", x, rows, BYTES_TO_PLUS_MINUS_ONE, labels, {"0": rows}, {"0": rows[:1]}
    )
