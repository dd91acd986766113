"""Jobs and replies as bytes and back: tensors as blobs, the scalars beside them, all checked.

What a job's tensors are encoded to does not depend on the client: several clients of a device
that are sent the same model have the same blob, which travels once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

from ...core import codec
from ...core.algorithm import Reply
from ...core.errors import CodecError
from ...core.tensors import Tensors
from ...jobs.plan import Job
from .message_fields import parse_record
from .messages import BlobRef, ReplyHeader, Task

ASIDE_PREFIX = "aside:"  # before the names of what is only measured, where a run asks for it


def make_task(run: str, job: Job, tensors: BlobRef, average: BlobRef) -> Task:
    """The task of a job. Its id is a sha256 of all that it says, and of the run."""
    what = Task("", job.client, job.kind, job.t, job.turn, job.keeps_memory, tensors, average, 0)
    content = json.dumps([run, asdict(what)], sort_keys=True, separators=(",", ":"))
    return replace(what, id=hashlib.sha256(content.encode()).hexdigest())


def make_job(task: Task, tensors: bytes, average: bytes) -> Job:
    """The job of a task whose blobs are here."""
    down, mean = (codec.decode_blob(b, finite=False)[0] for b in (tensors, average))
    kind: Any = task.job
    return Job(
        kind=kind,
        t=task.t,
        client=task.client,
        tensors=down,
        generic_model=mean,
        turn=task.turn,
        keeps_memory=task.keeps,
    )


def encode_tensors(tensors: Tensors) -> bytes:
    """What goes down."""
    return codec.encode_blob(tensors)


def encode_reply(reply: Reply, aside: bool = False) -> bytes:
    """What goes up: not what stays on the device, unless it may be sent aside, to be measured.

    Nor the seconds it took: equal work has equal bytes.
    """
    metrics = {k: v for k, v in reply.metrics.items() if k != "seconds"}
    said = {k: v for k, v in vars(reply).items() if k not in ("tensors", "aside")}
    scalars = parse_record(ReplyHeader, {**said, "metrics": metrics}, "a reply")
    extra = {ASIDE_PREFIX + k: v for k, v in reply.aside.items()} if aside else {}
    return codec.encode_blob(Tensors({**reply.tensors, **extra}), asdict(scalars))


def decode_reply(blob: bytes, task: Task, seconds: float) -> Reply:
    """The reply to a task, finite and of a form that can be trusted; others check its content."""
    found, header = codec.decode_blob(blob)
    said = parse_record(ReplyHeader, header, "a reply")
    if (said.client, said.kind, said.turn) != (task.client, task.job, task.turn):
        raise CodecError(f"a reply is not that to the task of client {task.client!r}")
    said = replace(said, metrics={**said.metrics, "seconds": seconds})
    aside = found.below(ASIDE_PREFIX)
    up = Tensors({k: v for k, v in found.items() if not k.startswith(ASIDE_PREFIX)})
    return Reply(tensors=up, aside=aside, **vars(said))
