"""The Ray engine: jobs as stateless tasks, on this machine or on a cluster.

What clients keep stays in the run's folder, on the driver's disk: it travels with the job, and
back with the reply. So a node that dies costs time, and nodes share no file system.
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

from ...core.algorithm import Reply
from ...core.codec import decode_groups, encode_groups
from ...core.errors import ConfigError, EngineError, HeterophonyError
from ...core.tensors import Tensors
from ...jobs.client_store import FolderClientStore
from ...jobs.plan import Job, Plan
from ..base import AUTO_ADDRESS, LOCAL_CLUSTER, Cluster, ClusterShare, count_cores
from ..batching import batch_jobs
from ..pool import MAX_ATTEMPTS, strip_data
from .remote_job import (
    EncodedTensors,
    RemoteJob,
    RemoteReply,
    RunBundle,
    as_array,
    get_versions,
    open_run,
    run_remote_jobs,
)
from .temp_folders import open_temp_folder, remove_temp_folder

TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105  # the name of a variable
RAY_VARIABLES = {  # read by Ray when it is imported, and by all that it starts
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning per process
    "RAY_task_oom_retries": str(MAX_ATTEMPTS),  # else for ever
}
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": nobody can connect from outside
ZERO_COPY_VARIABLE = "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"
os.environ.update(RAY_VARIABLES)

import ray  # noqa: E402
from ray import exceptions  # noqa: E402
from ray._private import ray_constants  # noqa: E402
from ray._raylet import (  # noqa: E402
    AuthenticationMode,
    AuthenticationTokenLoader,
    Config,
    get_authentication_mode,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

INLINE_BYTES = 100_000  # bytes that travel with their job; more are stored once, and read by many
TIMEOUT_SECONDS = 10  # seconds for the nodes to tidy up
RUNS_PER_CORE = (
    4  # runs at a time, per core of the driver's machine: each merges what others compute
)


class Ray:
    """One run on a cluster; ``workers`` is the most jobs at a time, by default as many as fit."""

    def __init__(
        self,
        plan: Plan,
        place: FolderClientStore,
        workers: int | None,
        cluster: Cluster = LOCAL_CLUSTER,
    ) -> None:
        self.plan, self.client_store, self.workers, self.cluster = plan, place, workers, cluster
        self.run_id = secrets.token_hex(4)
        self.sent_tensors: dict[
            int, tuple[Tensors, EncodedTensors]
        ] = {}  # by identity; holds what it names
        self.remaining_uses = Counter[int]()
        self.tensor_number = 0

    def __enter__(self) -> Self:
        with ExitStack() as connection:
            connection.enter_context(connect_to_cluster(self.workers, self.cluster))
            count_slots(self.cluster)  # or say that nothing fits
            self.run_bundle = ray.put(self.pack_run())
            self.remote_task = ray.remote(run_batch).options(
                num_cpus=self.cluster.cpus, num_gpus=self.cluster.gpus, max_retries=MAX_ATTEMPTS
            )
            self.connection = connection.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self.connection:
            clean_nodes(self.run_id, list_remote_nodes())
            del self.run_bundle  # the cluster may go on, without our data
        remove_temp_folder(self.run_id)

    def pack_run(self) -> RunBundle:
        """Plan and data, put where every node can get them, once."""
        try:
            plan = ray.cloudpickle.dumps(strip_data(self.plan))
        except Exception as error:  # whatever a user's own object raises
            raise EngineError(
                f"the Ray engine cannot send this algorithm or model to its workers ({error});"
                " define it at the top level of a module, or use the serial engine"
            ) from None
        arrays = {k: ray.put(array) for k, array in self.plan.federation.arrays().items()}
        about = self.plan.federation.about()
        return RunBundle(get_versions(), tuple(sys.path), ray.put(as_array(plan)), about, arrays)

    def list_available_clients(self, clients: Sequence[str]) -> list[str]:
        return list(clients)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        room = count_slots(self.cluster)
        # one task waits at every worker for the one before it; but a limit is a limit
        limit = min(self.workers or room, room)
        limit = 2 * room if limit == room else limit
        waiting, tries = batch_jobs(jobs, min(limit, room))[::-1], Counter[int]()
        self.remaining_uses = Counter(id(t) for j in jobs for t in (j.tensors, j.generic_model))
        flying: dict[Any, list[Job]] = {}
        try:
            while waiting or flying:
                while waiting and len(flying) < limit:
                    bundle = waiting.pop()
                    flying[self.submit_batch(bundle)] = bundle
                for ref in ray.wait(list(flying))[0]:
                    bundle = flying.pop(ref)
                    outcomes = fetch_replies(ref, bundle)
                    if outcomes is None:
                        tries[id(bundle)] += 1
                        if tries[id(bundle)] == MAX_ATTEMPTS:
                            raise make_lost_error(bundle[0])
                        waiting.append(bundle)
                        continue
                    for job, outcome in zip(bundle, outcomes, strict=False):
                        yield self.receive_reply(job, outcome)
                    self.release_tensors(bundle)
        finally:
            for ref in flying if ray.is_initialized() else ():
                ray.cancel(ref, force=True)
            self.sent_tensors.clear()

    def submit_batch(self, bundle: list[Job]) -> Any:
        errands = [
            RemoteJob(
                replace(job, tensors=Tensors(), generic_model=Tensors()),
                self.encode_once(job.tensors),
                self.encode_once(job.generic_model),
                as_array(self.client_store.read_blob(job.client, before=job.t)),
            )
            for job in bundle
        ]
        # in a list, a reference is not fetched before the task says so: most have it open already
        return self.remote_task.remote(self.run_id, [self.run_bundle], errands)

    def encode_once(self, tensors: Tensors) -> EncodedTensors:
        """The tensors on their way; the same object for many clients is encoded and stored once."""
        if id(tensors) not in self.sent_tensors:
            self.tensor_number += 1
            content = as_array(encode_groups({"down": tensors}))
            stored = content if content.nbytes < INLINE_BYTES else ray.put(content)
            self.sent_tensors[id(tensors)] = tensors, EncodedTensors(self.tensor_number, stored)
        return self.sent_tensors[id(tensors)][1]

    def release_tensors(self, bundle: list[Job]) -> None:
        """Let go of what no job needs any more: the store frees it."""
        for tensors in (t for job in bundle for t in (job.tensors, job.generic_model)):
            self.remaining_uses[id(tensors)] -= 1
            if not self.remaining_uses[id(tensors)]:
                self.sent_tensors.pop(id(tensors), None)

    def receive_reply(self, job: Job, outcome: RemoteReply) -> Reply:
        """A reply with its tensors; what the client keeps is on disk by then."""
        if isinstance(outcome.reply, HeterophonyError):
            raise outcome.reply
        if outcome.memory is not None:
            self.client_store.write_blob(job.client, job.t, bytes(outcome.memory))
        assert outcome.tensors is not None
        groups, _ = decode_groups(bytes(outcome.tensors), finite=False)
        return replace(outcome.reply, tensors=groups["up"], aside=groups["aside"])


def fetch_replies(ref: Any, bundle: list[Job]) -> list[RemoteReply] | None:
    """What came of a bundle; None if it was lost on its way."""
    try:
        outcomes: list[RemoteReply] = ray.get(ref)
    except exceptions.ObjectLostError:
        return None
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError) as error:
        raise make_died_error(bundle, first_line(error)) from None
    except exceptions.OutOfMemoryError:
        raise make_died_error(
            bundle, "there was not enough memory; fewer engine.workers need less"
        ) from None
    except exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, HeterophonyError):
            raise type(cause)(str(cause)) from None
        raise EngineError(
            f"a worker of the Ray cluster cannot work ({first_line(cause)}); is heterophony, and"
            " whatever defines the model and the algorithm, installed on all nodes?"
        ) from None
    except exceptions.RayError as error:
        raise EngineError(f"the Ray cluster failed: {first_line(error)}") from None
    return outcomes


def make_lost_error(job: Job) -> EngineError:
    return EngineError(
        f"client {job.client}, round {job.t}: the Ray cluster lost the result {MAX_ATTEMPTS} times;"
        " are its nodes up, and is there room for objects on them?"
    )


def make_died_error(bundle: list[Job], why: str) -> EngineError:
    job = bundle[0]
    return EngineError(
        f"client {job.client}, round {job.t}: {MAX_ATTEMPTS + 1} workers of the Ray cluster died on this"
        f" job ({why})"
    )


def first_line(error: Exception) -> str:
    """A reason in one line: Ray's have many."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next(filter(None, lines), type(error).__name__)[:300]


