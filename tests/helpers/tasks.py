"""Small federations of every task, and runs on them."""

from __future__ import annotations

from functools import cache

import numpy as np

import heterophony as hp

OTHER_TASKS = ("regression", "multilabel", "sequence")
SMALL = hp.Training(epochs=1, batch=10, lr=0.05)


@cache
def make_arrays(task: str) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 6)).astype(np.float32)
    if task == "regression":
        return x, x @ draw.normal(size=(6, 2))
    if task == "multilabel":
        return x, (x @ draw.normal(size=(6, 3)) > 0).astype(int)
    tokens = (np.arange(120)[:, None] * 3 + np.arange(9)) % 11
    return tokens[:, :-1], tokens[:, 1:]


@cache
def federated(task: str) -> hp.Federation:
    return hp.federate(make_arrays(task), task=task, clients=4, partition=hp.Dirichlet(1.0))


def run_task(algorithm: str | hp.Algorithm, task: str, **how) -> hp.Result:
    settings = {"rounds": 2, "participation": 0.5, "training": SMALL, "progress": False, **how}
    return hp.run(algorithm, federated(task), **settings)
