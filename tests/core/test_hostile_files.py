"""Files of a stranger: pipes, devices, links, sparse files and bombs cost neither memory nor time."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.commands import call, refused
from heterophony.boards.broker.enrolment import read_enrolment
from heterophony.core import files
from heterophony.core.algorithm import Server
from heterophony.core.errors import ConfigError, DataError, FolderError
from heterophony.core.tensors import Tensors
from heterophony.data.partitions.by_client import read_partition
from heterophony.data.source import parse_class_names
from heterophony.data.sources import read_source
from heterophony.data.sources.arrays import read_npz
from heterophony.data.sources.image_sets import read_idx
from heterophony.data.sources.reading import load_npz, open_archive
from heterophony.runs import run_index
from heterophony.runs.folder import RunFolder

Change = Callable[[Path], None]


def link_to_device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def become_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def grow(path: Path) -> None:
    path.touch()
    os.truncate(path, 20 << 30)  # occupies no disk


CHANGES = (link_to_device, become_pipe, grow)


# Reading ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("setting", ["model.init", "data.partition.path"])
def test_settings_name_regular_files_only(tmp_path, change, setting):
    change(tmp_path / "it.json")
    words = ["-c", f"{setting}={tmp_path / 'it.json'}", "-c", "engine.name=serial"]
    kind = ["-c", "data.partition.kind=file"] if "partition" in setting else []
    said = refused(3, "run", *kind, *words, "--out", tmp_path / "out")
    assert "it is not a regular file" in said or "it is larger than" in said


@pytest.mark.parametrize("change", CHANGES)
def test_data_and_enrolments_are_regular_files_only(tmp_path, change):
    path = tmp_path / "it.npz"
    change(path)
    for read in (read_npz, read_partition):
        with pytest.raises(DataError):
            read(path)
    with pytest.raises(ConfigError):
        read_enrolment(path)


@pytest.mark.parametrize("change", CHANGES)
def test_a_commit_that_is_no_file_is_damaged(tmp_path, change):
    folder = RunFolder(tmp_path / "run")
    folder.create("rounds = 3\n")
    for t in (1, 2):
        folder.commit(Server(t, {"0": 1}, Tensors({"w": torch.ones(3)}), {}, Tensors()))
    change(folder.commits_folder / "0000002")
    restored = folder.restore_newest_commit({"0": 1})
    assert restored is not None
    assert restored.t == 1
    folder.client_store.save_memory("c", 1, {"g": Tensors({"w": torch.ones(3)})})
    change(folder.client_store.memory_file("c", 1))
    with pytest.raises(FolderError, match="is damaged: it is"):
        folder.client_store.load_memory("c", 2)
    folder.close()


def test_an_endless_line_of_events_is_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(run_index, "JSON_LIMIT", 1 << 14)
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "start"}\n')
    os.truncate(path, 20 << 30)
    with pytest.raises(FolderError, match="a line is longer than 16384 bytes"):
        list(run_index.read_events(path))
    with pytest.raises(FolderError, match="a line is longer than 16384 bytes"):
        run_index.read_last_event(path)


# Data -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [10**10, 10**9, 1 << 20])
def test_a_label_that_is_too_large_is_refused(tmp_path, label):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((2, 4), np.uint8), y=np.array([0, label]))
    with pytest.raises(DataError, match=f"label {label} is too large"):
        read_npz(tmp_path / "a.npz")
    tokens = {"x": np.array([[0, label]]), "y": np.array([[0, 1]])}
    np.savez_compressed(tmp_path / "b.npz", **tokens)
    with pytest.raises(DataError, match=f"label {label} is too large"):
        read_npz(tmp_path / "b.npz", task="sequence")
    with pytest.raises(ConfigError, match=r"data\.classes: must be at most"):
        parse_class_names(label + 1)


def test_an_array_that_promises_more_than_the_file_holds_is_refused(tmp_path):
    header = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    with pytest.raises(ValueError, match="cut short"):
        load_npz(tmp_path / "a.npz")


@pytest.fixture
def small(monkeypatch):
    """Let every file over 64 kB be a large one."""
    monkeypatch.setattr(files, "SMALL_BYTES", 1 << 16)


def test_a_small_npz_that_becomes_a_huge_one_is_refused(tmp_path, small):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1, 1 << 22), np.uint8), y=np.zeros(1, int))
    with pytest.raises(DataError, match="bytes would become"):
        read_npz(tmp_path / "a.npz")


def test_a_list_of_tokens_that_a_small_file_repeats_is_refused(tmp_path, small):
    row, pairs = [7] * 3000, np.empty((2000, 2), object)
    pairs[:] = [[row, 3000]]
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        with (tmp_path / part / "0.npz").open("wb") as file:
            np.savez_compressed(file, data={"x": pairs, "y": np.zeros(2000, np.int64)})
    with pytest.raises(DataError, match=r"0.npz: its \d+ bytes would become 48000000"):
        read_source(str(tmp_path))


def test_a_small_archive_that_becomes_a_huge_one_is_refused(tmp_path, small):
    zeros, tar, packed = bytes(1 << 22), tmp_path / "a.tar.gz", tmp_path / "a.zip"
    with tarfile.open(tar, "w:gz") as archive:
        member = tarfile.TarInfo("root/big")
        member.size = len(zeros)
        archive.addfile(member, io.BytesIO(zeros))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("root/big", zeros)
    for path in (tar, packed):
        with pytest.raises(DataError, match="would become"), open_archive(path, "root") as found:
            found.read_first("big")
    (tmp_path / "it.gz").write_bytes(gzip.compress(zeros))
    with pytest.raises(DataError, match="would become"):
        read_idx(tmp_path, "it")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_in_an_archive_are_no_files(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("root/link")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
        member = tarfile.TarInfo("root/file")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    with open_archive(tmp_path / "a.tar", "root") as found:
        assert found.list_names() == ["file"]
        assert found.read_first("file")[1] == b"abc"
        with pytest.raises(DataError, match="has no link"):
            found.read_first("link")


# Writing ----------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path) -> Path:
    quick = ("rounds=1", "data.clients=2", "training.epochs=1", "engine.name=serial")
    words = [word for pair in quick for word in ("-c", pair)]
    assert call("run", *words, "--out", tmp_path / "run").exit_code == 0
    return tmp_path / "run"


def test_resume_writes_through_no_link(begun, tmp_path):
    precious, events = tmp_path / "precious", begun / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    precious.write_text("".join(lines[:-1]))  # an unfinished run, so that more would be written
    events.unlink()
    events.symlink_to(precious)
    said = refused(3, "resume", begun, "-c", "engine.name=serial")
    assert said == f"{events} is a link; a run writes only into its own folder"
    folder = RunFolder(begun)
    with pytest.raises(FolderError, match="is damaged: it is a link to another file"):
        folder.append_event({"event": "end"})  # type: ignore[typeddict-item]
    with pytest.raises(OSError, match="it is a link to another file"):
        files.truncate_file(events, 0)
    assert precious.read_text() == "".join(lines[:-1])


@pytest.mark.parametrize("name", ["commits", "commits/clients", "scratch"])
def test_a_run_writes_only_into_its_own_folder(begun, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    if (begun / name).exists():
        (begun / name).rename(tmp_path / "moved")
    (begun / name).symlink_to(tmp_path / "elsewhere")
    said = refused(3, "resume", begun)
    assert said == f"{begun / name} is a link; a run writes only into its own folder"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_lock_that_is_a_link_makes_no_file_elsewhere(begun, tmp_path):
    (begun / "lock").unlink()
    (begun / "lock").symlink_to(tmp_path / "elsewhere")
    assert call("resume", begun).exit_code == 74
    assert not (tmp_path / "elsewhere").exists()


def test_temporary_files_are_new_and_cannot_be_guessed(tmp_path, monkeypatch):
    seen = []
    true_open = os.open

    def spy(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(".new"):
            seen.append(str(path))
            assert flags & os.O_EXCL
        return true_open(path, flags, mode)

    monkeypatch.setattr(os, "open", spy)
    for _ in range(3):
        files.write_atomically(tmp_path / "file", b"content")
    assert len(set(seen)) == 3
    assert not any(str(os.getpid()) in Path(name).name for name in seen)
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "guessed")
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / ".file.guessed.new").symlink_to(tmp_path / "precious")
    with pytest.raises(files.StorageError):
        files.write_atomically(tmp_path / "file", b"other")
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_key_is_never_readable_by_others(tmp_path, monkeypatch):
    modes = []
    true_sync = os.fsync

    def spy(fd: int) -> None:
        modes.append(os.fstat(fd).st_mode)
        true_sync(fd)

    monkeypatch.setattr(os, "fsync", spy)
    before = os.umask(0)
    try:
        files.write_atomically(tmp_path / "ca.key", b"key", private=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE(next(filter(stat.S_ISREG, modes))) == 0o600
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600
