"""A job far away: all it needs comes with it, all it leaves goes back with its reply.

The machine it runs on keeps nothing but the run's data, which can be sent again.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ... import __version__
from ...core.algorithm import Reply
from ...core.codec import decode_groups, encode_groups
from ...core.errors import EngineError, HeterophonyError
from ...core.files import translate_disk_errors
from ...core.tensors import Tensors
from ...data.federation import Federation, write_federation
from ...jobs.client_store import ClientStore
from ...jobs.plan import Job, Plan
from ...jobs.work import work
from ..pool import configure_torch
from .temp_folders import TempFolder, open_temp_folder

ByteArray = NDArray[np.uint8]
Fetch = Callable[[Any], Any]  # what a reference stands for


@dataclass(frozen=True)
class EncodedTensors:
    """Tensors on their way: their bytes, or a reference to them; equal keys, equal tensors."""

    key: int
    content: Any

    def fetch_bytes(self, fetch: Fetch) -> bytes:
        found = self.content if isinstance(self.content, np.ndarray) else fetch(self.content)
        return bytes(found)


@dataclass(frozen=True)
class RemoteJob:
    """A job without its tensors, and what it needs beside them."""

    job: Job
    tensors: EncodedTensors
    generic_model: EncodedTensors
    memory: ByteArray  # of its client, as the server's folder has it


@dataclass(frozen=True)
class RemoteReply:
    """A reply without its tensors, or what went wrong; and what there is to keep, if anything."""

    reply: Reply | HeterophonyError
    tensors: ByteArray | None = None
    memory: ByteArray | None = None


@dataclass(frozen=True)
class RunBundle:
    """A run, as its workers get it: references to the plan and to the data."""

    versions: tuple[str, str]
    module_paths: tuple[str, ...]  # where the driver finds modules
    plan_ref: Any
    federation_header: str
    array_refs: Mapping[str, Any]


class CarriedClientStore(ClientStore):
    """One client's memory, which came with the job."""

    def __init__(self, memory: bytes, scratch: Path) -> None:
        self.scratch, self.memories = scratch, {-1: memory}

    @property
    def saved_memory(self) -> bytes | None:
        """What the job stored."""
        return next((blob for t, blob in self.memories.items() if t >= 0), None)

    def read_blob(self, client: str, before: int) -> bytes:
        return self.memories[max(t for t in self.memories if t < before)]

    def write_blob(self, client: str, t: int, blob: bytes) -> None:
        self.memories[t] = blob


def get_versions() -> tuple[str, str]:
    """What must be the same wherever a run's jobs are done."""
    return __version__, torch.__version__


def as_array(blob: bytes) -> ByteArray:
    """Bytes as Ray hands them on without a copy: read-only."""
    return np.frombuffer(blob, np.uint8)


# In the worker ------------------------------------------------------------------------------


class OpenRun:
    """A run on this machine, open in this process: its plan, its data, the last tensors."""

    def __init__(
        self, run: str, luggage: RunBundle, fetch: Fetch, loads: Callable[..., Any]
    ) -> None:
        if luggage.versions != get_versions():
            theirs, ours = (" and torch ".join(v) for v in (luggage.versions, get_versions()))
            raise EngineError(
                f"this run is played with heterophony {theirs}, but a node of the cluster has"
                f" {ours}; install the same on all nodes"
            )
        configure_torch()
        self.run_id = run
        self.temp_folder: TempFolder = open_temp_folder(run)
        data = self.temp_folder.path / "data"
        if not data.exists():
            write_data_once(data, luggage, fetch)
        known = [p for p in luggage.module_paths if p not in sys.path and Path(p).is_dir()]
        sys.path += known  # a user's own modules, if this machine has them, too
        plan: Plan = loads(bytes(fetch(luggage.plan_ref)))
        self.plan = replace(plan, federation=Federation.open(data))
        self.tensor_cache = OrderedDict[int, Tensors]()  # all clients of a round share them

    def load_tensors(self, parcel: EncodedTensors, fetch: Fetch) -> Tensors:
        if parcel.key not in self.tensor_cache:
            content = parcel.fetch_bytes(fetch)
            self.tensor_cache[parcel.key] = decode_groups(content, finite=False)[0]["down"]
            while len(self.tensor_cache) > 2:
                self.tensor_cache.popitem(last=False)
        self.tensor_cache.move_to_end(parcel.key)
        return self.tensor_cache[parcel.key]


def write_data_once(folder: Path, luggage: RunBundle, fetch: Fetch) -> None:
    """The data as files of this machine; of several processes that begin, one is the first."""
    with translate_disk_errors(folder):
        mine = Path(tempfile.mkdtemp(dir=folder.parent))
        write_federation(
            mine,
            luggage.federation_header,
            {k: fetch(ref) for k, ref in luggage.array_refs.items()},
        )
        try:
            mine.rename(folder)
        except OSError:
            shutil.rmtree(mine)
            if not folder.exists():
                raise


OPEN_RUNS: list[OpenRun] = []  # the run that this process last worked for


def open_run(
    run: str, luggage: Callable[[], RunBundle], fetch: Fetch, loads: Callable[..., Any]
) -> OpenRun:
    """The run in this process, opened once."""
    if not OPEN_RUNS or OPEN_RUNS[0].run_id != run:
        for before in OPEN_RUNS:
            before.temp_folder.close()
        OPEN_RUNS[:] = [OpenRun(run, luggage(), fetch, loads)]
    return OPEN_RUNS[0]


def run_remote_jobs(here: OpenRun, errands: Sequence[RemoteJob], fetch: Fetch) -> list[RemoteReply]:
    """The jobs of a bundle, one after the other, up to the first that goes wrong."""
    outcomes: list[RemoteReply] = []
    for errand in errands:
        tensors, average = (
            here.load_tensors(p, fetch) for p in (errand.tensors, errand.generic_model)
        )
        outcomes.append(
            run_remote_job(
                here, replace(errand.job, tensors=tensors, generic_model=average), errand
            )
        )
        if isinstance(outcomes[-1].reply, HeterophonyError):
            break
    return outcomes


def run_remote_job(here: OpenRun, job: Job, errand: RemoteJob) -> RemoteReply:
    place = CarriedClientStore(bytes(errand.memory), here.temp_folder.path)
    try:
        reply = work(here.plan, job, place)
    except HeterophonyError as error:
        return RemoteReply(type(error)(str(error)))
    except Exception as error:
        trace = traceback.format_exc()
        return RemoteReply(EngineError(f"client {job.client}, round {job.t}: {error!r}\n{trace}"))
    tensors = encode_groups({"up": reply.tensors, "aside": reply.aside})
    bare = replace(reply, tensors=Tensors(), aside=Tensors())
    return RemoteReply(
        bare,
        as_array(tensors),
        None if place.saved_memory is None else as_array(place.saved_memory),
    )
