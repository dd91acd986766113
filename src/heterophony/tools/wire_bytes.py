"""What an algorithm puts on the wire, measured: the bytes of one round on a reference network."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

from ..core.algorithm import Algorithm
from ..core.client import Training
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..data.federation import Federation
from ..engines.serial import Serial
from ..jobs.client_store import FolderClientStore
from ..jobs.plan import Plan
from ..models import get_default_head_depth
from ..models.convnet import convnet
from ..population.participation import Uniform
from ..run.loop import run_round

IMAGE_SHAPE, CLASS_COUNT = (3, 32, 32), 10  # ConvNet on CIFAR-10


def measure_wire_bytes(algorithm: Algorithm) -> dict[str, int]:
    """Bytes down to and up from one client that holds every class, in its second round.

    In the first one, what a server learns from its clients is not there yet.
    """
    depth = algorithm.head_depth or get_default_head_depth(convnet)
    plan = Plan(
        algorithm=algorithm,
        model=partial(convnet, IMAGE_SHAPE, CLASS_COUNT, depth),
        federation=make_reference_federation(),
        rounds=9,
        participation=Uniform(rate=1.0),
        training=Training(
            epochs=0, batch=CLASS_COUNT, momentum=0.0
        ),  # what is sent has its size anyway
        evaluate_every=9,
    )
    server = replace(
        plan.create_initial_server(), t=1, statistics=plan.buffer_names
    )  # nothing is measured then
    with tempfile.TemporaryDirectory(prefix="heterophony-") as folder:
        place = FolderClientStore(Path(folder) / "clients", Path(folder) / "scratch")
        with Serial(plan, place) as engine:
            for _ in range(2):
                server, events = run_round(plan, engine, server)
    return {way: int(events[-1][f"bytes_{way}"]) for way in ("down", "up")}


def measure_relative_to_fedavg(algorithm: Algorithm) -> dict[str, float]:
    """The same as parts of what FedAvg costs."""
    return {way: n / measure_fedavg()[way] for way, n in measure_wire_bytes(algorithm).items()}


@cache
def measure_fedavg() -> dict[str, int]:
    """FedAvg's."""
    return measure_wire_bytes(Algorithm())


def make_reference_federation() -> Federation:
    """One client with an example of every class; only shapes and labels matter."""
    rows = torch.arange(CLASS_COUNT)
    x, labels = (
        torch.zeros(CLASS_COUNT, *IMAGE_SHAPE, dtype=torch.uint8),
        tuple(map(str, range(CLASS_COUNT))),
    )
    return Federation(
        "reference", x, rows, BYTES_TO_PLUS_MINUS_ONE, labels, {"0": rows}, {"0": rows[:1]}
    )
