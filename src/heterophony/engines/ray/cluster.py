"""Join or start a Ray cluster, with a token, and share one cluster among several runs."""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

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

from ...core.errors import ConfigError, EngineError
from ..base import AUTO_ADDRESS, Cluster, ClusterShare, count_cores
from . import RAY_VARIABLES
from .remote_job import open_temp_folder, remove_temp_folder

TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105  # the name of a variable
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": nobody can connect from outside
ZERO_COPY_VARIABLE = "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"
TIMEOUT_SECONDS = 10  # time limit for a cluster to answer, and for its nodes to clean up
RUNS_PER_CORE = 4  # runs at a time per core of the driver's machine: merging is done there


@contextmanager
def connect_to_cluster(workers: int | None, cluster: Cluster) -> Iterator[None]:
    """Join the cluster, or start one on this machine, which ends with this context."""
    if ray.is_initialized():  # initialised by ``share_cluster`` or by the user
        if get_authentication_mode() != AuthenticationMode.TOKEN:
            raise EngineError("Ray runs without authentication; start it with RAY_AUTH_MODE=token")
        yield
        return
    with require_token(cluster), ExitStack() as cleanup:
        if cluster.address is None:
            folder = open_temp_folder(f"ray-{secrets.token_hex(4)}")
            cleanup.callback(folder.delete)
            options = make_local_options(workers or count_cores(), cluster, folder.path)
        else:
            check_reachable(cluster.address)
            options = {"address": cluster.address}
        cleanup.callback(ray.shutdown)
        start_ray(options, cluster)
        yield


def check_reachable(address: str) -> None:
    """Raise an error at once if nothing listens there; Ray would try for minutes, silently."""
    if address == AUTO_ADDRESS:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), TIMEOUT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise EngineError(f"cannot use {address}: nothing answers there ({reason})") from None


@contextmanager
def share_cluster(
    workers: int | None, cluster: Cluster, runs: int
) -> Iterator[tuple[int, ClusterShare]]:
    """Connect to a cluster for several runs: how many run at a time, and each one's share.

    Shares do not overlap. Otherwise Ray would end the idle workers of one run to make room for
    another's, and a worker needs seconds to start.
    """
    with connect_to_cluster(workers, cluster):
        slots = count_slots(cluster)
        slots = min(workers or slots, slots)
        width = min(runs, slots, RUNS_PER_CORE * count_cores())
        address = ray.get_runtime_context().gcs_address
        joined = Cluster(address=address, cpus=cluster.cpus, gpus=cluster.gpus)
        environment = {
            k: os.environ[k] for k in (TOKEN_VARIABLE, LOOPBACK_VARIABLE) if k in os.environ
        }
        yield width, ClusterShare(joined, slots // width, environment)


def make_local_options(workers: int, cluster: Cluster, folder: Path) -> dict[str, Any]:
    """Options of ``ray.init`` for a cluster of this machine: loopback only, no dashboard."""
    return {
        "address": "local",
        "num_cpus": math.ceil(workers * cluster.cpus),
        "include_dashboard": False,
        "_temp_dir": str(folder),
    }


def start_ray(options: Mapping[str, Any], cluster: Cluster) -> None:
    """Call ``ray.init`` without its output, and restore the signal handlers that it replaces."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        with silence_stderr():
            ray.init(
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                # otherwise Ray puts the current folder first on its workers' path
                job_config=JobConfig(_client_job=True),
                **options,
            )
    except Exception as error:  # Ray raises many types, plain ones too
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

    ``sys.stderr`` still reaches the terminal, for example the answer to Ctrl-C.
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


def explain_connection_error(error: Exception, cluster: Cluster) -> str:
    """Explain why a cluster cannot be joined, and what to do."""
    hint = (
        "; if several clusters run here, set engine.address to head:port"
        if cluster.address == AUTO_ADDRESS
        else ""
    )
    if isinstance(
        error, ConnectionError | exceptions.AuthenticationError
    ):  # Ray does not say which
        return f"it is not there, or {TOKEN_VARIABLE} is not its token{hint}"
    return first_line(error)


@contextmanager
def require_token(cluster: Cluster) -> Iterator[None]:
    """Use token authentication; a cluster that we start gets a new random token."""
    if os.environ.get(ZERO_COPY_VARIABLE, "0") not in ("", "0"):
        raise ConfigError(
            f"{ZERO_COPY_VARIABLE} lets one client change another's weights; unset it"
        )
    fresh = {LOOPBACK_VARIABLE: "0", TOKEN_VARIABLE: secrets.token_hex(32)}
    if cluster.address is not None:
        fresh = {}
        if not has_token():
            raise ConfigError(
                "engine.address: a cluster is joined with its token; put it into"
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
    """Make Ray read its variables again: the user may have imported it before they were set."""
    ray_constants.ENABLE_RAY_CLUSTER = os.environ.get(LOOPBACK_VARIABLE) != "0"
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def has_token() -> bool:
    """Return True if Ray finds a token, in the environment or in the user's file."""
    file = Path.home() / ".ray" / "auth_token"
    return any(os.environ.get(k) for k in (TOKEN_VARIABLE, "RAY_AUTH_TOKEN_PATH")) or file.is_file()


def count_slots(cluster: Cluster) -> int:
    """Return how many jobs the live nodes can run at a time; raise EngineError if none fits."""
    slots = sum(count_fitting_jobs(n["Resources"], cluster) for n in ray.nodes() if n["Alive"])
    if not slots:
        needs = f"engine.cpus = {cluster.cpus:g}" + (
            f" and engine.gpus = {cluster.gpus:g}" if cluster.gpus else ""
        )
        raise EngineError(f"no node of the Ray cluster has what a job needs ({needs}); lower it")
    return slots


def count_fitting_jobs(resources: Mapping[str, float], cluster: Cluster) -> int:
    """Count the jobs that one node can run at a time."""
    fits = [resources.get("CPU", 0) / cluster.cpus]
    if cluster.gpus:
        fits.append(resources.get("GPU", 0) / cluster.gpus)
    return int(min(fits) + 1e-9)


def list_remote_nodes() -> list[str]:
    """List the ids of the live nodes on other machines."""
    here = ray.util.get_node_ip_address()
    return [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeManagerAddress"] != here]


def clean_nodes(run: str, nodes: Sequence[str]) -> None:
    """Delete the run's temporary folder on these nodes; nodes that do not answer are skipped."""
    task = ray.remote(remove_temp_folder)
    refs = []
    for node in nodes:
        on_node = NodeAffinitySchedulingStrategy(node, soft=False)
        refs.append(task.options(num_cpus=0, scheduling_strategy=on_node).remote(run))
    if refs:
        ray.wait(refs, num_returns=len(refs), timeout=TIMEOUT_SECONDS)


def first_line(error: Exception) -> str:
    """Return the first line of a message; Ray's messages have many."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next(filter(None, lines), type(error).__name__)[:300]
