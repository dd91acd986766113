"""Estimate how long a cell takes on this machine, from its arithmetic and the measured speed.

The estimate is good to a factor of about two: it tells minutes from days before anything is run.
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

TRAINING_EFFICIENCY = 0.45  # speed of training over that of a matrix product (`heterophony bench`)
SECONDS_PER_STEP = 0.0025  # of a mini-batch, besides its arithmetic
SECONDS_TO_START = 2.0  # of a run, besides its rounds
RELATIVE_WORK = {  # time of local training over FedAvg's with five epochs, as measured on idle cores
    **dict.fromkeys(("apfl", "ditto", "feddecomp", "fedpac"), 2.0),
    **dict.fromkeys(("moon", "perfedavg", "pfedgate", "pfedpara"), 1.7),
    **dict.fromkeys(("fedproto", "pfakd", "pfedsd"), 1.5),
    "fedreg": 3.0,
    "pfedme": 4.4,
}


def estimate_seconds(raw: Mapping[str, Any], speed: float, cores: int) -> float:
    """Estimate the seconds of one run, training and evaluation, on so many cores."""
    config = resolve_config(dict(raw))
    size = SOURCES[config.data.name].size
    clients, rounds = config.data.clients, config.top.rounds
    train, test = count_examples(config, size)
    participants = count_participants(config, clients)
    samples = train / clients * config.local.epochs
    if config.local.steps is not None:
        samples = config.local.steps * config.local.batch
    if config.algorithm.pooled:
        participants, samples = 1, train * config.local.epochs
    samples *= participants * RELATIVE_WORK.get(config.algorithm_name, 1.0)
    training_flops, testing_flops = count_flops(str(config.model.name), size.shape, size.classes)
    evaluated = 2 * test / config.evaluation.every  # G and P
    flops = samples * training_flops + evaluated * testing_flops
    arithmetic = flops / (TRAINING_EFFICIENCY * speed)
    return (
        SECONDS_TO_START
        + rounds * (arithmetic + SECONDS_PER_STEP * samples / config.local.batch) / cores
    )


def count_examples(config: Config, size: DatasetSize) -> tuple[float, float]:
    """Count training and test examples of all clients; some partitions use only a part."""
    partition, clients = config.data.partition, config.data.clients
    for train, test in (("train", "test"), ("train_windows", "test_windows")):
        if partition.get(train):
            return partition[train] * clients, partition[test] * clients
    fraction = config.data.train_fraction
    return size.examples * fraction, size.examples * (1 - fraction)


def count_participants(config: Config, clients: int) -> int:
    """Count the clients that train in a round."""
    return clients if config.algorithm.everybody else config.count_selected_clients(clients)


@cache
def count_flops(model: str, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
    """Count the floating-point operations to train on one example, and to test on one."""
    build = get_model_builder(model)
    net = build(shape, classes, get_default_head_depth(build))
    return count_training_flops(net, shape), sum(count_forward_flops(net, shape))


def measure_speed() -> float:
    """Measure the speed of one core, in operations per second."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return measure_sgemm_rate()
    finally:
        torch.set_num_threads(before)
