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
from ...jobs.client_store import Place
from ...jobs.plan import Job, Plan
from ..base import (
    AUTO,
    HERE,
    Cluster,
    Share,
    cores,
)
from ..batching import bundled
from ..pool import TRIES, without_data
from .remote_job import (
    Errand,
    Luggage,
    Outcome,
    Parcel,
    as_array,
    done,
    versions,
    workplace,
)
from .temp_folders import claim, remove

TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105  # the name of a variable
QUIET = {  # read by Ray when it is imported, and by all that it starts
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning per process
    "RAY_task_oom_retries": str(TRIES),  # else for ever
}
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": nobody can connect from outside
MIXES = "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"
os.environ.update(QUIET)

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

INLINE = 100_000  # bytes that travel with their job; more are stored once, and read by many
PATIENCE = 10  # seconds for the nodes to tidy up
RUNNERS = 4  # runs at a time, per core of the driver's machine: each merges what others compute


class Ray:
    """One run on a cluster; ``workers`` is the most jobs at a time, by default as many as fit."""

    def __init__(
        self, plan: Plan, place: Place, workers: int | None, cluster: Cluster = HERE
    ) -> None:
        self.plan, self.place, self.workers, self.cluster = plan, place, workers, cluster
        self.run_id = secrets.token_hex(4)
        self.sent: dict[int, tuple[Tensors, Parcel]] = {}  # by identity; holds what it names
        self.users = Counter[int]()
        self.number = 0

    def __enter__(self) -> Self:
        with ExitStack() as connection:
            connection.enter_context(joined(self.workers, self.cluster))
            slots(self.cluster)  # or say that nothing fits
            self.luggage = ray.put(self.packed())
            self.task = ray.remote(perform).options(
                num_cpus=self.cluster.cpus, num_gpus=self.cluster.gpus, max_retries=TRIES
            )
            self.connection = connection.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self.connection:
            tidied(self.run_id, elsewhere())
            del self.luggage  # the cluster may go on, without our data
        remove(self.run_id)

    def packed(self) -> Luggage:
        """Plan and data, put where every node can get them, once."""
        try:
            plan = ray.cloudpickle.dumps(without_data(self.plan))
        except Exception as error:  # whatever a user's own object raises
            raise EngineError(
                f"the Ray engine cannot send this algorithm or model to its workers ({error});"
                " define it at the top level of a module, or use the serial engine"
            ) from None
        arrays = {k: ray.put(array) for k, array in self.plan.federation.arrays().items()}
        about = self.plan.federation.about()
        return Luggage(versions(), tuple(sys.path), ray.put(as_array(plan)), about, arrays)

    def present(self, clients: Sequence[str]) -> list[str]:
        return list(clients)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        room = slots(self.cluster)
        # one task waits at every worker for the one before it; but a limit is a limit
        limit = min(self.workers or room, room)
        limit = 2 * room if limit == room else limit
        waiting, tries = bundled(jobs, min(limit, room))[::-1], Counter[int]()
        self.users = Counter(id(t) for j in jobs for t in (j.tensors, j.average))
        flying: dict[Any, list[Job]] = {}
        try:
            while waiting or flying:
                while waiting and len(flying) < limit:
                    bundle = waiting.pop()
                    flying[self.submitted(bundle)] = bundle
                for ref in ray.wait(list(flying))[0]:
                    bundle = flying.pop(ref)
                    outcomes = fetched(ref, bundle)
                    if outcomes is None:
                        tries[id(bundle)] += 1
                        if tries[id(bundle)] == TRIES:
                            raise lost(bundle[0])
                        waiting.append(bundle)
                        continue
                    for job, outcome in zip(bundle, outcomes, strict=False):
                        yield self.arrived(job, outcome)
                    self.drop(bundle)
        finally:
            for ref in flying if ray.is_initialized() else ():
                ray.cancel(ref, force=True)
            self.sent.clear()

    def submitted(self, bundle: list[Job]) -> Any:
        errands = [
            Errand(
                replace(job, tensors=Tensors(), average=Tensors()),
                self.parcel(job.tensors),
                self.parcel(job.average),
                as_array(self.place.stored(job.client, before=job.t)),
            )
            for job in bundle
        ]
        # in a list, a reference is not fetched before the task says so: most have it open already
        return self.task.remote(self.run_id, [self.luggage], errands)

    def parcel(self, tensors: Tensors) -> Parcel:
        """The tensors on their way; the same object for many clients is encoded and stored once."""
        if id(tensors) not in self.sent:
            self.number += 1
            content = as_array(encode_groups({"down": tensors}))
            stored = content if content.nbytes < INLINE else ray.put(content)
            self.sent[id(tensors)] = tensors, Parcel(self.number, stored)
        return self.sent[id(tensors)][1]

    def drop(self, bundle: list[Job]) -> None:
        """Let go of what no job needs any more: the store frees it."""
        for tensors in (t for job in bundle for t in (job.tensors, job.average)):
            self.users[id(tensors)] -= 1
            if not self.users[id(tensors)]:
                self.sent.pop(id(tensors), None)

    def arrived(self, job: Job, outcome: Outcome) -> Reply:
        """A reply with its tensors; what the client keeps is on disk by then."""
        if isinstance(outcome.reply, HeterophonyError):
            raise outcome.reply
        if outcome.kept is not None:
            self.place.store(job.client, job.t, bytes(outcome.kept))
        assert outcome.tensors is not None
        groups, _ = decode_groups(bytes(outcome.tensors), finite=False)
        return replace(outcome.reply, tensors=groups["up"], aside=groups["aside"])


