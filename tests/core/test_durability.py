"""What is on disk after a power cut: everything that a later step relies on."""

from __future__ import annotations

from random import Random

import pytest
import torch

from helpers.fault_disk import Disk, KilledError
from heterophony.core.files import lock_folder, open_to_append, write_atomically
from heterophony.core.tensors import Tensors
from heterophony.jobs.client_store import FolderClientStore
from heterophony.runs.folder import RunFolder

MACHINE = "machine"


class NothingKept(Random):
    """Draws the worst: nothing is kept that was not synced."""

    def random(self) -> float:
        return 0.999


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    (tmp_path / MACHINE).mkdir()
    with disk.patched():
        disk.current = MACHINE
        yield disk
        disk.current = ""
        disk.end_process(MACHINE)


def cut_power(disk):
    disk.end_process(MACHINE)
    disk.cut_power(disk.root / MACHINE, NothingKept())
    disk.dead.clear()


def test_new_folders_survive_with_the_file_in_them(disk, tmp_path):
    path = tmp_path / MACHINE / "run" / "commits" / "clients" / "0"
    write_atomically(path, b"memory")
    cut_power(disk)
    assert path.read_bytes() == b"memory"


def test_a_folder_that_a_killed_process_left_empty_survives_too(disk, tmp_path):
    path = tmp_path / MACHINE / "run" / "commits" / "0000001"
    disk.armed.append([MACHINE, "kill at step", 4])  # the second folder is made, and not synced
    with pytest.raises(KilledError):
        write_atomically(path, b"commit")
    assert path.parent.is_dir()
    disk.dead.clear()
    write_atomically(path, b"commit")
    cut_power(disk)
    assert path.read_bytes() == b"commit"


def test_memories_that_were_saved_together_survive(disk, tmp_path):
    store = FolderClientStore(tmp_path / MACHINE / "clients", tmp_path / "scratch")
    with store.saving_together():
        for i in range(20):
            store.save_memory(str(i), 0, {"m": Tensors({"w": torch.tensor(i)})})
    cut_power(disk)
    found = [store.load_memory(str(i), 1)["m"]["w"].item() for i in range(20)]
    assert found == list(range(20))


def test_the_events_of_a_commit_survive_under_their_name(disk, tmp_path):
    from heterophony.core.algorithm import Server

    folder = RunFolder(tmp_path / MACHINE / "run")
    folder.create("seed = 0\n")
    write_atomically(folder.commits_folder / "clients" / "0" / "0000000", b"memory")
    folder.append_event({"event": "start"})
    folder.commit(Server(1, {}, Tensors(), {}, Tensors()))
    cut_power(disk)
    assert [e["event"] for e in folder.iterate_events()] == ["start"]


def test_a_name_that_a_killed_process_did_not_sync_survives_once_the_folder_is_in_use(
    disk, tmp_path
):
    folder = tmp_path / MACHINE / "run"
    write_atomically(folder / "first", b"1")
    disk.armed.append([MACHINE, "kill at step", 4])  # after the rename
    with pytest.raises(KilledError):
        write_atomically(folder / "secret", b"noise")
    disk.dead.clear()
    lock_folder(folder)
    assert (folder / "secret").read_bytes() == b"noise"
    cut_power(disk)
    assert (folder / "secret").read_bytes() == b"noise"


def test_the_disk_forgets_what_was_not_synced(disk, tmp_path):
    path = tmp_path / MACHINE / "log"
    with open_to_append(path) as file:
        file.write(b"line\n")
    cut_power(disk)
    assert not path.exists()
