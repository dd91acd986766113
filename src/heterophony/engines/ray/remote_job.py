"""A Ray node's part of a run: remote jobs, and the temporary folder with the run's data.

The folder is removed even if the processes that use it are killed: each of them holds a lock on a file
next to the folder, and the system releases a lock when its process exits. Opening a folder removes all other
such folders whose lock no process holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ... import __version__
from ...core.accelerator import Compute, WorkerPlace, count_devices
from ...core.algorithm import Reply
from ...core.codec import decode_groups, encode_groups
from ...core.errors import EngineError, HeterophonyError
from ...core.files import translate_disk_errors
from ...core.own_modules import Sources, load_sources
from ...core.tensors import Tensors
from ...data.federation import Federation, write_federation
from ...jobs.client_store import ClientStore
from ...jobs.plan import Job, Plan
from ...jobs.work import work
from ..child_processes import configure_torch, make_sendable
from ..wire import TensorCache

# a socket's path has at most 107 bytes, of which Ray uses up to 64 below its folder
MAX_PATH_LENGTH = 107 - 64 - len("/ray-12345678")


@dataclass(frozen=True)
class TempFolder:
    """A run's temporary folder on a Ray node, and this process's lock on the folder."""

    path: Path
    lock: int

    def delete(self) -> None:
        """Remove the temporary folder; processes that have mapped its files can still read them."""
        remove_temp_folder(self.path.name)
        self.close()

    def close(self) -> None:
        """Release this process's lock; the folder stays as long as another process holds one."""
        os.close(self.lock)