def fetched(ref: Any, bundle: list[Job]) -> list[Outcome] | None:
    """What came of a bundle; None if it was lost on its way."""
    try:
        outcomes: list[Outcome] = ray.get(ref)
    except exceptions.ObjectLostError:
        return None
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError) as error:
        raise died(bundle, first_line(error)) from None
    except exceptions.OutOfMemoryError:
        raise died(bundle, "there was not enough memory; fewer engine.workers need less") from None
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


def lost(job: Job) -> EngineError:
    return EngineError(
        f"client {job.client}, round {job.t}: the Ray cluster lost the result {TRIES} times;"
        " are its nodes up, and is there room for objects on them?"
    )


def died(bundle: list[Job], why: str) -> EngineError:
    job = bundle[0]
    return EngineError(
        f"client {job.client}, round {job.t}: {TRIES + 1} workers of the Ray cluster died on this"
        f" job ({why})"
    )


def first_line(error: Exception) -> str:
    """A reason in one line: Ray's have many."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next(filter(None, lines), type(error).__name__)[:300]


# The cluster --------------------------------------------------------------------------------


@contextmanager
def joined(workers: int | None, cluster: Cluster) -> Iterator[None]:
    """Connected to a cluster; one that is only for us ends with us."""
    if ray.is_initialized():  # by whoever plays several runs, or by the user
        if get_authentication_mode() != AuthenticationMode.TOKEN:
            raise EngineError("Ray runs without authentication; start it with RAY_AUTH_MODE=token")
        yield
        return
    with secured(cluster), ExitStack() as ending:
        if cluster.address is None:
            ours = claim(f"ray-{secrets.token_hex(4)}")
            ending.callback(ours.release)
            how = local(workers or cores(), cluster, ours.folder)
        else:
            answering(cluster.address)
            how = {"address": cluster.address}
        ending.callback(ray.shutdown)
        connect(how, cluster)
        yield


def answering(address: str) -> None:
    """Ray itself would try for minutes, without a word."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except OSError as error:
        why = error.strerror or error
        raise EngineError(f"cannot use {address}: nothing answers there ({why})") from None


