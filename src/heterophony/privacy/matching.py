"""Match algorithms by loss: find the rounds after which they have learned equally much.

After the same number of rounds one algorithm has often learned more than another, and a network that
has learned more is mostly harder to attack. So attacks can be compared at the same loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import torch

from ..jobs.work import train_locally
from .snapshots import Snapshots

Record = dict[str, Any]
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


def match_rounds(losses: Mapping[int, float], levels: Iterable[float]) -> dict[float, int]:
    """Return for each level the first round whose loss is at most that; none for levels not reached."""
    found = {
        level: next((t for t in sorted(losses) if losses[t] <= level), None) for level in levels
    }
    return {level: t for level, t in found.items() if t is not None}


def collect_losses(records: Iterable[Record]) -> dict[str, dict[int, float]]:
    """Collect the recorded losses of the algorithms that send parameters, by round."""
    out: dict[str, dict[int, float]] = {}
    for r in records:
        if lists_sent_parameters(r):
            out.setdefault(r["algorithm"], {})
        elif r["event"] == "loss":
            out.setdefault(r["algorithm"], {})[r["round"]] = r["loss"]
    return out


def lists_sent_parameters(record: Record) -> bool:
    """Tell whether a record lists parameters that an algorithm sends."""
    return bool(record["event"] == "visible" and record["names"])


def collect_matched_rounds(records: Iterable[Record]) -> dict[str, dict[float, int]]:
    """Collect the rounds that reach each level, by algorithm; empty if no losses were asked for."""
    found = list(records)
    levels = found[0]["victims"].get("losses", ())
    if not levels:
        return {}
    return {name: match_rounds(losses, levels) for name, losses in collect_losses(found).items()}


def list_common_levels(matched: Mapping[str, Mapping[float, int]]) -> list[float]:
    """List the levels that all algorithms reach, highest first: only they can be compared."""
    reached = [set(rounds) for rounds in matched.values()]
    return sorted(set.intersection(*reached), reverse=True) if reached else []