# The cluster --------------------------------------------------------------------------------


@contextmanager
def connect_to_cluster(workers: int | None, cluster: Cluster) -> Iterator[None]:
    """Connected to a cluster; one that is only for us ends with us."""
    if ray.is_initialized():  # by whoever plays several runs, or by the user
        if get_authentication_mode() != AuthenticationMode.TOKEN:
            raise EngineError("Ray runs without authentication; start it with RAY_AUTH_MODE=token")
        yield
        return
    with require_token(cluster), ExitStack() as ending:
        if cluster.address is None:
            ours = open_temp_folder(f"ray-{secrets.token_hex(4)}")
            ending.callback(ours.delete)
            how = make_local_options(workers or count_cores(), cluster, ours.path)
        else:
            check_reachable(cluster.address)
            how = {"address": cluster.address}
        ending.callback(ray.shutdown)
        start_ray(how, cluster)
        yield


def check_reachable(address: str) -> None:
    """Ray itself would try for minutes, without a word."""
    if address == AUTO_ADDRESS:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), TIMEOUT_SECONDS).close()
    except OSError as error:
        why = error.strerror or error
        raise EngineError(f"cannot use {address}: nothing answers there ({why})") from None


@contextmanager
def share_cluster(
    workers: int | None, cluster: Cluster, runs: int
) -> Iterator[tuple[int, ClusterShare]]:
    """A cluster for so many runs: how many at a time, and each one's part of it.

    The parts do not overlap: Ray ends the idle workers of one run when those of another are too
    many, and each needs seconds to start.
    """
    with connect_to_cluster(workers, cluster):
        room = count_slots(cluster)
        room = min(workers or room, room)
        width = min(runs, room, RUNS_PER_CORE * count_cores())
        address = ray.get_runtime_context().gcs_address
        there = Cluster(address=address, cpus=cluster.cpus, gpus=cluster.gpus)
        needed = {k: os.environ[k] for k in (TOKEN_VARIABLE, LOOPBACK_VARIABLE) if k in os.environ}
        yield width, ClusterShare(there, room // width, needed)


def make_local_options(workers: int, cluster: Cluster, folder: Path) -> dict[str, Any]:
    """A Ray of our own: reachable from this machine alone, without a dashboard."""
    return {
        "address": "local",
        "num_cpus": math.ceil(workers * cluster.cpus),
        "include_dashboard": False,
        "_temp_dir": str(folder),
    }


def start_ray(how: Mapping[str, Any], cluster: Cluster) -> None:
    """Start or join, in silence; our signals stay ours."""
    main = threading.current_thread() is threading.main_thread()
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        with silence_stderr():
            ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **how)
    except Exception as error:  # Ray raises whatever it likes, also plain ones
        where = cluster.address or "a Ray of its own"
        raise EngineError(
            f"cannot use {where}: {explain_connection_error(error, cluster)}"
        ) from None
    finally:
        for s, handler in before.items():
            if main and handler is not None:
                signal.signal(s, handler)