@contextmanager
def shared(workers: int | None, cluster: Cluster, runs: int) -> Iterator[tuple[int, Share]]:
    """A cluster for so many runs: how many at a time, and each one's part of it.

    The parts do not overlap: Ray ends the idle workers of one run when those of another are too
    many, and each needs seconds to start.
    """
    with joined(workers, cluster):
        room = slots(cluster)
        room = min(workers or room, room)
        width = min(runs, room, RUNNERS * cores())
        address = ray.get_runtime_context().gcs_address
        there = Cluster(address=address, cpus=cluster.cpus, gpus=cluster.gpus)
        needed = {k: os.environ[k] for k in (TOKEN, LOOPBACK) if k in os.environ}
        yield width, Share(there, room // width, needed)


def local(workers: int, cluster: Cluster, folder: Path) -> dict[str, Any]:
    """A Ray of our own: reachable from this machine alone, without a dashboard."""
    return {
        "address": "local",
        "num_cpus": math.ceil(workers * cluster.cpus),
        "include_dashboard": False,
        "_temp_dir": str(folder),
    }


def connect(how: Mapping[str, Any], cluster: Cluster) -> None:
    """Start or join, in silence; our signals stay ours."""
    main = threading.current_thread() is threading.main_thread()
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        with silent():
            ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **how)
    except Exception as error:  # Ray raises whatever it likes, also plain ones
        where = cluster.address or "a Ray of its own"
        raise EngineError(f"cannot use {where}: {told(error, cluster)}") from None
    finally:
        for s, handler in before.items():
            if main and handler is not None:
                signal.signal(s, handler)


@contextmanager
def silent() -> Iterator[None]:
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


def told(error: Exception, cluster: Cluster) -> str:
    """Why a cluster cannot be joined, and what to do."""
    several = "; with more than one Ray here, name its head:port" if cluster.address == AUTO else ""
    if isinstance(error, ConnectionError | exceptions.AuthenticationError):  # it does not say which
        return f"it is not there, or {TOKEN} is not its token{several}"
    return first_line(error)


@contextmanager
def secured(cluster: Cluster) -> Iterator[None]:
    """Tokens on both sides, always; a cluster only for us gets one that nobody else knows."""
    if os.environ.get(MIXES, "0") not in ("", "0"):
        raise ConfigError(f"{MIXES} lets one client change another's weights; unset it")
    fresh = {LOOPBACK: "0", TOKEN: secrets.token_hex(32)}
    if cluster.address is not None:
        fresh = {}
        if not has_token():
            raise ConfigError(
                f"engine.address: a cluster is joined with its token; put it into"
                f" ~/.ray/auth_token or {TOKEN}, or set RAY_AUTH_TOKEN_PATH to a file that holds it"
            )
    before = {k: os.environ.get(k) for k in fresh}
    os.environ.update({**QUIET, **fresh})
    reread()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        reread()


def reread() -> None:
    """Ray reads these variables once; who imported it earlier must not be without a token."""
    ray_constants.ENABLE_RAY_CLUSTER = os.environ.get(LOOPBACK) != "0"
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def has_token() -> bool:
    usual = Path.home() / ".ray" / "auth_token"
    return any(os.environ.get(k) for k in (TOKEN, "RAY_AUTH_TOKEN_PATH")) or usual.is_file()


def slots(cluster: Cluster) -> int:
    """How many jobs the nodes that are there can do at a time."""
    found = sum(fitting(n["Resources"], cluster) for n in ray.nodes() if n["Alive"])
    if not found:
        wanted = f"engine.cpus = {cluster.cpus:g}" + (
            f" and engine.gpus = {cluster.gpus:g}" if cluster.gpus else ""
        )
        raise EngineError(f"no node of the Ray cluster has what a job needs ({wanted}); lower it")
    return found


def fitting(resources: Mapping[str, float], cluster: Cluster) -> int:
    fits = [resources.get("CPU", 0) / cluster.cpus]
    if cluster.gpus:
        fits.append(resources.get("GPU", 0) / cluster.gpus)
    return int(min(fits) + 1e-9)


def elsewhere() -> list[str]:
    """The nodes that are other machines than this."""
    here = ray.util.get_node_ip_address()
    return [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeManagerAddress"] != here]


def tidied(run: str, nodes: Sequence[str]) -> None:
    """What these nodes hold of a run is removed, as far as they answer."""
    task = ray.remote(remove)
    asked = []
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        asked.append(task.options(num_cpus=0, scheduling_strategy=there).remote(run))
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=PATIENCE)


# On a node ----------------------------------------------------------------------------------


def perform(run: str, luggage: list[Any], errands: list[Errand]) -> list[Outcome]:
    """A bundle of jobs, in one of Ray's processes."""
    here = workplace(run, lambda: ray.get(luggage[0]), ray.get, ray.cloudpickle.loads)
    return done(here, errands, ray.get)
