"""The run folder and client memories: files are complete or missing, however a process ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Barrier

import pytest
import torch

from heterophony.core.algorithm import Server
from heterophony.core.codec import encode_blob, encode_groups
from heterophony.core.errors import BusyError, CodecError, FolderError, StorageError
from heterophony.core.files import read_json, translate_disk_errors, write_atomically, write_json
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE, Samples
from heterophony.core.tensors import Tensors
from heterophony.jobs import client_store as client_store_module
from heterophony.jobs.client_store import FolderClientStore
from heterophony.runs import folder as store
from heterophony.runs.folder import RunFolder

SAMPLES = {"0": 10, "1": 20}


def tensors(value: float, *names: str) -> Tensors:
    return Tensors({n: torch.full((3,), value) for n in names or ("w",)})


def server(t: int) -> Server:
    memory = {"h": tensors(t + 0.5), "empty": Tensors(), "odd|name/x": tensors(-t)}
    return Server(t, SAMPLES, tensors(t, "a", "b"), memory, tensors(t / 3, "own"))


def same(a: Server | None, b: Server) -> bool:
    assert a is not None
    return (
        (a.t, a.samples, a.clients) == (b.t, b.samples, b.clients)
        and a.model.digest() == b.model.digest()
        and a.average.digest() == b.average.digest()
        and sorted(a.memory) == sorted(b.memory)
        and all(a.memory[k].digest() == b.memory[k].digest() for k in b.memory)
    )


@pytest.fixture
def folder(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create("rounds = 3\n")
    yield run
    run.close()


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


# Files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_written_whole_replaced_whole_and_leaves_nothing_beside_it(tmp_path, durable):
    path = tmp_path / "deep" / "file"
    for content in (b"one", b"", b"three" * 1000):
        write_atomically(path, content, durable)
        assert path.read_bytes() == content
        assert names(path.parent) == ["file"]


def test_when_the_rename_fails_the_old_file_is_there_and_nothing_else(tmp_path, monkeypatch):
    write_atomically(tmp_path / "file", b"old")

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        write_atomically(tmp_path / "file", b"new")
    assert caught.value.exit_code == 74
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_content_is_on_disk_before_its_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    order, fsync, replace = [], os.fsync, os.replace
    write_atomically(
        tmp_path / "other", b""
    )  # the first file of a folder syncs the folder's name too
    monkeypatch.setattr(os, "fsync", lambda fd: order.append("fsync") or fsync(fd))
    monkeypatch.setattr(os, "replace", lambda a, b: order.append("replace") or replace(a, b))
    write_atomically(tmp_path / "file", b"x")
    assert order == ["fsync", "replace", "fsync"]
    order.clear()
    write_atomically(tmp_path / "file", b"x", durable=False)
    assert order == ["replace"]


def test_disk_trouble_becomes_one_line_with_the_path():
    with pytest.raises(StorageError) as caught, translate_disk_errors(Path("some/where")):
        raise PermissionError(13, "Permission denied")
    assert str(caught.value).startswith("cannot use some/where: Permission denied; ")
    assert "committed rounds are intact" in str(caught.value)
    with pytest.raises(StorageError, match="odd"), translate_disk_errors(Path("x")):
        raise OSError("odd")


# Memories -----------------------------------------------------------------------------------


@pytest.fixture
def client_store(tmp_path) -> FolderClientStore:
    return FolderClientStore(tmp_path / "memories", tmp_path / "scratch")


def kept(client_store: FolderClientStore, client: str, before: int) -> float | None:
    memory = client_store.load_memory(client, before)
    return memory["m"]["w"][0].item() if memory else None


def test_a_round_gets_the_newest_memory_older_than_itself(client_store):
    for t in (0, 3, 7):
        client_store.save_memory("c", t, {"m": tensors(t)})
    assert [kept(client_store, "c", t) for t in range(10)] == [None, 0, 0, 0, 3, 3, 3, 3, 7, 7]
    assert client_store.load_memory("nobody", 5) == {}


def test_a_memory_comes_back_bit_for_bit_nan_and_all(client_store):
    odd = Tensors({"x": torch.tensor([float("nan"), -0.0, float("inf")]), "n": torch.tensor(3)})
    memory = {"net": odd, "momentum/own": tensors(1), "empty": Tensors()}
    client_store.save_memory("c", 0, memory)
    found = client_store.load_memory("c", 1)
    assert sorted(found) == sorted(memory)
    assert all(found[k].digest() == memory[k].digest() for k in memory)


def test_a_round_done_twice_keeps_the_second_and_sees_the_same_past(client_store):
    client_store.save_memory("c", 0, {"m": tensors(0)})
    client_store.save_memory("c", 1, {"m": tensors(1)})
    assert kept(client_store, "c", 1) == 0
    client_store.save_memory("c", 1, {"m": tensors(11)})
    assert kept(client_store, "c", 1) == 0
    assert kept(client_store, "c", 2) == 11


def test_who_keeps_nothing_leaves_nothing(client_store):
    client_store.save_memory("c", 0, {})
    assert client_store.load_memory("c", 1) == {}
    assert not client_store.memory_folder.exists()


def test_who_no_longer_keeps_anything_does_not_get_the_old_again(client_store):
    client_store.save_memory("c", 0, {"m": tensors(0)})
    client_store.save_memory("c", 1, {})
    assert client_store.load_memory("c", 2) == {}
    assert kept(client_store, "c", 1) == 0


def test_memories_saved_together_are_synced_at_the_same_time(client_store, monkeypatch):
    both, sync = Barrier(2, timeout=60), os.fsync

    def sync_both(fd: int) -> None:
        both.wait()  # broken if one file waits for the other
        sync(fd)

    monkeypatch.setattr(os, "fsync", sync_both)
    save_together(client_store, "ab", 7)
    assert [kept(client_store, client, 8) for client in "ab"] == [7, 7]


def save_together(client_store: FolderClientStore, clients: str, t: int) -> None:
    with client_store.saving_together():
        for client in clients:
            client_store.save_memory(client, t, {"m": tensors(t)})


def test_memories_saved_together_are_complete_or_an_error(client_store, monkeypatch):
    monkeypatch.setattr(client_store_module, "WAITING_BYTES", 1)  # each waits for the one before
    client_store.save_memory("c", 0, {"m": tensors(0)})
    client_store.memory_folder.joinpath("b").write_bytes(b"no folder")
    with pytest.raises(StorageError):
        save_together(client_store, "abc", 1)
    assert kept(client_store, "a", 2) == 1
    with client_store.saving_together():
        client_store.save_memory("c", 2, {})
    assert client_store.load_memory("c", 3) == {}


@pytest.mark.parametrize("client", ["../x", "a/b", ".", "..", "ä ö", "%2F", "", "0" * 50])
def test_a_clients_name_cannot_leave_its_folder(client_store, client):
    client_store.save_memory("other", 0, {"m": tensors(9)})
    client_store.save_memory(client, 0, {"m": tensors(1)})
    assert kept(client_store, client, 1) == 1
    assert kept(client_store, "other", 1) == 9
    assert client_store.client_folder(client).parent == client_store.memory_folder


def test_forgetting_keeps_all_that_a_resume_can_ask_for(client_store):
    for t in range(8):
        client_store.save_memory("c", t, {"m": tensors(t)})
    client_store.save_memory("rare", 1, {"m": tensors(1)})
    before = {t: (kept(client_store, "c", t), kept(client_store, "rare", t)) for t in range(5, 10)}
    client_store.delete_old_memories(["c", "rare", "nobody"], before=5)
    assert client_store.list_rounds("c") == [4, 5, 6, 7]
    assert client_store.list_rounds("rare") == [1]
    assert {
        t: (kept(client_store, "c", t), kept(client_store, "rare", t)) for t in range(5, 10)
    } == before
    client_store.delete_old_memories(["c"], before=5)
    assert client_store.list_rounds("c") == [4, 5, 6, 7]
    client_store.delete_old_memories(["rare"], before=0)
    assert client_store.list_rounds("rare") == [1]


def test_a_half_written_memory_is_not_one(client_store):
    client_store.save_memory("c", 0, {"m": tensors(0)})
    (client_store.client_folder("c") / ".0000001.77.new").write_bytes(b"half")
    assert client_store.list_rounds("c") == [0]
    assert kept(client_store, "c", 5) == 0


def test_the_next_owner_removes_what_a_killed_one_did_not_finish(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create("x")
    run.commit(small(1))
    run.close()
    run.client_store.save_memory("c", 0, {"m": tensors(0)})
    before = sorted(tmp_path.rglob("*"))
    for folder in (run.path, run.commits_folder, run.client_store.client_folder("c")):
        (folder / ".0000001.0123456789abcdef.new").write_bytes(b"half")
    reopened(run.path).close()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_memory_is_refused(client_store):
    client_store.save_memory("c", 0, {"m": tensors(0)})
    file = client_store.memory_file("c", 0)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CodecError):
        client_store.load_memory("c", 1)


def test_the_digest_of_a_memory_is_of_its_content(client_store):
    client_store.save_memory("a", 0, {"m": tensors(1), "n": tensors(2)})
    client_store.save_memory("b", 4, {"n": tensors(2), "m": tensors(1)})
    client_store.save_memory("c", 0, {"m": tensors(2), "n": tensors(1)})
    assert client_store.digest_memory("a", 1) == client_store.digest_memory("b", 5)
    assert client_store.digest_memory("a", 1) != client_store.digest_memory("c", 1)
    assert (
        client_store.digest_memory("a", 0)
        == client_store.digest_memory("nobody", 9)
        == Tensors().digest()
    )


def test_derived_data_are_made_once_and_made_again_when_lost(client_store):
    made = []

    def make() -> Samples:
        made.append(1)
        x = torch.arange(48, dtype=torch.uint8).reshape(12, 1, 2, 2)
        return Samples(x, torch.arange(12), BYTES_TO_PLUS_MINUS_ONE, rows=torch.tensor([3, 1, 11]))

    first, second = (
        client_store.load_derived_samples("c", "balanced", BYTES_TO_PLUS_MINUS_ONE, make)
        for _ in range(2)
    )
    assert len(made) == 1
    for each in (first, second):
        assert each.labels.tolist() == [3, 1, 11]
        assert torch.equal(each.get_all_stored(), make().get_all_stored())
        assert each.scale == BYTES_TO_PLUS_MINUS_ONE
    made.clear()
    client_store.load_derived_samples("c", "other", BYTES_TO_PLUS_MINUS_ONE, make)
    client_store.load_derived_samples("d", "balanced", BYTES_TO_PLUS_MINUS_ONE, make)
    assert len(made) == 2


def labelled(n: int) -> Samples:
    return Samples(torch.arange(4 * n, dtype=torch.uint8).reshape(n, 1, 2, 2), torch.arange(n))


def test_derived_data_are_mapped_and_nobody_can_change_the_file(client_store):
    made = [
        client_store.load_derived_samples(
            "c", "balanced", BYTES_TO_PLUS_MINUS_ONE, lambda: labelled(5)
        )
        for _ in range(2)
    ]
    maps = Path("/proc/self/maps").read_text()
    for part in ("x", "y"):
        assert maps.count(str(client_store.scratch / "once" / "c" / f"balanced.{part}.npy")) == 2
    made[0].x.zero_()
    assert torch.equal(made[1].x, labelled(5).x)


@pytest.mark.parametrize("part", ["x", "y"])
@pytest.mark.parametrize("left", [0, 4, 100, -1, None])
def test_derived_data_that_were_cut_short_or_lost_are_made_again(client_store, part, left):
    client_store.load_derived_samples("c", "balanced", BYTES_TO_PLUS_MINUS_ONE, lambda: labelled(5))
    file = client_store.scratch / "once" / "c" / f"balanced.{part}.npy"
    if left is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:left])
    again = client_store.load_derived_samples(
        "c", "balanced", BYTES_TO_PLUS_MINUS_ONE, lambda: labelled(5)
    )
    assert torch.equal(again.x, labelled(5).x)
    assert torch.equal(again.y, labelled(5).y)
    assert names(file.parent) == ["balanced.x.npy", "balanced.y.npy"], "nothing half-written stays"


# Ownership ----------------------------------------------------------------------------------


def test_a_new_folder_holds_its_configuration_and_a_lock(folder):
    assert names(folder.path) == ["config.toml", "lock"]
    assert folder.config_file.read_text() == "rounds = 3\n"


def test_a_folder_with_a_run_is_not_overwritten(folder):
    with pytest.raises(
        FolderError, match="already holds a run; continue it with `heterophony resume"
    ):
        RunFolder(folder.path).create("other")
    assert folder.config_file.read_text() == "rounds = 3\n"


def test_a_foreign_folder_is_neither_used_nor_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FolderError, match="is not empty; choose another --out"):
        RunFolder(tmp_path).create("x")
    with pytest.raises(FolderError, match="is not a run folder"):
        RunFolder(tmp_path).reopen()
    with pytest.raises(FolderError, match="is not empty"):
        RunFolder(tmp_path / "thesis.tex").create("x")
    with pytest.raises(FolderError, match="is not a run folder"):
        RunFolder(tmp_path / "nowhere").reopen()
    assert names(tmp_path) == ["thesis.tex"]


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "run").mkdir()
    run = RunFolder(tmp_path / "run")
    run.create("x")
    run.close()
    assert run.reopen() == "x"
    run.close()


def test_two_owners_are_one_too_many(folder):
    second = RunFolder(folder.path)
    with pytest.raises(BusyError, match="in use by another process"):
        second.reopen()
    second.close()
    with pytest.raises(BusyError):
        RunFolder(folder.path).reopen()
    folder.close()
    assert second.reopen() == "rounds = 3\n"
    second.close()


def test_who_is_refused_does_not_remove_the_owners_scratch(folder):
    write_atomically(folder.scratch_folder / "x", b"")
    with pytest.raises(BusyError):
        RunFolder(folder.path).reopen()
    assert (folder.scratch_folder / "x").exists()
    folder.close()
    assert not folder.scratch_folder.exists()


# Events -------------------------------------------------------------------------------------

EVENTS = [{"event": "start", "x": "ä\n"}, {"event": "round", "t": 0}, {"event": "round", "t": 1}]


def test_events_come_back_in_order(folder):
    assert list(folder.iterate_events()) == []
    for event in EVENTS:
        folder.append_event(event)
    assert list(folder.iterate_events()) == EVENTS
    assert folder.events_file.read_bytes().count(b"\n") == 3


def test_a_half_line_is_left_out_wherever_it_was_cut(folder):
    for event in EVENTS:
        folder.append_event(event)
    whole = folder.events_file.read_bytes()
    first, second = (i for i, b in enumerate(whole) if b == ord("\n") and i < len(whole) - 1)
    for n in range(len(whole) + 1):
        folder.events_file.write_bytes(whole[:n])
        expected = (n > first) + (n > second) + (n == len(whole))
        assert list(folder.iterate_events()) == EVENTS[:expected]


def test_a_damaged_line_is_said(folder):
    folder.events_file.write_bytes(b'{"event":"start"}\n{"eve\n')
    with pytest.raises(FolderError, match="is damaged: a line is not JSON"):
        list(folder.iterate_events())


# Commits ------------------------------------------------------------------------------------


def played(folder: RunFolder, rounds: int) -> None:
    for t in range(1, rounds + 1):
        folder.append_event({"event": "round", "t": t})
        folder.commit(server(t))


def test_before_any_commit_there_is_no_server_and_no_events(folder):
    folder.append_event({"event": "start"})
    assert folder.restore_newest_commit(SAMPLES) is None
    assert folder.events_file.read_bytes() == b""
    assert folder.find_oldest_commit() == 0


def test_a_commit_comes_back_bit_for_bit(folder):
    played(folder, 1)
    assert same(folder.restore_newest_commit(SAMPLES), server(1))
    found = folder.restore_newest_commit(SAMPLES)
    assert found is not None
    assert found.memory["empty"] == Tensors()


def test_the_newest_of_two_kept_commits_is_taken(folder):
    played(folder, 5)
    assert names(folder.commits_folder) == ["0000004", "0000005"]
    assert folder.find_oldest_commit() == 4
    assert same(folder.restore_newest_commit(SAMPLES), server(5))
    folder.commit(server(5))
    assert names(folder.commits_folder) == ["0000004", "0000005"]


def test_the_same_state_gives_the_same_bytes(folder, tmp_path):
    played(folder, 2)
    other = RunFolder(tmp_path / "other")
    other.create("rounds = 3\n")
    played(other, 2)
    other.close()
    for name in names(folder.commits_folder):
        assert (folder.commits_folder / name).read_bytes() == (
            other.commits_folder / name
        ).read_bytes()


def test_events_are_put_back_to_the_moment_of_the_commit(folder):
    played(folder, 2)
    committed = folder.events_file.read_bytes()
    folder.append_event({"event": "round", "t": 3})
    with open(folder.events_file, "ab") as file:
        file.write(b'{"half')
    assert same(folder.restore_newest_commit(SAMPLES), server(2))
    assert folder.events_file.read_bytes() == committed
    assert list(folder.iterate_events()) == [{"event": "round", "t": 1}, {"event": "round", "t": 2}]


def test_a_newest_commit_cut_short_at_any_length_gives_way_to_the_older(folder):
    played(folder, 3)
    path = folder.commits_folder / "0000003"
    whole, events = path.read_bytes(), folder.events_file.read_bytes()
    for n in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:n])
        folder.events_file.write_bytes(events)
        assert same(folder.restore_newest_commit(SAMPLES), server(2))
        assert list(folder.iterate_events()) == [
            {"event": "round", "t": 1},
            {"event": "round", "t": 2},
        ]


def test_any_changed_byte_of_the_newest_commit_is_seen(folder):
    played(folder, 2)
    path = folder.commits_folder / "0000002"
    whole, events = path.read_bytes(), folder.events_file.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        folder.events_file.write_bytes(events)
        assert same(folder.restore_newest_commit(SAMPLES), server(1)), f"byte {i}"


def test_after_falling_back_the_round_is_committed_again(folder):
    played(folder, 3)
    (folder.commits_folder / "0000003").write_bytes(b"torn")
    assert same(folder.restore_newest_commit(SAMPLES), server(2))
    folder.append_event({"event": "round", "t": 3})
    folder.commit(server(3))
    assert same(folder.restore_newest_commit(SAMPLES), server(3))
    assert list(folder.iterate_events()) == [
        {"event": "round", "t": 1},
        {"event": "round", "t": 2},
        {"event": "round", "t": 3},
    ]


def test_when_all_are_torn_it_is_said_and_nothing_is_changed(folder):
    played(folder, 3)
    for name in names(folder.commits_folder):
        (folder.commits_folder / name).write_bytes(b"torn")
    events = folder.events_file.read_bytes()
    with pytest.raises(FolderError, match="none of its commits can be read"):
        folder.restore_newest_commit(SAMPLES)
    assert folder.events_file.read_bytes() == events


def test_events_shorter_than_the_commit_are_not_glossed_over(folder):
    played(folder, 2)
    folder.events_file.write_bytes(folder.events_file.read_bytes()[:-1])
    with pytest.raises(FolderError, match="shorter than its commit says"):
        folder.restore_newest_commit(SAMPLES)
    folder.events_file.unlink()
    with pytest.raises(FolderError, match="shorter than its commit says"):
        folder.restore_newest_commit(SAMPLES)


def test_a_commit_of_another_format_is_not_guessed_at(folder, monkeypatch):
    monkeypatch.setattr(store, "COMMIT_FORMAT", 2)
    played(folder, 1)
    monkeypatch.undo()
    with pytest.raises(FolderError, match="has format 2, this version reads 1"):
        folder.restore_newest_commit(SAMPLES)


def test_other_files_among_the_commits_are_no_commits(folder):
    played(folder, 1)
    (folder.commits_folder / ".0000009.123.new").write_bytes(b"half")
    folder.client_store.save_memory("c", 0, {"m": tensors(0)})
    assert same(folder.restore_newest_commit(SAMPLES), server(1))
    assert folder.find_oldest_commit() == 1


# How processes end --------------------------------------------------------------------------

# One process imports torch and forks a child for each case, which uses the folder of that name.
ENDS = """
import json, os, pathlib, resource, signal, sys, traceback
import torch
import heterophony.core.files as files
from heterophony.core.algorithm import Server
from heterophony.core.errors import HeterophonyError
from heterophony.runs.folder import RunFolder
from heterophony.core.tensors import Tensors


