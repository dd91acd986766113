"""The Ray engine: jobs run as stateless tasks, on this machine or on a cluster.

Clients' memories stay in the run's folder, on the driver's disk. A memory is sent with its
client's job and comes back with the reply. So nodes share no file system, and a node that dies
costs only time.
"""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import ray
from ray import exceptions

from ...core.accelerator import WorkerPlace
from ...core.algorithm import Reply
from ...core.codec import decode_groups, encode_groups
from ...core.errors import EngineError, HeterophonyError
from ...core.own_modules import LOADED
from ...core.tensors import Tensors
from ...jobs.client_store import FolderClientStore
from ...jobs.plan import Job, Plan
from ..base import MAX_ATTEMPTS, SERIAL, Engine, EngineSpec, batch_jobs
from ..pool import strip_data
from ..wire import EncodeOnce, make_pickling_error
from .cluster import clean_nodes, connect_to_cluster, count_slots, first_line, list_remote_nodes
from .remote_job import (
    EncodedTensors,
    RemoteJob,
    RemoteReply,
    RunBundle,
    as_array,
    get_versions,
    open_run,
    remove_temp_folder,
    run_remote_jobs,
)

INLINE_BYTES = 100_000  # larger tensors are put into Ray's store once, and read by many jobs


class Ray(Engine):
    """One run on a cluster. By default, as many jobs run at a time as fit."""

    def __init__(
        self, plan: Plan, client_store: FolderClientStore, spec: EngineSpec = SERIAL
    ) -> None:
        self.plan, self.client_store = plan, client_store
        self.workers, self.cluster, self.compute = spec.workers, spec.cluster, spec.compute
        self.run_id = secrets.token_hex(4)
        self.encode = EncodeOnce(encode_tensors)
        self.remaining_uses = Counter[int]()  # by the id of the tensors

    def __enter__(self) -> Self:
        with ExitStack() as connection:
            connection.enter_context(connect_to_cluster(self.workers, self.cluster))
            count_slots(self.cluster)  # raises an error if no job fits
            self.run_bundle = ray.put(self.pack_run())
            self.remote_task = ray.remote(run_batch).options(
                num_cpus=self.cluster.cpus, num_gpus=self.cluster.gpus, max_retries=MAX_ATTEMPTS
            )
            self.connection = connection.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self.connection:
            clean_nodes(self.run_id, list_remote_nodes())
            del self.run_bundle  # frees our data on a cluster that outlives the run
        remove_temp_folder(self.run_id)

    def pack_run(self) -> RunBundle:
        """Put plan and data into Ray's store once, for all nodes."""
        try:
            plan = ray.cloudpickle.dumps(strip_data(self.plan))
        except Exception:  # a user's own object can raise anything
            raise make_pickling_error(strip_data(self.plan), ray.cloudpickle.dumps, "Ray") from None
        federation = self.plan.federation
        return RunBundle(
            versions=get_versions(),
            module_paths=tuple(str(Path(p).absolute()) for p in sys.path),
            sources=dict(LOADED),
            plan_ref=ray.put(as_array(plan)),
            federation_header=federation.about(),
            array_refs={k: ray.put(array) for k, array in federation.arrays().items()},
            where=WorkerPlace.describe(self.compute),
        )

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        slots = count_slots(self.cluster)
        # without a smaller limit, every worker has a second task waiting for the end of its first
        limit = min(self.workers or slots, slots)
        limit = 2 * slots if limit == slots else limit
        waiting, losses = batch_jobs(jobs, min(limit, slots))[::-1], Counter[int]()
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
                        if losses[id(batch)] == MAX_ATTEMPTS:
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
        remote_jobs = [
            RemoteJob(
                replace(job, tensors=Tensors(), generic_model=Tensors()),
                self.encode(job.tensors),
                self.encode(job.generic_model),
                as_array(self.client_store.read_blob(job.client, before=job.t)),
            )
            for job in batch
        ]
        # Ray fetches references among the arguments before the task starts, but not those in a
        # list: most workers have opened the run already and do not need the bundle
        return self.remote_task.remote(self.run_id, [self.run_bundle], remote_jobs)

    def release_tensors(self, batch: list[Job]) -> None:
        """Drop tensors that no later job needs, so that Ray's store frees them."""
        for tensors in (t for job in batch for t in (job.tensors, job.generic_model)):
            self.remaining_uses[id(tensors)] -= 1
            if not self.remaining_uses[id(tensors)]:
                self.encode.forget(tensors)

    def receive_reply(self, job: Job, remote: RemoteReply) -> Reply:
        """Write the client's memory to disk, and return the reply with its tensors."""
        if isinstance(remote.reply, HeterophonyError):
            raise remote.reply
        if remote.memory is not None:
            self.client_store.write_blob(job.client, job.t, bytes(remote.memory))
        assert remote.tensors is not None
        groups, _ = decode_groups(bytes(remote.tensors), finite=False)
        return replace(remote.reply, tensors=groups["up"], aside=groups["aside"])


def encode_tensors(tensors: Tensors, key: int) -> EncodedTensors:
    """Encode tensors for jobs; large ones go to Ray's store."""
    content = as_array(encode_groups({"down": tensors}))
    return EncodedTensors(key, content if content.nbytes < INLINE_BYTES else ray.put(content))


def fetch_replies(ref: Any, batch: list[Job]) -> list[RemoteReply] | None:
    """Fetch the replies of a batch; None if Ray lost them."""
    try:
        replies: list[RemoteReply] = ray.get(ref)
    except exceptions.ObjectLostError:
        return None
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError) as error:
        raise make_died_error(batch, first_line(error)) from None
    except exceptions.OutOfMemoryError:
        raise make_died_error(
            batch, "there was not enough memory; fewer engine.workers need less"
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
    return replies


def make_lost_error(job: Job) -> EngineError:
    return EngineError(
        f"client {job.client}, round {job.t}: the Ray cluster lost the result {MAX_ATTEMPTS} times;"
        " are its nodes up, and is there room for objects on them?"
    )


def make_died_error(batch: list[Job], reason: str) -> EngineError:
    job = batch[0]
    return EngineError(
        f"client {job.client}, round {job.t}: {MAX_ATTEMPTS + 1} workers of the Ray cluster died"
        f" on this job ({reason})"
    )


# On a node ----------------------------------------------------------------------------------


def run_batch(run: str, bundle_refs: list[Any], remote_jobs: list[RemoteJob]) -> list[RemoteReply]:
    """Run a batch of jobs in one of Ray's worker processes."""
    opened = open_run(run, lambda: ray.get(bundle_refs[0]), ray.get, ray.cloudpickle.loads)
    return run_remote_jobs(opened, remote_jobs, ray.get)
