"""A resume rests on what its commit recorded: other memories, events or settings are refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import heterophony as hp
from helpers.commands import call, refused
from helpers.support import played
from heterophony.core.codec import decode_groups, encode_groups
from heterophony.core.errors import CodecError, FolderError
from heterophony.runs.folder import (
    RunFolder,
    decode_memory_digests,
    digest_settings,
    encode_memory_digests,
)

HOW: dict[str, Any] = {"rounds": 3, "participation": 1.0, "progress": False}
ALGORITHM = "fedper"  # its clients keep their heads


class StopError(Exception):
    """Ends a run in the middle."""


def stop(event: Any) -> None:
    if event["event"] == "evaluation" and event["t"] == 2:
        raise StopError


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Path:
    """A run that was stopped after two rounds; not to be changed."""
    out = tmp_path_factory.mktemp("digests") / "run"
    with pytest.raises(StopError):
        played(ALGORITHM, out=out, on_event=stop, **HOW)
    return out


@pytest.fixture
def run(interrupted, tmp_path) -> RunFolder:
    """The same, to be damaged."""
    return RunFolder(Path(shutil.copytree(interrupted, tmp_path / "run")))


def resume(run: RunFolder) -> hp.Result:
    return played(ALGORITHM, out=run.path, resume=True, **HOW)


def flip_bit(run: RunFolder) -> None:
    path = run.client_store.memory_file("0", 1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def empty(run: RunFolder) -> None:
    run.client_store.memory_file("0", 1).write_bytes(b"")


def delete(run: RunFolder) -> None:
    run.client_store.memory_file("0", 1).unlink()


def swap(run: RunFolder) -> None:
    a, b = (run.client_store.memory_file(client, 1) for client in "01")
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)


def take_older(run: RunFolder) -> None:
    old, new = (run.client_store.memory_file("0", t) for t in (0, 1))
    shutil.copy(old, new)


def edit_last_event(run: RunFolder) -> None:
    *lines, last = run.events_file.read_text().splitlines(keepends=True)
    lines[-1] = lines[-1].replace('"t":1', '"t":7')
    run.events_file.write_text("".join([*lines, last]))


MEMORIES: list[Callable[[RunFolder], None]] = [flip_bit, empty, delete, swap, take_older]


@pytest.mark.parametrize("damage", MEMORIES)
def test_another_memory_is_refused_and_the_older_commit_is_offered(run, damage):
    damage(run)
    newest = run.commits_folder / "0000002"
    with pytest.raises(FolderError) as refusal:
        resume(run)
    path = run.client_store.memory_file("0", 1)
    assert str(refusal.value) == (
        f"the memory of client 0 ({path}) does not match its commit (its sha256 differs);"
        f" restore it, or delete {newest} to go back to round 1"
    )
    newest.unlink()
    assert resume(run).model_sha256 == played(ALGORITHM, **HOW).model_sha256


def test_events_that_were_edited_are_refused(run):
    edit_last_event(run)
    with pytest.raises(FolderError, match="does not match its commit: it was edited"):
        resume(run)


def test_if_the_older_commit_rests_on_it_too_there_is_nothing_to_go_back_to(run):
    text = run.events_file.read_text()
    run.events_file.write_text(text.replace('"algorithm":"fedper"', '"algorithm":"fedpar"', 1))
    with pytest.raises(FolderError, match="edited; restore it, or start the run again"):
        resume(run)


def test_an_unchanged_run_is_continued_with_the_same_bits(run):
    assert resume(run).model_sha256 == played(ALGORITHM, **HOW).model_sha256


# Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [("lr = 0.1", "lr = 0.2"), ("batch = 10", "batch = 20"), ("rounds = 2", "rounds = 9")],
)
def test_settings_of_a_begun_run_cannot_be_edited(tmp_path, before, after):
    quick = (
        "rounds=2",
        "data.clients=2",
        "training.epochs=1",
        "training.lr=0.1",
        "training.batch=10",
    )
    words = [w for pair in (*quick, "engine.name=serial") for w in ("-c", pair)]
    out = RunFolder(tmp_path / "mine")
    assert call("run", *words, "--out", out.path).exit_code == 0
    result = json.loads(out.result_file.read_text())
    # as if it had been stopped after a round
    (out.commits_folder / "0000002").unlink()
    lines = out.events_file.read_text().splitlines(keepends=True)
    out.events_file.write_text("".join(lines[:-1]))
    text = out.config_file.read_text()
    assert before in text
    out.config_file.write_text(text.replace(before, after))
    assert refused(3, "resume", out.path) == (
        f"{out.config_file} was edited after the run started; restore it, or start the run again"
    )
    out.config_file.write_text(f"# mine\n{text}".replace('name = "serial"', 'name = "pool"'))
    assert call("resume", out.path, "-c", "engine.name=serial").exit_code == 0
    assert json.loads(out.result_file.read_text())["model_sha256"] == result["model_sha256"]


def test_settings_are_compared_without_the_engine_and_the_layout():
    text = 'seed = 1\n[algorithm]\nname = "fedrep_full"\n[engine]\nname = "pool"\n'
    same = '# mine\nseed=1\n[engine]\nname = "ray"\n[algorithm]\nname = "FedRepFull"\n'
    assert digest_settings(text) == digest_settings(same)
    assert digest_settings(text) != digest_settings(text.replace("1", "2"))


def test_digests_come_back():
    digests = {name: (t, f"{t:064x}") for t, name in enumerate(["a", "ü/|", "*"])}
    assert decode_memory_digests(encode_memory_digests(digests)) == digests
    assert decode_memory_digests(encode_memory_digests({})) == {}


# Form -------------------------------------------------------------------------------------------

NO_STATES: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "no round": lambda groups, header: header.pop("t"),
    "a round that is a list": lambda groups, header: header.update(t=[1]),
    "a length that is text": lambda groups, header: header.update(events="7"),
    "a negative length": lambda groups, header: header.update(events=-1),
    "no model": lambda groups, header: groups.pop("model"),
}


@pytest.mark.parametrize("change", NO_STATES.values(), ids=NO_STATES)
def test_a_commit_of_another_form_is_damaged_and_the_older_one_is_used(run, change):
    newest = run.commits_folder / "0000002"
    groups, header = decode_groups(newest.read_bytes()[:-32], finite=False)
    change(groups, header)
    blob = encode_groups(groups, header)
    newest.write_bytes(blob + hashlib.sha256(blob).digest())
    restored = run.restore_newest_commit({"0": 1})
    assert restored is not None
    assert restored.t == 1


@pytest.mark.parametrize("name", ["\ud800", "x" * 5000])
def test_a_memory_whose_client_can_have_no_file_is_refused(run, name):
    names = json.dumps([name]).encode()
    digests = encode_memory_digests({"0": (1, "ab" * 32)})
    digests["clients"] = torch.frombuffer(bytearray(names), dtype=torch.uint8)
    newest = run.commits_folder / "0000002"
    groups, header = decode_groups(newest.read_bytes()[:-32], finite=False)
    blob = encode_groups({**groups, "client memories": digests}, header)
    newest.write_bytes(blob + hashlib.sha256(blob).digest())
    with pytest.raises((FolderError, CodecError), match="memor"):
        run.restore_newest_commit({"0": 1})