def server(t, n=3):
    return Server(t, {"0": 10, "1": 20}, Tensors({"w": torch.full((n,), float(t))}))


def begun(path):
    folder = RunFolder(path)
    folder.create("x")
    folder.append_event({"event": "round", "t": 1})
    folder.commit(server(1))
    return folder


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def room(size):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def second_owner(path):
    RunFolder(path).reopen()


def killed_owner(path):
    begun(path)
    die()


def full_disk(path):
    folder = begun(path)
    room(20_000)
    folder.append_event({"event": "round", "t": 2})
    folder.commit(server(2, n=100_000))


def no_room_for_events(path):
    folder = begun(path)
    size = folder.events_file.stat().st_size
    room(size + 5)
    folder.append_event({"event": "round", "t": 2, "long": "x" * 1000})


def killed_in_write(path):
    def half(path, mode, opener):
        with open(path, mode) as file:
            file.write(b"HET1 half a commit")
        die()

    folder = begun(path)
    folder.append_event({"event": "round", "t": 2})
    files.open = half
    folder.commit(server(2))


def killed_in_fsync(path):
    folder, real, calls = begun(path), os.fsync, []
    folder.append_event({"event": "round", "t": 2})

    def second(fd):  # the first call is for the events
        calls.append(fd)
        die() if len(calls) == 2 else real(fd)

    os.fsync = second
    folder.commit(server(2))


