"""Encode jobs and replies as bytes and decode them: tensors as blobs, scalars in the header.

The encoding of a job's tensors does not depend on the client, so clients on one board that get the
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
from .messages import Assigned, BlobRef, ReplyHeader

ASIDE_PREFIX = "aside:"  # prefix of personal tensors, which are sent only to measure G


def make_assigned(run_id: str, job: Job, tensors: BlobRef, average: BlobRef) -> Assigned:
    """Return the message that assigns a job to a board; the message's id is a digest of its content."""
    assigned = Assigned(
        "", job.client, job.kind, job.t, job.turn, job.keeps_memory, tensors, average, 0
    )
    content = json.dumps([run_id, asdict(assigned)], sort_keys=True, separators=(",", ":"))
    return replace(assigned, id=hashlib.sha256(content.encode()).hexdigest())


def make_job(assigned: Assigned, tensors: Tensors, average: Tensors) -> Job:
    """Return the job that a board's server assigned, with the tensors that have arrived."""
    kind: Any = assigned.job
    return Job(
        kind=kind,
        t=assigned.t,
        client=assigned.client,
        tensors=tensors,
        generic_model=average,
        turn=assigned.turn,
        keeps_memory=assigned.keeps,
    )


def encode_reply(reply: Reply, share_personal: bool = False) -> bytes:
    """Encode a board's reply, with personal tensors only if the run requests them to measure G.

    The duration of the job is left out, so equal work gives equal bytes.
    """
    metrics = {k: v for k, v in reply.metrics.items() if k != "seconds"}
    scalars = {k: v for k, v in vars(reply).items() if k not in ("tensors", "aside")}
    header = parse_record(ReplyHeader, {**scalars, "metrics": metrics}, "a reply")
    aside = {ASIDE_PREFIX + k: v for k, v in reply.aside.items()} if share_personal else {}
    return codec.encode_blob(Tensors({**reply.tensors, **aside}), asdict(header))


def decode_reply(blob: bytes, assigned: Assigned, seconds: float) -> Reply:
    """Decode a board's reply to a job; raise CodecError if it is malformed or not finite."""
    tensors, content = codec.decode_blob(blob)
    header = parse_record(ReplyHeader, content, "a reply")
    if (header.client, header.kind, header.turn) != (assigned.client, assigned.job, assigned.turn):
        raise CodecError(f"a reply does not belong to the job of client {assigned.client!r}")
    header = replace(header, metrics={**header.metrics, "seconds": seconds})
    aside = tensors.below(ASIDE_PREFIX)
    shared = Tensors({k: v for k, v in tensors.items() if not k.startswith(ASIDE_PREFIX)})
    return Reply(tensors=shared, aside=aside, **vars(header))
