"""What an algorithm puts on the wire, measured: the bytes of one round on a reference network."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

from ..core.algorithm import Algorithm
from ..core.client import Training
from ..core.samples import HALF
from ..data.federation import Federation
from ..engines.serial import Serial
from ..jobs.client_store import Place
from ..jobs.plan import Plan
from ..models import default_depth
from ..models.convnet import convnet
from ..population.participation import Uniform
from ..run.loop import round_of

SHAPE, CLASSES = (3, 32, 32), 10  # ConvNet on CIFAR-10


def traffic(algorithm: Algorithm) -> dict[str, int]:
    """Bytes down to and up from one client that holds every class, in its second round.

    In the first one, what a server learns from its clients is not there yet.
    """
    depth = algorithm.head_depth or default_depth(convnet)
    plan = Plan(
        algorithm,
        partial(convnet, SHAPE, CLASSES, depth),
        reference(),
        rounds=9,
        participation=Uniform(rate=1.0),
        training=Training(
            epochs=0, batch=CLASSES, momentum=0.0
        ),  # what is sent has its size anyway
        every=9,
    )
    server = replace(plan.start(), t=1, statistics=plan.statistics)  # nothing is measured then
    with tempfile.TemporaryDirectory(prefix="heterophony-") as folder:
        place = Place(Path(folder) / "clients", Path(folder) / "scratch")
        with Serial(plan, place) as engine:
            for _ in range(2):
                server, events = round_of(plan, engine, server)
    return {way: int(events[-1][f"bytes_{way}"]) for way in ("down", "up")}


def relative(algorithm: Algorithm) -> dict[str, float]:
    """The same as parts of what FedAvg costs."""
    return {way: n / plain()[way] for way, n in traffic(algorithm).items()}


@cache
def plain() -> dict[str, int]:
    """FedAvg's."""
    return traffic(Algorithm())


def reference() -> Federation:
    """One client with an example of every class; only shapes and labels matter."""
    rows = torch.arange(CLASSES)
    x, labels = torch.zeros(CLASSES, *SHAPE, dtype=torch.uint8), tuple(map(str, range(CLASSES)))
    return Federation("reference", x, rows, HALF, labels, {"0": rows}, {"0": rows[:1]})
