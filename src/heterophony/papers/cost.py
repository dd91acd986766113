"""Estimate the cost of a cell on this machine, and of deciding a claim.

The estimate is from the arithmetic and the measured speed, and good to a factor of about two: it
tells minutes from days before anything is run.
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
from ..tools.bench import count_forward_flops, count_training_flops, measure_sgemm_rate
from .claim_list import PaperClaim
from .scaling import MIN_SEEDS, keeps_dataset, shrink_to_medium
from .table import TableScale, index_cells

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
REFERENCE_SPEED = 90e9  # operations per second of one core: that of benchmarks/README.md
HOUR = 3600


def estimate_seconds(raw: Mapping[str, Any], speed: float, cores: int) -> float:
    """Estimate the seconds of one run, training and evaluation, on this number of cores."""
    config = resolve_config(dict(raw))
    size = SOURCES[config.data.name].size
    clients, rounds = config.data.clients, config.top.rounds
    train, test = count_examples(config, size)
    participants = count_participants(config, clients)
    samples = train / clients * config.training.epochs
    if config.training.steps is not None:
        samples = config.training.steps * config.training.batch
    if config.algorithm.pooled:
        participants, samples = 1, train * config.training.epochs
    samples *= participants * RELATIVE_WORK.get(config.algorithm_name, 1.0)
    training_flops, testing_flops = count_flops(str(config.model.name), size.shape, size.classes)
    evaluated = 2 * test / config.evaluation.every  # G and P
    flops = samples * training_flops + evaluated * testing_flops
    arithmetic = flops / (TRAINING_EFFICIENCY * speed)
    return (
        SECONDS_TO_START
        + rounds * (arithmetic + SECONDS_PER_STEP * samples / config.training.batch) / cores
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


# Claims -------------------------------------------------------------------------------------


def estimate_core_hours(claim: PaperClaim) -> dict[str, float | None]:
    """Estimate the core-hours of a claim by scale; None where it cannot be decided at that scale."""
    return {
        scale.value: estimate_at_scale(claim, scale)
        for scale in (TableScale.medium, TableScale.full)
    }


def estimate_at_scale(claim: PaperClaim, scale: TableScale) -> float | None:
    """Estimate the core-hours of all cells of a claim; None if one cannot be run at this scale."""
    cells = index_cells(claim.table.name)
    # what is not decided by comparisons is read from the whole table
    found = [cells[key] for key in claim.cells or cells]
    if not found or claim.command or any(cell.needs for cell in found):
        return None
    seeds = max(MIN_SEEDS, len(claim.table.measured.seeds))
    each = [estimate_cell(claim.table.name, cell.row, cell.column, scale) for cell in found]
    known = [seconds for seconds in each if seconds is not None]
    return seeds * sum(known) / HOUR if len(known) == len(each) else None


@cache
def estimate_cell(table: str, row: str, column: str, scale: TableScale) -> float | None:
    """Estimate the seconds of one run of a cell; None if other data stand in at this scale."""
    config = index_cells(table)[row, column].config
    if scale is TableScale.medium:
        small = shrink_to_medium(config, stand_ins="never")
        if not keeps_dataset(config["data"]["name"], small["data"]["name"]):
            return None
        config = small
    return estimate_seconds(config, REFERENCE_SPEED, 1)


def format_duration(seconds: float) -> str:
    """Format a duration: ``40 s``, ``12 min``, ``3 h``, ``5 days``."""
    for size, word in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{max(1, seconds):.0f} s"


def format_core_hours(hours: float | None) -> str:
    """Format core-hours: ``–`` if unknown, ``0.4``, ``12``, ``1,300``."""
    if hours is None:
        return "–"
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def explain_missing_cost(claim: PaperClaim) -> str:
    """Say why a claim has no cost at either scale."""
    if claim.command:
        return f"by `{claim.command}`"
    cells = index_cells(claim.table.name)
    needs = dict.fromkeys(c.needs for c in (cells[key] for key in claim.cells or cells) if c.needs)
    return f"needs {'; '.join(n for n in needs if n)}" if needs else ""
