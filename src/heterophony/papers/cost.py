"""What a cell would cost on this machine: its arithmetic, at the speed measured here.

Good to a factor of about two: it tells minutes from days before anything is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from ..config.config import Config
from ..config.reading import resolve_config
from ..data.sources import SOURCES, DatasetSize
from ..models import get_default_head_depth, get_model_builder
from ..tools.flops import count_forward_flops, count_training_flops, measure_sgemm_rate

TRAINING_EFFICIENCY = (
    0.45  # of a matrix product's speed that training reaches (`heterophony bench`)
)
SECONDS_PER_STEP = 0.0025  # seconds of a mini-batch beside its arithmetic
SECONDS_TO_START = 2.0  # seconds of a run beside its rounds
RELATIVE_WORK = {  # local work beside FedAvg's, as docs/comparison.md has it, for five epochs
    **dict.fromkeys(("apfl", "ditto", "feddecomp", "fedpac"), 2.0),
    **dict.fromkeys(("moon", "perfedavg", "pfedgate", "pfedpara"), 1.7),
    **dict.fromkeys(("fedproto", "pfakd", "pfedsd"), 1.5),
    "fedreg": 3.0,
    "pfedme": 4.4,
}


def estimate_seconds(raw: Mapping[str, Any], speed: float, cores: int) -> float:
    """Of one run: local training and evaluation, on all cores."""
    config = resolve_config(dict(raw))
    size = SOURCES[config.data.name].size
    clients, rounds = config.data.clients, config.top.rounds
    train, test = count_examples(config, size)
    asked = count_participants(config, clients)
    samples = train / clients * config.local.epochs
    if config.local.steps is not None:
        samples = config.local.steps * config.local.batch
    if config.algorithm.pooled:
        asked, samples = 1, train * config.local.epochs
    samples *= asked * RELATIVE_WORK.get(config.algorithm_name, 1.0)
    learning, testing = count_flops(str(config.model.name), size.shape, size.classes)
    evaluated = 2 * test / config.evaluation.every  # G and P
    arithmetic = (samples * learning + evaluated * testing) / (TRAINING_EFFICIENCY * speed)
    return (
        SECONDS_TO_START
        + rounds * (arithmetic + SECONDS_PER_STEP * samples / config.local.batch) / cores
    )


def count_examples(config: Config, size: DatasetSize) -> tuple[float, float]:
    """For training and for testing; some partitions take only so many."""
    rule, clients = config.data.partition, config.data.clients
    for train, test in (("train", "test"), ("train_windows", "test_windows")):
        if rule.get(train):
            return rule[train] * clients, rule[test] * clients
    share = config.data.train_fraction
    return size.examples * share, size.examples * (1 - share)


def count_participants(config: Config, clients: int) -> int:
    """How many clients train in a round."""
    return clients if config.algorithm.everybody else config.count_selected_clients(clients)


@cache
def count_flops(model: str, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
    """Of training with one example, and of testing with it."""
    build = get_model_builder(model)
    net = build(shape, classes, get_default_head_depth(build))
    return count_training_flops(net, shape), sum(count_forward_flops(net, shape))


def measure_speed() -> float:
    """Of one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return measure_sgemm_rate()
    finally:
        torch.set_num_threads(before)
