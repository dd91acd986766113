"""Check a GPU in a minute: the same bits for any number of workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..core.accelerator import find_device
from ..core.errors import ConfigError
from ..core.training import Training
from ..data.federation import Federation
from ..data.partitioning import partition_source
from ..data.partitions import IID
from ..studies.run import run
from .bench import make_random_images

ALGORITHMS = ("fedavg", "fedreg", "scaffold")  # one head, two heads, and control variates
WORKERS = (1, 2, 4)
IMAGES, CLIENTS, ROUNDS = 2000, 8, 2


@dataclass(frozen=True)
class Trial:
    """One short run: device, workers, hash, seconds, and peak memory."""

    algorithm: str
    device: str
    workers: int
    model_sha256: str
    seconds: float
    accuracy: float
    used_bytes: int | None  # on the GPU, by all workers; None where torch cannot tell


def check_gpu(device: str, say: Callable[[str], None]) -> list[Trial]:
    """Run every algorithm on the CPU and, with 1, 2 and 4 workers, on the device."""
    if find_device(device).type == "cpu":
        raise ConfigError(
            f"doctor --gpu: torch {torch.__version__} sees no GPU here; nothing to check"
        )
    federation = partition_source(make_random_images(IMAGES), CLIENTS, IID(), 0.75, 0)
    trials = []
    for algorithm in ALGORITHMS:
        for where, workers in (("cpu", 2), *((device, n) for n in WORKERS)):
            say(f"{algorithm} on {where}, {workers} worker{'s' * (workers > 1)}")
            trials.append(try_run(algorithm, federation, where, workers))
    return trials


def try_run(algorithm: str, federation: Federation, device: str, workers: int) -> Trial:
    lowest: list[int] = []
    start, before = time.perf_counter(), read_free_bytes(device)
    result = run(
        algorithm,
        federation,
        model="convnet",
        rounds=ROUNDS,
        participation=1.0,
        training=Training(epochs=1),
        engine="pool",
        workers=workers,
        accelerator=device,
        progress=False,
        on_event=lambda event: lowest.extend(filter(None, [read_free_bytes(device)])),
    )
    return Trial(
        algorithm,
        device,
        workers,
        result.model_sha256,
        time.perf_counter() - start,
        result.P.last,
        before - min(lowest) if before and lowest else None,
    )


def read_free_bytes(device: str) -> int | None:
    """Read the free memory of a CUDA device, which its workers use from processes of their own."""
    where = find_device(device)
    return int(torch.cuda.mem_get_info(where)[0]) if where.type == "cuda" else None


def find_differences(trials: list[Trial]) -> list[str]:
    """Describe each algorithm whose hash on the device depends on the number of workers."""
    found = []
    for algorithm in dict.fromkeys(t.algorithm for t in trials):
        there = [t for t in trials if t.algorithm == algorithm and t.device != "cpu"]
        if len({t.model_sha256 for t in there}) > 1:
            hashes = ", ".join(f"{t.workers}: {t.model_sha256[:12]}" for t in there)
            found.append(f"{algorithm} differs by the number of workers ({hashes})")
    return found


def describe_setup(device: str) -> dict[str, Any]:
    """Describe what a report of a difference must name."""
    where = find_device(device)
    cuda = where.type == "cuda"
    return {
        "torch": torch.__version__,
        "device": str(where),
        "name": torch.cuda.get_device_name(where) if cuda else where.type,
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
    }
