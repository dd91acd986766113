"""Check the installation by trying every part, and compare a GPU with the CPU."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch

from ..core.accelerator import count_devices, find_device
from ..core.errors import ConfigError
from ..core.training import Training
from ..data.federation import Federation
from ..data.partitioning import partition_source
from ..data.partitions import IID, Terms
from ..data.sources import read_source
from ..data.sources.image_sets import FMNIST_FILES
from ..engines.base import count_cores
from ..runs.events import get_start
from ..studies.federate import federate
from ..studies.run import run
from .bench import make_random_images

CheckResult = dict[str, Any]


def check_installation() -> list[CheckResult]:
    """Check every part of the installation; return whether each part works and whether it is needed."""
    return [
        run_check("python", True, describe_python),
        run_check("torch", True, describe_torch),
        run_check("machine", True, describe_machine),
        run_check("disk", True, check_disk_space),
        run_check("engine serial", True, lambda: try_engine("serial")),
        run_check("engine pool", True, lambda: try_engine("pool")),
        run_check("engine ray", False, lambda: try_engine("ray")),
        run_check("training", True, try_fast_training),
        run_check("broker", False, find_broker_program),
        run_check("data digits", True, lambda: try_data_set("digits")),
        run_check("data fmnist", False, check_local_fmnist),
    ]


def run_check(name: str, needed: bool, check: Callable[[], str]) -> CheckResult:
    """Check one part of the installation; the message of an exception says why it does not work."""
    try:
        return {"name": name, "ok": True, "needed": needed, "about": check()}
    except Exception as error:
        return {"name": name, "ok": False, "needed": needed, "about": str(error)}


def describe_python() -> str:
    """Describe Python: its version, and the system on which it runs."""
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def describe_torch() -> str:
    """Describe torch: its version, and the device that ``engine.accelerator = "auto"`` selects here."""
    kind = find_device("auto").type
    seen = f" ({count_devices(kind)} seen)" if kind != "cpu" else ""
    return f"{version('torch')}, device auto = {kind}{seen}"


def describe_machine() -> str:
    """Describe this machine: the cores that a run may use, and its memory."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{count_cores()} cores, {pages * size / 2**30:.1f} GiB of memory"


def check_disk_space() -> str:
    """Describe the free space in the current folder; raise OSError if there is too little."""
    free = shutil.disk_usage(".").free / 2**30
    if free < 1:
        raise OSError(
            f"only {free:.2f} GiB free in this folder; runs store the state of every client"
        )
    return f"{free:.0f} GiB free in this folder"


def try_engine(name: str) -> str:
    """Check an engine by running one real round on it."""
    federation = federate("digits", clients=2, seed=0)
    digest = run("fedavg", federation, rounds=1, engine=name, workers=2).model_sha256
    return f"ran one round, model {digest[:12]}"


def try_fast_training() -> str:
    """Describe how a small and a larger net are trained here: the fastest way with autograd's bits."""
    federation, found = federate("digits", clients=2, seed=0), list[str]()
    for model in ("mlp", "digitsnet"):
        events = run("fedavg", federation, model=model, rounds=1, progress=False).events
        found.append(f"{model} {get_start(events).get('training', 'autograd')}")
    return f"same bits as autograd: {', '.join(found)}"


def find_broker_program() -> str:
    """Return the path of Mosquitto, the broker of runs on boards; raise an error if it or its client is missing."""
    if find_spec("paho") is None:
        raise ModuleNotFoundError("needed only for boards: pip install 'heterophony[mqtt]'")
    from ..boards.broker.process import find_mosquitto

    return str(find_mosquitto())


def try_data_set(name: str) -> str:
    """Read a data set, and describe its size."""
    return f"{len(read_source(name).y)} examples"


def check_local_fmnist() -> str:
    """Describe where Fashion-MNIST is; raise FileNotFoundError if it is not on this machine."""
    if folder := FMNIST_FILES.find_local():
        return f"in {folder}"
    raise FileNotFoundError(
        "not on this machine: apt-get install dataset-fashion-mnist, or heterophony data fetch fmnist"
    )


ALGORITHMS = ("fedavg", "fedreg", "scaffold")  # one head, two heads, and control variates
WORKERS = (1, 2, 4)
IMAGES, CLIENTS, ROUNDS = 2000, 8, 2


@dataclass(frozen=True)
class CheckedRun:
    """The result of one short run on the CPU or GPU: model hash, time and memory."""

    algorithm: str
    device: str
    workers: int
    model_sha256: str
    seconds: float
    accuracy: float
    used_bytes: int | None  # on the GPU by all workers; None if it cannot be measured


def check_gpu(device: str, say: Callable[[str], None]) -> list[CheckedRun]:
    """Run each of ``ALGORITHMS`` on the CPU, and on the GPU ``device`` with 1, 2 and 4 workers."""
    if find_device(device).type == "cpu":
        raise ConfigError(
            f"doctor --gpu: torch {torch.__version__} sees no GPU here; nothing to check"
        )
    federation = partition_source(make_random_images(IMAGES), IID(), Terms(CLIENTS))
    runs = []
    for algorithm in ALGORITHMS:
        for where, workers in (("cpu", 2), *((device, n) for n in WORKERS)):
            say(f"{algorithm} on {where}, {workers} worker{'s' * (workers > 1)}")
            runs.append(try_run(algorithm, federation, where, workers))
    return runs


def try_run(algorithm: str, federation: Federation, device: str, workers: int) -> CheckedRun:
    """Run an algorithm on a device; return its hash, its time and the memory that it used."""
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
    return CheckedRun(
        algorithm,
        device,
        workers,
        result.model_sha256,
        time.perf_counter() - start,
        result.P.last,
        before - min(lowest) if before and lowest else None,
    )


def read_free_bytes(device: str) -> int | None:
    """Return the free memory of a CUDA device in bytes; None for other devices."""
    where = find_device(device)
    return int(torch.cuda.mem_get_info(where)[0]) if where.type == "cuda" else None


def find_differences(runs: list[CheckedRun]) -> list[str]:
    """Describe each algorithm whose model hash on the GPU depends on the number of workers."""
    found = []
    for algorithm in dict.fromkeys(t.algorithm for t in runs):
        there = [t for t in runs if t.algorithm == algorithm and t.device != "cpu"]
        if len({t.model_sha256 for t in there}) > 1:
            hashes = ", ".join(f"{t.workers}: {t.model_sha256[:12]}" for t in there)
            found.append(f"{algorithm} differs by the number of workers ({hashes})")
    return found


def describe_gpu_setup(device: str) -> dict[str, Any]:
    """Return the facts about torch and the GPU that a bug report about different bits must include."""
    where = find_device(device)
    cuda = where.type == "cuda"
    return {
        "torch": torch.__version__,
        "device": str(where),
        "name": torch.cuda.get_device_name(where) if cuda else where.type,
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
    }
