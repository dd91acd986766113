"""A dry run: the reply of a client with blank examples, which shows what an algorithm would send."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..core.algorithm import Reply
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..core.tensors import Tensors
from ..data.federation import Federation
from ..population.attacks import Attack
from .client_store import FolderClientStore
from .plan import Job, Plan
from .work import train

DUMMY_CLIENT = "0"


def make_blank_targets(plan: Plan) -> Tensor:
    """Make targets of blank examples: of a classification, one example of each class."""
    if plan.task.name == "classification":
        return torch.arange(plan.federation.classes)
    y = plan.federation.y
    return torch.zeros(2, *y.shape[1:], dtype=y.dtype)


def make_dry_plan(plan: Plan, y: Tensor, batch: int | None = None) -> Plan:
    """Make the plan of a single client with blank examples of these targets."""
    rows = {DUMMY_CLIENT: torch.arange(len(y))}
    x = torch.zeros(len(y), *plan.federation.shape, dtype=plan.federation.x.dtype)
    dummy = Federation(
        "dummy",
        x,
        y,
        BYTES_TO_PLUS_MINUS_ONE,
        plan.federation.labels,
        rows,
        rows,
        task=plan.federation.task,
    )
    training = replace(plan.training, epochs=1, steps=None, batch=batch or len(y))
    return replace(plan, federation=dummy, training=training, attack=Attack())


def simulate_reply(plan: Plan, y: Tensor, batch: int | None = None) -> tuple[Reply, Tensors]:
    """Return the reply of a client with such examples to its first job, and what it was sent."""
    dry_plan = make_dry_plan(plan, y, batch)
    with tempfile.TemporaryDirectory(prefix="heterophony-") as folder, torch.random.fork_rng():
        store = FolderClientStore(Path(folder) / "clients", Path(folder) / "scratch")
        sent = dry_plan.algorithm.send(dry_plan.create_initial_server(), DUMMY_CLIENT)
        job = Job(kind="train", t=0, client=DUMMY_CLIENT, tensors=sent)
        return train(dry_plan, job, {}, store)[0], sent