def killed_before_rename(path):
    folder = begun(path)
    folder.append_event({"event": "round", "t": 2})
    os.replace = die
    folder.commit(server(2))


def killed_after_rename(path):
    folder, real = begun(path), os.replace
    folder.append_event({"event": "round", "t": 2})

    def renamed(*args):
        real(*args)
        die()

    os.replace = renamed
    folder.commit(server(2))


root, codes = pathlib.Path(sys.argv[1]), {}
for end in sys.argv[2:]:
    child = os.fork()
    if not child:
        try:
            globals()[end](root / end)
        except HeterophonyError as error:
            room(None)
            (root / f"{end}.said").write_text(f"{type(error).__name__}: {error}")
            os._exit(error.exit_code)
        except BaseException:
            traceback.print_exc()
            os._exit(99)
        os._exit(0)
    codes[end] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(codes))
"""
KILLS = ["killed_in_write", "killed_in_fsync", "killed_before_rename"]
ALL = ["second_owner", "killed_owner", "full_disk", "no_room_for_events", *KILLS]


@pytest.fixture(scope="module")
def ends(tmp_path_factory) -> tuple[Path, dict[str, int]]:
    """The folder of all cases, and the exit code of each process."""
    root = tmp_path_factory.mktemp("ends")
    mine = RunFolder(root / "second_owner")
    mine.create("x")
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(root), *ALL, "killed_after_rename"],
        capture_output=True,
        text=True,
        check=False,
    )
    mine.close()
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout)


def small(t: int) -> Server:
    return Server(t, SAMPLES, Tensors({"w": torch.full((3,), float(t))}))


def reopened(path: Path) -> RunFolder:
    run = RunFolder(path)
    assert run.reopen() == "x"
    return run


def test_another_process_is_refused_while_the_owner_lives(ends):
    root, codes = ends
    assert codes["second_owner"] == BusyError.exit_code
    assert (root / "second_owner.said").read_text().startswith("BusyError: ")


def test_a_killed_owner_owns_nothing(ends):
    root, codes = ends
    assert codes["killed_owner"] == -signal.SIGKILL
    run = reopened(root / "killed_owner")
    assert same(run.restore_newest_commit(SAMPLES), small(1))
    run.close()


def test_a_full_disk_is_a_storage_error_and_the_older_commit_loads(ends):
    root, codes = ends
    assert codes["full_disk"] == 74
    said = (root / "full_disk.said").read_text()
    assert said.startswith("StorageError: cannot use ")
    assert "File too large; committed rounds are intact" in said
    run = reopened(root / "full_disk")
    assert names(run.commits_folder) == ["0000001"], "nothing half-written is left"
    assert same(run.restore_newest_commit(SAMPLES), small(1))
    assert list(run.iterate_events()) == [{"event": "round", "t": 1}]
    run.close()


def test_no_room_for_events_is_a_storage_error_and_the_half_line_is_no_event(ends):
    root, codes = ends
    assert codes["no_room_for_events"] == 74
    run = reopened(root / "no_room_for_events")
    assert not run.events_file.read_bytes().endswith(b"\n")
    assert list(run.iterate_events()) == [{"event": "round", "t": 1}]
    assert same(run.restore_newest_commit(SAMPLES), small(1))
    assert run.events_file.read_bytes() == b'{"event":"round","t":1}\n'
    run.close()


@pytest.mark.parametrize("end", KILLS)
def test_a_kill_before_the_rename_leaves_no_broken_file(ends, end):
    root, codes = ends
    assert codes[end] == -signal.SIGKILL
    commits = RunFolder(root / end).commits_folder
    (unfinished,) = [n for n in names(commits) if n != "0000001"]
    assert unfinished.startswith(".0000002.")
    run = reopened(root / end)
    assert names(commits) == ["0000001"]
    assert same(run.restore_newest_commit(SAMPLES), small(1))
    assert list(run.iterate_events()) == [{"event": "round", "t": 1}]
    run.append_event({"event": "round", "t": 2})
    run.commit(small(2))
    assert same(run.restore_newest_commit(SAMPLES), small(2))
    run.close()


def test_a_kill_right_after_the_rename_has_committed(ends):
    root, codes = ends
    assert codes["killed_after_rename"] == -signal.SIGKILL
    run = reopened(root / "killed_after_rename")
    assert same(run.restore_newest_commit(SAMPLES), small(2))
    assert list(run.iterate_events()) == [{"event": "round", "t": 1}, {"event": "round", "t": 2}]
    run.close()


# JSON ---------------------------------------------------------------------------------------


def test_json_files_come_back_or_say_what_is_wrong(tmp_path):
    content = {"G": [1, 2.5], "name": "ä"}
    write_json(tmp_path / "result.json", content)
    assert read_json(tmp_path / "result.json") == content
    assert json.loads((tmp_path / "result.json").read_text()) == content
    with pytest.raises(FolderError, match="does not exist"):
        read_json(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(FolderError, match="is damaged: it is not JSON"):
        read_json(tmp_path / "bad.json")
    with pytest.raises(StorageError, match="cannot read"):
        read_json(tmp_path)


def test_a_message_is_no_commit(folder):
    played(folder, 1)
    for blob in (encode_blob(tensors(1)), encode_groups({"model": tensors(1)})):
        (folder.commits_folder / "0000001").write_bytes(blob)
        with pytest.raises(FolderError, match="none of its commits can be read"):
            folder.restore_newest_commit(SAMPLES)
