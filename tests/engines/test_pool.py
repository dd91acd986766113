"""The pool: batches of small jobs, what travels in messages and what in files, and dying workers."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import heterophony as hp
from helpers.support import digits, identical, played, same
from heterophony.core.algorithm import Reply
from heterophony.core.errors import EngineError
from heterophony.core.samples import is_aligned
from heterophony.engines import wire as tensor_messages
from heterophony.engines.pool import Pool
from heterophony.engines.wire import (
    EncodeOnce,
    JobBatch,
    ReplyBatch,
    TensorCache,
    decode_cached,
    encode_message,
)
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.plan import Job
from heterophony.jobs.work import work, work_together

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


@dataclass(frozen=True)
class DeadlyOnce(hp.Algorithm):
    """Kills the process that trains client 7, once, while it writes a file."""

    folder: str = ""

    def local(self, client):
        unfinished = Path(self.folder, ".0000000.0123456789abcdef.new")
        if client.id == "7" and client.t == 0 and not unfinished.parent.exists():
            unfinished.parent.mkdir(parents=True)
            unfinished.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().local(client)


def test_the_pool_removes_what_a_killed_worker_did_not_finish(tmp_path):
    folder = tmp_path / "run" / "commits" / "clients" / "7"
    played(DeadlyOnce(str(folder)), engine="pool", workers=2, out=tmp_path / "run", **MANY)
    assert [f.name for f in folder.iterdir() if f.suffix] == []


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
    decoded, cache = list[str](), TensorCache[str]()

    def get(key):
        return cache.get(key, lambda: decoded.append(key) or SMALL)

    for key in "abaca":
        assert get(key) is SMALL
    assert decoded == ["a", "b", "c"]
    get("b")
    assert decoded == ["a", "b", "c", "b"]


def test_two_turns_of_a_client_in_one_batch_keep_their_tensors_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_messages, "INLINE_BYTES", 0)
    plan = played("fedavg", rounds=1).plan
    store = FolderClientStore(tmp_path / "kept", tmp_path / "scratch")
    model = plan.create_initial_server().model
    jobs = [Job(kind="train", t=0, client="0", tensors=model, turn=turn) for turn in (0, 1)]
    replies = work_together(plan, jobs, store)
    first, second = ReplyBatch.encode(replies, tmp_path / "up").decode()
    assert (first.turn, second.turn) == (0, 1)
    assert first.tensors.digest() == work(plan, jobs[0], store).tensors.digest()
    assert second.tensors.digest() == work(plan, jobs[1], store).tensors.digest()
    assert first.tensors.digest() != second.tensors.digest()


@pytest.mark.parametrize("inline", [0, 1 << 16])
def test_replies_of_a_batch_arrive_as_they_were_sent(tmp_path, monkeypatch, inline):
    monkeypatch.setattr(tensor_messages, "INLINE_BYTES", inline)

    def make(client: str, size: int) -> Reply:
        up = hp.Tensors({"a": torch.rand(3, size), "n": torch.tensor(int(client))})
        aside = hp.Tensors({"b": torch.rand(2, 3, 2, 2).to(memory_format=torch.channels_last)})
        return Reply(client, "train", up, 7, 7.0, {"loss/main": 0.5}, aside, 1, 70, "digest")

    for sizes in ((5, 5, 5), (5, 4, 5), (5,)):
        replies = [make(str(i), size) for i, size in enumerate(sizes)]
        arrived = ReplyBatch.encode(replies, tmp_path / "up").decode()
        for sent, found in zip(replies, arrived, strict=True):
            assert same(found.tensors, sent.tensors)
            assert same(found.aside, sent.aside)
            assert all(is_aligned(v) for v in (*found.tensors.values(), *found.aside.values()))
            nothing = {"tensors": hp.Tensors(), "aside": hp.Tensors()}
            assert replace(found, **nothing) == replace(sent, **nothing)
        assert not list(tmp_path.iterdir())


def test_jobs_of_a_batch_arrive_with_their_models(tmp_path):
    models = [hp.Tensors({"w": torch.rand(4)}) for _ in range(2)]
    jobs = [
        Job(
            kind="evaluate",
            t=3,
            client=str(i),
            tensors=models[i % 2],
            cost=i,
            generic_model=models[0],
        )
        for i in range(5)
    ]
    batch = JobBatch.encode(
        jobs,
        EncodeOnce(
            lambda tensors, key: encode_message({"down": tensors}, key, tmp_path / str(key))
        ),
    )
    assert len(batch.models) == 2
    for sent, found in zip(jobs, batch.decode(TensorCache()), strict=True):
        assert (found.client, found.cost, found.t) == (sent.client, sent.cost, sent.t)
        assert same(found.tensors, sent.tensors)
        assert same(found.generic_model, sent.generic_model)
