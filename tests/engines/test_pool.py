"""The pool: batches of small jobs, what travels in messages and what in files, and dying workers."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import pytest
import torch

import heterophony as hp
from helpers.support import digits, identical, played
from heterophony.core.errors import EngineError
from heterophony.engines import wire as tensor_messages
from heterophony.engines.pool import Pool
from heterophony.engines.wire import (
    EncodeOnce,
    ReplyBatch,
    TensorCache,
    decode_cached,
    encode_message,
)
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.plan import Job
from heterophony.jobs.work import work_together

SMALL, LARGE = hp.Tensors({"w": torch.ones(3)}), hp.Tensors({"w": torch.ones(20_000)})
MANY = {"federation": digits(40, 1200), "participation": 1.0, "rounds": 2}


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedamp", "fedreg", "scaffold"])
def test_small_jobs_travel_in_batches_and_have_the_serial_bits(name, monkeypatch):
    sizes, assign = list[int](), Pool.assign_batch

    def record(self, worker, batch):
        sizes.append(len(batch))
        assign(self, worker, batch)

    monkeypatch.setattr(Pool, "assign_batch", record)
    pooled = played(name, engine="pool", workers=2, **MANY)
    assert max(sizes) > 1
    assert identical(pooled, played(name, **MANY))


def test_a_client_that_is_drawn_twice_replies_twice():
    how = {**MANY, "participation": hp.Skewed(count=30, gamma=0.5)}
    assert identical(played("fedper", engine="pool", workers=2, **how), played("fedper", **how))


@dataclass(frozen=True)
class Deadly(hp.Algorithm):
    """Kills the process that trains client 7."""

    def local(self, client):
        if client.id == "7":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().local(client)


def test_the_job_on_which_workers_die_is_found_in_its_batch():
    with pytest.raises(EngineError, match="client 7, round 0: 3 workers died on this job"):
        played(Deadly(), engine="pool", workers=2, **MANY)


# Messages -------------------------------------------------------------------------------------


def test_nothing_is_sent_or_written_for_no_tensors(tmp_path):
    nothing = {"up": hp.Tensors(), "aside": hp.Tensors()}
    assert encode_message(nothing, 0, tmp_path / "file") is None
    assert decode_cached(TensorCache(), None) == {}


def test_small_tensors_have_no_file_and_that_of_large_ones_is_deleted(tmp_path):
    small = encode_message({"up": SMALL}, 0, tmp_path / "small")
    assert small.decode()["up"].digest() == SMALL.digest()
    large = encode_message({"up": LARGE}, 0, tmp_path / "large")
    assert [f.name for f in tmp_path.iterdir()] == ["large"]
    assert large.decode()["up"].digest() == LARGE.digest()
    large.delete()
    assert list(tmp_path.iterdir()) == []


def test_shared_tensors_are_encoded_once_until_they_are_forgotten():
    keys = list[int]()
    encode = EncodeOnce(lambda tensors, key: keys.append(key) or key)
    assert [encode(SMALL), encode(LARGE), encode(SMALL)] == [1, 2, 1]
    encode.forget(SMALL)
    assert encode(SMALL) == 3
    assert encode.clear() == [2, 3]
    assert encode(LARGE) == 4
    assert keys == [1, 2, 3, 4]


def test_a_receiver_decodes_shared_tensors_once_and_keeps_the_newest():
    decoded, cache = list[str](), TensorCache[str](size=2)

    def get(key):
        return cache.get(key, lambda: decoded.append(key) or SMALL)

    for key in "abaca":
        assert get(key) is SMALL
    assert decoded == ["a", "b", "c"]
    get("b")
    assert decoded == ["a", "b", "c", "b"]


def test_two_turns_of_a_client_in_one_batch_have_a_reply_each(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_messages, "INLINE_BYTES", 0)
    plan = played("fedavg", rounds=1).plan
    store = FolderClientStore(tmp_path / "kept", tmp_path / "scratch")
    jobs = [
        Job(kind="train", t=0, client="0", tensors=plan.create_initial_server().model, turn=turn)
        for turn in (0, 1)
    ]
    replies = work_together(plan, jobs, store)
    first, second = ReplyBatch.encode(replies, tmp_path / "replies").decode()
    assert first.tensors.digest() == replies[0].tensors.digest()
    assert second.tensors.digest() == replies[1].tensors.digest() != first.tensors.digest()
