"""Is everything here to run? Each part is tried, not guessed."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

Check = dict[str, Any]


def examine() -> list[Check]:
    """All parts: name, ok, needed, and a word about it."""
    return [
        check("python", True, python),
        check("torch", True, lambda: f"{version('torch')}, CPU"),
        check("machine", True, machine),
        check("disk", True, disk),
        check("engine serial", True, lambda: engine("serial")),
        check("engine pool", True, lambda: engine("pool")),
        check("engine ray", False, lambda: engine("ray")),
        check("broker", False, broker),
        check("data digits", True, lambda: data("digits")),
        check("data fmnist", False, local_fmnist),
    ]


def check(name: str, needed: bool, look: Callable[[], str]) -> Check:
    """One part; whatever goes wrong is its answer."""
    try:
        return {"name": name, "ok": True, "needed": needed, "about": look()}
    except Exception as error:
        return {"name": name, "ok": False, "needed": needed, "about": str(error)}


def python() -> str:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def machine() -> str:
    from ..engines.base import cores

    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{cores()} cores, {pages * size / 2**30:.1f} GiB of memory"


def disk() -> str:
    free = shutil.disk_usage(".").free / 2**30
    if free < 1:
        raise OSError(f"only {free:.2f} GiB free here; runs keep every client's own state")
    return f"{free:.0f} GiB free here"


def engine(name: str) -> str:
    """A real run of one round."""
    from ..experiments.federate import federate
    from ..experiments.run import run

    federation = federate("digits", clients=2, seed=0)
    digest = run("fedavg", federation, rounds=1, engine=name, workers=2).model_sha256
    return f"one round played, model {digest[:12]}"


def broker() -> str:
    """Devices talk through Mosquitto; the programs that talk to it are the extra ``mqtt``."""
    if find_spec("paho") is None:
        raise ModuleNotFoundError("for devices: pip install 'heterophony[mqtt]'")
    from ..devices.broker.process import program

    return str(program())


def data(name: str) -> str:
    from ..data.sources import source

    return f"{len(source(name).y)} examples"


def local_fmnist() -> str:
    from ..data.sources.idx import FMNIST

    if found := FMNIST.here():
        return f"in {found}"
    raise FileNotFoundError(
        "not here yet: apt-get install dataset-fashion-mnist, or heterophony data fetch fmnist"
    )
