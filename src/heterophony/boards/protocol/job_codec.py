"""Encode jobs and replies as bytes and decode them: tensors as blobs, scalars in the header.

The encoding of a job's tensors does not depend on the client. So clients on one device that get the
same model share one blob, which is sent once.
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

ASIDE_PREFIX = "aside:"  # of the names of personal tensors, sent only to be measured


def make_task(run: str, job: Job, tensors: BlobRef, average: BlobRef) -> Task:
    """Return the task of a job. Its id is a sha256 of the run and of everything in the task."""
    task = Task("", job.client, job.kind, job.t, job.turn, job.keeps_memory, tensors, average, 0)
    content = json.dumps([run, asdict(task)], sort_keys=True, separators=(",", ":"))
    return replace(task, id=hashlib.sha256(content.encode()).hexdigest())


def make_job(task: Task, tensors: bytes, average: bytes) -> Job:
    """Return the job of a task from the content of its blobs."""
    sent, generic_model = (codec.decode_blob(b, finite=False)[0] for b in (tensors, average))
    kind: Any = task.job
    return Job(
        kind=kind,
        t=task.t,
        client=task.client,
        tensors=sent,
        generic_model=generic_model,
        turn=task.turn,
        keeps_memory=task.keeps,
    )


def encode_tensors(tensors: Tensors) -> bytes:
    """Encode what the server sends with a job."""
    return codec.encode_blob(tensors)


def encode_reply(reply: Reply, share_personal: bool = False) -> bytes:
    """Encode a reply, without personal tensors unless the run asks for them to be measured.

    The time it took is left out too: equal work gives equal bytes.
    """
    metrics = {k: v for k, v in reply.metrics.items() if k != "seconds"}
    scalars = {k: v for k, v in vars(reply).items() if k not in ("tensors", "aside")}
    header = parse_record(ReplyHeader, {**scalars, "metrics": metrics}, "a reply")
    aside = {ASIDE_PREFIX + k: v for k, v in reply.aside.items()} if share_personal else {}
    return codec.encode_blob(Tensors({**reply.tensors, **aside}), asdict(header))


def decode_reply(blob: bytes, task: Task, seconds: float) -> Reply:
    """Return the reply to a task: finite and well-formed; its content is checked elsewhere."""
    tensors, content = codec.decode_blob(blob)
    header = parse_record(ReplyHeader, content, "a reply")
    if (header.client, header.kind, header.turn) != (task.client, task.job, task.turn):
        raise CodecError(f"a reply does not belong to the task of client {task.client!r}")
    header = replace(header, metrics={**header.metrics, "seconds": seconds})
    aside = tensors.below(ASIDE_PREFIX)
    shared = Tensors({k: v for k, v in tensors.items() if not k.startswith(ASIDE_PREFIX)})
    return Reply(tensors=shared, aside=aside, **vars(header))
