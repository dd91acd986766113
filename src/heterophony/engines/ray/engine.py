"""The Ray engine: jobs run as stateless tasks, on this machine or on a cluster.

Clients' memories stay in the run's folder, on the driver's disk. A client's memory is sent with its
job and comes back with the reply. So nodes need no common file system, and a node that dies costs
only time.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import ray
from ray import exceptions
from ray._private import ray_constants
from ray._raylet import (
    AuthenticationMode,
    AuthenticationTokenLoader,
    Config,
    get_authentication_mode,
)
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...core.accelerator import WorkerPlace
from ...core.algorithm import Reply
from ...core.codec import decode_groups, encode_groups
from ...core.errors import ConfigError, EngineError, HeterophonyError, get_first_line
from ...core.own_modules import LOADED
from ...core.tensors import Tensors
from ...jobs.client_store import FolderClientStore
from ...jobs.plan import Job, Plan
from .. import base
from ..pool import strip_plan_data
from ..wire import EncodeOnce, make_pickling_error
from . import RAY_VARIABLES, remote_job

TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105  # the name of a variable
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": nobody can connect from outside
ZERO_COPY_VARIABLE = "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"
TIMEOUT_SECONDS = 10  # time limit for a cluster to answer, and for its nodes to clean up
RUNS_PER_CORE = 4  # runs at a time per core of the driver's machine, which merges the replies


@contextmanager
def connect_to_cluster(workers: int | None, cluster: base.Cluster) -> Iterator[None]:
    """Connect to a Ray cluster inside the ``with`` block: the given one, or a new one on this machine."""
    if ray.is_initialized():  # initialised by ``share_cluster`` or by the user
        if get_authentication_mode() != AuthenticationMode.TOKEN:
            raise EngineError("Ray runs without authentication; start it with RAY_AUTH_MODE=token")
        yield
        return
    with require_token(cluster), ExitStack() as cleanup:
        if cluster.address is None:
            folder = remote_job.open_temp_folder(f"ray-{secrets.token_hex(4)}")
            cleanup.callback(folder.delete)
            options = make_local_options(workers or base.count_cores(), cluster, folder.path)
        else:
            check_reachable(cluster.address)
            options = {"address": cluster.address}
        cleanup.callback(ray.shutdown)
        start_ray(options, cluster)
        yield


def check_reachable(address: str) -> None:
    """Raise EngineError if nothing answers at a cluster's address; Ray would try silently for minutes."""
    if address == base.AUTO_ADDRESS:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), TIMEOUT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise EngineError(f"cannot use {address}: nothing answers there ({reason})") from None