def open_temp_folder(name: str) -> TempFolder:
    """Open or create a run's temporary folder; processes that use the same name share it."""
    root = find_temp_root()
    with translate_disk_errors(root):
        root.mkdir(mode=0o700, exist_ok=True)
        if root.is_symlink() or root.stat().st_uid != os.getuid():
            raise PermissionError(f"{root} belongs to another user")
        remove_abandoned(root, name)
        folder = root / name
        lock = os.open(make_lock_path(folder), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        folder.mkdir(mode=0o700, exist_ok=True)
    return TempFolder(folder, lock)


def remove_temp_folder(name: str) -> None:
    """Remove a run's temporary folder, even if a process holds its lock."""
    shutil.rmtree(find_temp_root() / name, ignore_errors=True)
    make_lock_path(find_temp_root() / name).unlink(missing_ok=True)


def find_temp_root() -> Path:
    """Return the parent of all temporary folders: in the user's one, or in /tmp if the user's path is long."""
    name = f"heterophony-{os.getuid()}"
    folder = Path(tempfile.gettempdir()) / name
    return folder if len(str(folder)) <= MAX_PATH_LENGTH else Path("/tmp", name)  # noqa: S108


def make_lock_path(folder: Path) -> Path:
    """Return the path of a temporary folder's lock file."""
    return folder.with_name(f"{folder.name}.lock")


def remove_abandoned(root: Path, name: str) -> None:
    """Remove temporary folders whose locks no process holds, left by killed processes; keep ``name``."""
    for path in root.glob("*.lock"):
        folder = path.with_suffix("")
        with suppress(OSError):
            if folder.name == name:
                continue
            lock = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                path.unlink(missing_ok=True)
            finally:
                os.close(lock)


ByteArray = NDArray[np.uint8]
Fetch = Callable[[Any], Any]  # returns the object of a Ray reference: ``ray.get``


@dataclass(frozen=True)
class EncodedTensors:
    """A remote job's encoded tensors, or Ray's reference to them. Equal keys mean equal tensors."""

    key: int
    content: Any

    def fetch_bytes(self, fetch: Fetch) -> bytes:
        """Return the encoded tensors, fetched from Ray's store unless they came with the job."""
        inline = isinstance(self.content, np.ndarray)
        return bytes(self.content if inline else fetch(self.content))


@dataclass(frozen=True)
class RemoteJob:
    """A job whose tensors are encoded, with its client's memory."""

    job: Job
    tensors: EncodedTensors
    generic_model: EncodedTensors
    memory: ByteArray  # the client's newest memory that is older than the job's round


@dataclass(frozen=True)
class RemoteReply:
    """A reply whose tensors are encoded, with the client's new memory; or an error."""

    reply: Reply | HeterophonyError
    tensors: ByteArray | None = None
    memory: ByteArray | None = None


@dataclass(frozen=True)
class RunBundle:
    """The data that a Ray worker needs to open a run, including references to its plan and examples."""

    versions: tuple[str, str]
    module_paths: tuple[str, ...]  # the driver's ``sys.path``
    plan_ref: Any
    federation_header: str
    array_refs: Mapping[str, Any]
    where: WorkerPlace
    # modules that the driver has loaded by their path
    sources: Sources = field(default_factory=dict)


class CarriedClientStore(ClientStore):
    """A store of client memories that holds only the memory that came with a remote job."""

    def __init__(self, memory: bytes, scratch: Path) -> None:
        self.scratch, self.memories = scratch, {-1: memory}

    @property
    def saved_memory(self) -> bytes | None:
        """The memory that the job saved, if it saved one."""
        return next((blob for t, blob in self.memories.items() if t >= 0), None)

    def read_blob(self, client: str, before: int) -> bytes:
        return self.memories[max(t for t in self.memories if t < before)]

    def write_blob(self, client: str, t: int, blob: bytes) -> None:
        self.memories[t] = blob


def get_versions() -> tuple[str, str]:
    """Return the versions of heterophony and torch; all nodes need the same ones for the same bits."""
    return __version__, torch.__version__


def as_array(blob: bytes) -> ByteArray:
    """Return bytes as a read-only array, which Ray sends without a copy."""
    return np.frombuffer(blob, np.uint8)


# In the worker ------------------------------------------------------------------------------


class OpenRun:
    """A run opened by a Ray worker process: its plan, its data and the tensors decoded last."""

    def __init__(
        self, run: str, bundle: RunBundle, fetch: Fetch, loads: Callable[..., Any]
    ) -> None:
        if bundle.versions != get_versions():
            driver, node = (" and torch ".join(v) for v in (bundle.versions, get_versions()))
            raise EngineError(
                f"this run uses heterophony {driver}, but a node of the cluster has {node};"
                " install the same versions on all nodes"
            )
        configure_torch()
        self.compute = prepare_on_node(bundle.where)
        self.run_id = run
        self.temp_folder: TempFolder = open_temp_folder(run)
        data = self.temp_folder.path / "data"
        if not data.exists():
            write_data_once(data, bundle, fetch)
        # a user's own modules are found if this machine has them at the same path
        sys.path += [p for p in bundle.module_paths if p not in sys.path and Path(p).is_dir()]
        load_sources(bundle.sources)
        plan: Plan = loads(bytes(fetch(bundle.plan_ref)))
        self.plan = replace(plan, federation=Federation.open(data))
        self.tensor_cache = TensorCache[int]()

    def load_tensors(self, encoded: EncodedTensors, fetch: Fetch) -> Tensors:
        """Return the tensors of a remote job, decoded once for all jobs that share them."""
        return self.tensor_cache.get(
            encoded.key, lambda: decode_groups(encoded.fetch_bytes(fetch), finite=False)[0]["down"]
        )


def prepare_on_node(where: WorkerPlace) -> Compute:
    """Set torch up for the GPU that Ray assigned to this worker, the only GPU that it sees."""
    if where.device == "cuda" and not count_devices("cuda"):
        raise EngineError(
            "Ray gave a GPU to this job, but torch sees none on its node; install torch with CUDA"
            " there, or set engine.accelerator = 'cpu'"
        )
    return where.prepare()


def write_data_once(folder: Path, bundle: RunBundle, fetch: Fetch) -> None:
    """Write a run's data to files on this node; if several processes do so at once, the first one wins."""
    with translate_disk_errors(folder):
        temporary = Path(tempfile.mkdtemp(dir=folder.parent))
        write_federation(
            temporary,
            bundle.federation_header,
            {k: fetch(ref) for k, ref in bundle.array_refs.items()},
        )
        try:
            temporary.rename(folder)
        except OSError:
            shutil.rmtree(temporary)
            if not folder.exists():
                raise


OPEN_RUNS: list[OpenRun] = []  # holds at most one run: the last job's


def open_run(
    run: str, get_bundle: Callable[[], RunBundle], fetch: Fetch, loads: Callable[..., Any]
) -> OpenRun:
    """Open a run in a Ray worker process, once; close the run that was open before."""
    if not OPEN_RUNS or OPEN_RUNS[0].run_id != run:
        for previous in OPEN_RUNS:
            previous.temp_folder.close()
        OPEN_RUNS[:] = [OpenRun(run, get_bundle(), fetch, loads)]
    return OPEN_RUNS[0]


def run_remote_jobs(
    run: OpenRun, remote_jobs: Sequence[RemoteJob], fetch: Fetch
) -> list[RemoteReply]:
    """Run a batch of remote jobs one by one, and stop at the first error."""
    replies: list[RemoteReply] = []
    for remote in remote_jobs:
        tensors, generic_model = (
            run.load_tensors(t, fetch) for t in (remote.tensors, remote.generic_model)
        )
        job = replace(remote.job, tensors=tensors, generic_model=generic_model)
        replies.append(run_remote_job(run, job, bytes(remote.memory)))
        if isinstance(replies[-1].reply, HeterophonyError):
            break
    return replies


def run_remote_job(run: OpenRun, job: Job, memory: bytes) -> RemoteReply:
    """Run one remote job with its client's memory; return its encoded reply, or the error that it raised."""
    store = CarriedClientStore(memory, run.temp_folder.path)
    try:
        reply = work(run.plan, job, store, run.compute)
    except Exception as error:
        return RemoteReply(make_sendable(error, f"client {job.client}, round {job.t}"))
    return RemoteReply(
        replace(reply, tensors=Tensors(), aside=Tensors()),
        as_array(encode_groups({"up": reply.tensors, "aside": reply.aside})),
        None if store.saved_memory is None else as_array(store.saved_memory),
    )