@contextmanager
def silence_stderr() -> Iterator[None]:
    """Without what Ray itself, and not Python, writes to stderr while it tries; we say the end.

    Python's own words still come through: Ctrl-C is answered.
    """
    sys.stderr.flush()
    before, ours, nowhere = sys.stderr, os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    with os.fdopen(ours, "w", buffering=1) as spoken:
        if before is sys.__stderr__:
            sys.stderr = spoken
        try:
            yield
        finally:
            sys.stderr = before
            os.dup2(ours, 2)
            os.close(nowhere)


def explain_connection_error(error: Exception, cluster: Cluster) -> str:
    """Why a cluster cannot be joined, and what to do."""
    several = (
        "; with more than one Ray here, name its head:port"
        if cluster.address == AUTO_ADDRESS
        else ""
    )
    if isinstance(error, ConnectionError | exceptions.AuthenticationError):  # it does not say which
        return f"it is not there, or {TOKEN_VARIABLE} is not its token{several}"
    return first_line(error)


@contextmanager
def require_token(cluster: Cluster) -> Iterator[None]:
    """Tokens on both sides, always; a cluster only for us gets one that nobody else knows."""
    if os.environ.get(ZERO_COPY_VARIABLE, "0") not in ("", "0"):
        raise ConfigError(
            f"{ZERO_COPY_VARIABLE} lets one client change another's weights; unset it"
        )
    fresh = {LOOPBACK_VARIABLE: "0", TOKEN_VARIABLE: secrets.token_hex(32)}
    if cluster.address is not None:
        fresh = {}
        if not has_token():
            raise ConfigError(
                f"engine.address: a cluster is joined with its token; put it into"
                f" ~/.ray/auth_token or {TOKEN_VARIABLE}, or set RAY_AUTH_TOKEN_PATH to a file that holds it"
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
    """Ray reads these variables once; who imported it earlier must not be without a token."""
    ray_constants.ENABLE_RAY_CLUSTER = os.environ.get(LOOPBACK_VARIABLE) != "0"
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def has_token() -> bool:
    usual = Path.home() / ".ray" / "auth_token"
    return (
        any(os.environ.get(k) for k in (TOKEN_VARIABLE, "RAY_AUTH_TOKEN_PATH")) or usual.is_file()
    )


def count_slots(cluster: Cluster) -> int:
    """How many jobs the nodes that are there can do at a time."""
    found = sum(count_fitting_jobs(n["Resources"], cluster) for n in ray.nodes() if n["Alive"])
    if not found:
        wanted = f"engine.cpus = {cluster.cpus:g}" + (
            f" and engine.gpus = {cluster.gpus:g}" if cluster.gpus else ""
        )
        raise EngineError(f"no node of the Ray cluster has what a job needs ({wanted}); lower it")
    return found


def count_fitting_jobs(resources: Mapping[str, float], cluster: Cluster) -> int:
    fits = [resources.get("CPU", 0) / cluster.cpus]
    if cluster.gpus:
        fits.append(resources.get("GPU", 0) / cluster.gpus)
    return int(min(fits) + 1e-9)


def list_remote_nodes() -> list[str]:
    """The nodes that are other machines than this."""
    here = ray.util.get_node_ip_address()
    return [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeManagerAddress"] != here]


def clean_nodes(run: str, nodes: Sequence[str]) -> None:
    """What these nodes hold of a run is removed, as far as they answer."""
    task = ray.remote(remove_temp_folder)
    asked = []
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        asked.append(task.options(num_cpus=0, scheduling_strategy=there).remote(run))
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=TIMEOUT_SECONDS)


# On a node ----------------------------------------------------------------------------------


def run_batch(run: str, luggage: list[Any], errands: list[RemoteJob]) -> list[RemoteReply]:
    """A bundle of jobs, in one of Ray's processes."""
    here = open_run(run, lambda: ray.get(luggage[0]), ray.get, ray.cloudpickle.loads)
    return run_remote_jobs(here, errands, ray.get)