@contextmanager
def share_cluster(
    workers: int | None, cluster: base.Cluster, runs: int
) -> Iterator[tuple[int, base.ClusterShare]]:
    """Connect to a cluster for several runs; yield how many run at a time, and each one's share.

    Shares do not overlap. Otherwise Ray would stop the idle workers of one run to make room for
    another's, and a worker needs seconds to start.
    """
    with connect_to_cluster(workers, cluster):
        slots = count_slots(cluster)
        slots = min(workers or slots, slots)
        width = min(runs, slots, RUNS_PER_CORE * base.count_cores())
        address = ray.get_runtime_context().gcs_address
        joined = base.Cluster(address=address, cpus=cluster.cpus, gpus=cluster.gpus)
        environment = {
            k: os.environ[k] for k in (TOKEN_VARIABLE, LOOPBACK_VARIABLE) if k in os.environ
        }
        yield width, base.ClusterShare(joined, slots // width, environment)


def make_local_options(workers: int, cluster: base.Cluster, folder: Path) -> dict[str, Any]:
    """Return the options of ``ray.init`` for a cluster on this machine: loopback only, without a dashboard."""
    return {
        "address": "local",
        "num_cpus": math.ceil(workers * cluster.cpus),
        "include_dashboard": False,
        "_temp_dir": str(folder),
    }


def start_ray(options: Mapping[str, Any], cluster: base.Cluster) -> None:
    """Call ``ray.init`` without its output, and restore the signal handlers that it replaces."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        with silence_stderr():
            ray.init(
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                # otherwise, Ray puts the current folder first on its workers' path
                job_config=JobConfig(_client_job=True),
                **options,
            )
    except Exception as error:  # Ray raises errors of many types, including built-in ones
        where = cluster.address or "a local Ray"
        raise EngineError(
            f"cannot use {where}: {explain_connection_error(error, cluster)}"
        ) from None
    finally:
        for s, handler in before.items():
            if in_main_thread and handler is not None:
                signal.signal(s, handler)


@contextmanager
def silence_stderr() -> Iterator[None]:
    """Discard what Ray's C++ code writes to stderr; failures are raised as errors anyway.

    ``sys.stderr`` still reaches the terminal, for example with the message after Ctrl-C.
    """
    sys.stderr.flush()
    before, terminal, null = sys.stderr, os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    with os.fdopen(terminal, "w", buffering=1) as replacement:
        if before is sys.__stderr__:
            sys.stderr = replacement
        try:
            yield
        finally:
            sys.stderr = before
            os.dup2(terminal, 2)
            os.close(null)


def explain_connection_error(error: Exception, cluster: base.Cluster) -> str:
    """Explain in an error message why a Ray cluster cannot be joined, and what to do."""
    hint = (
        "; if several clusters run here, set engine.address to head:port"
        if cluster.address == base.AUTO_ADDRESS
        else ""
    )
    if isinstance(
        error, ConnectionError | exceptions.AuthenticationError
    ):  # Ray does not say which of the two it is
        return f"it does not exist, or {TOKEN_VARIABLE} is not its token{hint}"
    return get_first_line(error)[:300]


@contextmanager
def require_token(cluster: base.Cluster) -> Iterator[None]:
    """Make Ray authenticate by token inside the ``with`` block; a new cluster gets a random token."""
    if os.environ.get(ZERO_COPY_VARIABLE, "0") not in ("", "0"):
        raise ConfigError(
            f"{ZERO_COPY_VARIABLE} lets one client change another's weights; unset it"
        )
    fresh = {LOOPBACK_VARIABLE: "0", TOKEN_VARIABLE: secrets.token_hex(32)}
    if cluster.address is not None:
        fresh = {}
        if not has_token():
            raise ConfigError(
                "engine.address: joining a cluster needs its token; put it into"
                f" ~/.ray/auth_token or {TOKEN_VARIABLE}, or set RAY_AUTH_TOKEN_PATH to a file"
                " that holds it"
            )
    before = {k: os.environ.get(k) for k in fresh}
    os.environ.update({**RAY_VARIABLES, **fresh})
    reload_ray_settings()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        reload_ray_settings()


def reload_ray_settings() -> None:
    """Make Ray read its environment variables again: it may have been imported before they were set."""
    ray_constants.ENABLE_RAY_CLUSTER = os.environ.get(LOOPBACK_VARIABLE) != "0"
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def has_token() -> bool:
    """Return True if Ray finds a token, in the environment or in the user's file."""
    file = Path.home() / ".ray" / "auth_token"
    return any(os.environ.get(k) for k in (TOKEN_VARIABLE, "RAY_AUTH_TOKEN_PATH")) or file.is_file()


def count_slots(cluster: base.Cluster) -> int:
    """Return how many jobs the live nodes of a Ray cluster can run at a time; raise EngineError if none fits."""
    slots = sum(count_fitting_jobs(n["Resources"], cluster) for n in ray.nodes() if n["Alive"])
    if not slots:
        needs = f"engine.cpus = {cluster.cpus:g}" + (
            f" and engine.gpus = {cluster.gpus:g}" if cluster.gpus else ""
        )
        raise EngineError(
            f"no node of the Ray cluster is large enough for a job ({needs}); lower these settings"
        )
    return slots


def count_fitting_jobs(resources: Mapping[str, float], cluster: base.Cluster) -> int:
    """Count the jobs that one node of a Ray cluster can run at a time."""
    fits = [resources.get("CPU", 0) / cluster.cpus]
    if cluster.gpus:
        fits.append(resources.get("GPU", 0) / cluster.gpus)
    return int(min(fits) + 1e-9)


def list_remote_nodes() -> list[str]:
    """List the ids of a Ray cluster's live nodes on other machines."""
    here = ray.util.get_node_ip_address()
    return [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeManagerAddress"] != here]


def clean_nodes(run: str, nodes: Sequence[str]) -> None:
    """Delete a run's temporary folder on these Ray nodes; nodes that do not answer are skipped."""
    task = ray.remote(remote_job.remove_temp_folder)
    refs = []
    for node in nodes:
        on_node = NodeAffinitySchedulingStrategy(node, soft=False)
        refs.append(task.options(num_cpus=0, scheduling_strategy=on_node).remote(run))
    if refs:
        ray.wait(refs, num_returns=len(refs), timeout=TIMEOUT_SECONDS)


INLINE_BYTES = 100_000  # larger tensors are put into Ray's store once, for many jobs to read


class Ray(base.Engine):
    """The Ray engine: one run on a cluster, by default with as many jobs at a time as the cluster holds."""

    def __init__(
        self, plan: Plan, client_store: FolderClientStore, spec: base.EngineSpec = base.SERIAL
    ) -> None:
        self.plan, self.client_store = plan, client_store
        self.workers, self.cluster, self.compute = spec.workers, spec.cluster, spec.compute
        self.run_id = secrets.token_hex(4)
        self.encode = EncodeOnce(encode_tensors)
        self.remaining_uses = Counter[int]()  # by the tensors' id

    def __enter__(self) -> Self:
        with ExitStack() as connection:
            connection.enter_context(connect_to_cluster(self.workers, self.cluster))
            count_slots(self.cluster)  # raises an error if no job fits
            self.run_bundle = ray.put(self.pack_run())
            self.remote_task = ray.remote(run_batch).options(
                num_cpus=self.cluster.cpus,
                num_gpus=self.cluster.gpus,
                max_retries=base.MAX_ATTEMPTS,
            )
            self.connection = connection.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self.connection:
            clean_nodes(self.run_id, list_remote_nodes())
            del self.run_bundle  # frees the run's data on a cluster that outlives it
        remote_job.remove_temp_folder(self.run_id)

    def pack_run(self) -> remote_job.RunBundle:
        """Put a run's plan and data into Ray's store once, for all nodes."""
        try:
            plan = ray.cloudpickle.dumps(strip_plan_data(self.plan))
        except Exception:  # a user's own object can raise anything
            raise make_pickling_error(
                strip_plan_data(self.plan), ray.cloudpickle.dumps, "Ray"
            ) from None
        federation = self.plan.federation
        return remote_job.RunBundle(
            versions=remote_job.get_versions(),
            module_paths=tuple(str(Path(p).absolute()) for p in sys.path),
            sources=dict(LOADED),
            plan_ref=ray.put(remote_job.as_array(plan)),
            federation_header=federation.format_header(),
            array_refs={k: ray.put(array) for k, array in federation.collect_arrays().items()},
            where=WorkerPlace.describe(self.compute),
        )

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        slots = count_slots(self.cluster)
        # without a lower limit, every worker has a second task waiting for its first to end
        limit = min(self.workers or slots, slots)
        limit = 2 * slots if limit == slots else limit
        waiting, losses = base.batch_jobs(jobs, min(limit, slots))[::-1], Counter[int]()
        self.remaining_uses = Counter(id(t) for j in jobs for t in (j.tensors, j.generic_model))
        running: dict[Any, list[Job]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < limit:
                    batch = waiting.pop()
                    running[self.submit_batch(batch)] = batch
                for ref in ray.wait(list(running))[0]:
                    batch = running.pop(ref)
                    replies = fetch_replies(ref, batch)
                    if replies is None:
                        losses[id(batch)] += 1
                        if losses[id(batch)] == base.MAX_ATTEMPTS:
                            raise make_lost_error(batch[0])
                        waiting.append(batch)
                        continue
                    for job, reply in zip(batch, replies, strict=False):
                        yield self.receive_reply(job, reply)
                    self.release_tensors(batch)
        finally:
            for ref in running if ray.is_initialized() else ():
                ray.cancel(ref, force=True)
            self.encode.clear()

    def submit_batch(self, batch: list[Job]) -> Any:
        """Start a Ray task that runs a batch of jobs, with their clients' memories."""
        remote_jobs = [
            remote_job.RemoteJob(
                replace(job, tensors=Tensors(), generic_model=Tensors()),
                self.encode(job.tensors),
                self.encode(job.generic_model),
                remote_job.as_array(self.client_store.read_blob(job.client, before=job.t)),
            )
            for job in batch
        ]
        # Ray fetches references among the arguments before the task starts, but not those in a
        # list: most workers have already opened the run and do not need the bundle
        return self.remote_task.remote(self.run_id, [self.run_bundle], remote_jobs)

    def release_tensors(self, batch: list[Job]) -> None:
        """Drop the encoded tensors that no later job needs, so that Ray's store frees them."""
        for tensors in (t for job in batch for t in (job.tensors, job.generic_model)):
            self.remaining_uses[id(tensors)] -= 1
            if not self.remaining_uses[id(tensors)]:
                self.encode.forget(tensors)

    def receive_reply(self, job: Job, remote: remote_job.RemoteReply) -> Reply:
        """Store the client's memory that came back with a reply; return the reply with decoded tensors."""
        if isinstance(remote.reply, HeterophonyError):
            raise remote.reply
        if remote.memory is not None:
            self.client_store.write_blob(job.client, job.t, bytes(remote.memory))
        assert remote.tensors is not None
        groups, _ = decode_groups(bytes(remote.tensors), finite=False)
        return replace(remote.reply, tensors=groups["up"], aside=groups["aside"])


def encode_tensors(tensors: Tensors, key: int) -> remote_job.EncodedTensors:
    """Encode tensors for remote jobs; put large ones into Ray's store."""
    content = remote_job.as_array(encode_groups({"down": tensors}))
    return remote_job.EncodedTensors(
        key, content if content.nbytes < INLINE_BYTES else ray.put(content)
    )


def fetch_replies(ref: Any, batch: list[Job]) -> list[remote_job.RemoteReply] | None:
    """Fetch the replies of a batch of remote jobs from Ray; return None if Ray lost them."""
    try:
        replies: list[remote_job.RemoteReply] = ray.get(ref)
    except exceptions.ObjectLostError:
        return None
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError) as error:
        raise make_died_error(batch, get_first_line(error)) from None
    except exceptions.OutOfMemoryError:
        raise make_died_error(batch, "there was not enough memory; lower engine.workers") from None
    except exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, HeterophonyError):
            raise type(cause)(str(cause)) from None
        raise EngineError(
            f"a worker of the Ray cluster failed ({get_first_line(cause)}); install heterophony, and"
            " whatever defines the model and the algorithm, on all nodes"
        ) from None
    except exceptions.RayError as error:
        raise EngineError(f"the Ray cluster failed: {get_first_line(error)}") from None
    return replies


def make_lost_error(job: Job) -> EngineError:
    """Return the error for a job whose result Ray lost repeatedly."""
    return EngineError(
        f"client {job.client}, round {job.t}: the Ray cluster lost the result {base.MAX_ATTEMPTS} times;"
        " check that its nodes are up and have room for objects"
    )


def make_died_error(batch: list[Job], reason: str) -> EngineError:
    """Return the error for a job on which Ray's workers died repeatedly."""
    job = batch[0]
    return EngineError(
        f"client {job.client}, round {job.t}: {base.MAX_ATTEMPTS + 1} workers of the Ray cluster died"
        f" on this job ({reason})"
    )


# On a node ----------------------------------------------------------------------------------


def run_batch(
    run: str, bundle_refs: list[Any], remote_jobs: list[remote_job.RemoteJob]
) -> list[remote_job.RemoteReply]:
    """Run a batch of remote jobs in one of Ray's worker processes."""
    opened = remote_job.open_run(
        run, lambda: ray.get(bundle_refs[0]), ray.get, ray.cloudpickle.loads
    )
    return remote_job.run_remote_jobs(opened, remote_jobs, ray.get)
