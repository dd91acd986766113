"""Check the installation: every part is tried, not guessed."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

CheckResult = dict[str, Any]


def check_installation() -> list[CheckResult]:
    """Check every part; each result has name, ok, needed and about."""
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
        run_check("data fmnist", False, find_local_fmnist),
    ]


def run_check(name: str, needed: bool, check: Callable[[], str]) -> CheckResult:
    """Check one part; an exception means that it does not work, and its message says why."""
    try:
        return {"name": name, "ok": True, "needed": needed, "about": check()}
    except Exception as error:
        return {"name": name, "ok": False, "needed": needed, "about": str(error)}


def describe_python() -> str:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def describe_torch() -> str:
    """Name the version, and the device that ``engine.accelerator = "auto"`` means here."""
    from ..core.accelerator import count_devices, find_device

    kind = find_device("auto").type
    seen = f" ({count_devices(kind)} seen)" if kind != "cpu" else ""
    return f"{version('torch')}, device auto = {kind}{seen}"


def describe_machine() -> str:
    from ..engines.base import count_cores

    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{count_cores()} cores, {pages * size / 2**30:.1f} GiB of memory"


def check_disk_space() -> str:
    free = shutil.disk_usage(".").free / 2**30
    if free < 1:
        raise OSError(
            f"only {free:.2f} GiB free in this folder; runs store the state of every client"
        )
    return f"{free:.0f} GiB free in this folder"


def try_engine(name: str) -> str:
    """Run one real round."""
    from ..studies.federate import federate
    from ..studies.run import run

    federation = federate("digits", clients=2, seed=0)
    digest = run("fedavg", federation, rounds=1, engine=name, workers=2).model_sha256
    return f"ran one round, model {digest[:12]}"


def try_fast_training() -> str:
    """Say how plain passes of training run with the bits of autograd, for a small net and a larger one."""
    from ..runs.events import get_start
    from ..studies.federate import federate
    from ..studies.run import run

    federation, found = federate("digits", clients=2, seed=0), list[str]()
    for model in ("mlp", "digitsnet"):
        events = run("fedavg", federation, model=model, rounds=1, progress=False).events
        found.append(f"{model} {get_start(events).get('training', 'autograd')}")
    return f"with the bits of autograd: {', '.join(found)}"


def find_broker_program() -> str:
    """Find Mosquitto, through which devices communicate; the client is in the extra ``mqtt``."""
    if find_spec("paho") is None:
        raise ModuleNotFoundError("needed only for devices: pip install 'heterophony[mqtt]'")
    from ..boards.broker.process import find_mosquitto

    return str(find_mosquitto())


def try_data_set(name: str) -> str:
    from ..data.sources import read_source

    return f"{len(read_source(name).y)} examples"


def find_local_fmnist() -> str:
    from ..data.sources.idx import FMNIST_FILES

    if folder := FMNIST_FILES.find_local():
        return f"in {folder}"
    raise FileNotFoundError(
        "not on this machine: apt-get install dataset-fashion-mnist, or heterophony data fetch fmnist"
    )
