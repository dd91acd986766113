"""Measure the training loss by which algorithms are matched: that of the victims' own predictions."""

from __future__ import annotations

from statistics import fmean

import torch

from ..jobs.work import train_locally
from .snapshots import Snapshots

EVALUATION_BATCH = 250  # images at a time


def measure_loss(snapshots: Snapshots, t: int) -> float:
    """Measure the loss that the victims reach in the round after a snapshot: the mean over them."""
    return fmean(measure_client_loss(snapshots, t, client) for client in snapshots.clients)


def measure_client_loss(snapshots: Snapshots, t: int, name: str) -> float:
    """Train a client for one round; return the loss of its predictions on its training examples.

    Algorithms minimise different sums in training. The loss of predictions is the same for all.
    """
    plan, job, store = snapshots.plan, snapshots.make_job(t, name), snapshots.client_store
    client = plan.build_client(job, store.load_memory(name, before=t), store)
    train_locally(plan, job, client)
    client.net.eval()
    samples, total = client.data.train, 0.0
    with torch.no_grad():
        for rows in torch.arange(len(samples)).split(EVALUATION_BATCH):
            x, y = samples.batch(rows)
            total += len(rows) * float(client.loss(plan.algorithm.predict(client, x), y))
    return total / max(1, len(samples))
