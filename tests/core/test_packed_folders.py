"""Archives of folders: equal bytes for equal folders, read as the folders are, and safe to open."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from helpers.commands import call, refused
from helpers.made_runs import FIRST, SECOND, data_of, played, stored
from heterophony.core.errors import FolderError, HeterophonyError
from heterophony.core.files import ARCHIVE_LIMIT, pack_folders, unpack_archive
from heterophony.papers.leaderboard import PACKED_ENTRIES, read_leaderboard, write_entry
from heterophony.report.page import html
from heterophony.results.runs import PACKED_RUNS, load_runs


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A folder with two runs."""
    stored(tmp_path / "table" / "fedavg-0", played(FIRST))
    stored(tmp_path / "table" / "fedper-0", played(SECOND, "fedper"))
    return tmp_path / "table"


def pack(folder: Path, name: str = PACKED_RUNS) -> Path:
    """Pack the folders in a folder, as ``scripts/pack`` does."""
    members = [path for path in folder.iterdir() if path.is_dir()]
    pack_folders(members, folder / name)
    for path in members:
        shutil.rmtree(path)
    return folder / name


def write_zip(path: Path, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def count_temporary() -> int:
    return len(list(Path(tempfile.gettempdir()).glob("heterophony-*")))


# Reading ------------------------------------------------------------------------------------


def test_the_same_folders_give_the_same_bytes(table: Path, tmp_path: Path) -> None:
    members = sorted(table.iterdir())
    pack_folders(members, tmp_path / "a.zip")
    for path in table.rglob("*"):
        os.utime(path, (0, 0))
    pack_folders(reversed(members), tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with unpack_archive(tmp_path / "a.zip") as folder:
        files = {p.relative_to(table): p.read_bytes() for p in table.rglob("*") if p.is_file()}
        assert files == {
            p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()
        }
    assert not folder.exists()


def test_packed_runs_are_read_as_their_folders_are(table: Path) -> None:
    plain = load_runs([table])
    page = data_of(html.render_report(plain))
    archive = pack(table)
    for path in (table, archive):
        found = load_runs([path])
        assert [(r.label, r.folder, r.events) for r in found] == [
            (r.label, r.folder, r.events) for r in plain
        ]
        assert data_of(html.render_report(found)) == page
    assert call("report", archive).exit_code == 0
    assert (table / "report.html").is_file()
    assert "is packed; unpack its runs.zip first" in refused(
        3, "leaderboard", "add", table / "board", table
    )


def test_a_run_beside_an_archive_replaces_the_packed_one(table: Path) -> None:
    pack(table)
    stored(table / "fedper-0", played(FIRST, "fedper"))
    stored(table / "ditto-0", played(FIRST, "ditto"))
    found = load_runs([table])
    assert [r.algorithm for r in found] == ["fedavg", "fedper", "ditto"]
    assert found[1].curves == found[0].curves


def test_a_damaged_run_in_an_archive_is_named_by_the_archive(table: Path) -> None:
    (table / "fedper-0" / "events.jsonl").write_text("no event\n")
    archive = pack(table)
    notes: list[str] = []
    (run,) = load_runs([table], notes.append)
    assert run.algorithm == "fedavg"
    assert notes == [f"left out: {archive}/fedper-0/events.jsonl is damaged: a line is not JSON"]


def test_packed_entries_are_read_as_their_folders_are(tmp_path: Path) -> None:
    config = '[data]\nname = "digits"\nclients = 3\n[algorithm]\nname = "fedavg"\n'
    result = {"model_sha256": "a" * 64, "data_sha256": "b" * 64, "measures": {"P.last10": 0.5}}
    write_entry(tmp_path / "one", config, {0: result})
    plain = call("leaderboard", "show", tmp_path, "--json").stdout
    archive = pack(tmp_path, PACKED_ENTRIES)
    assert call("leaderboard", "show", tmp_path, "--json").stdout == plain
    assert call("leaderboard", "show", archive, "--json").stdout == plain
    write_entry(tmp_path / "two", config, {0: result})
    assert [entry.folder.name for entry in read_leaderboard(tmp_path)] == ["one", "two"]
    shutil.rmtree(tmp_path / "two")
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("three/entry.json", json.dumps({"seeds": {}}))
    assert refused(3, "leaderboard", "show", tmp_path) == (
        f"{archive}/three/entry.json is damaged: it is not the entry of a leaderboard"
    )


def test_code_in_an_archive_does_not_run(tmp_path: Path) -> None:
    code = tmp_path / "algorithm.py"
    code.write_text("raise SystemExit('it ran')\n")
    config = '[data]\nname = "digits"\nclients = 3\n[algorithm]\nname = "algorithm:Mine"\n'
    result = {"model_sha256": "a" * 64, "data_sha256": "b" * 64, "measures": {}}
    write_entry(tmp_path / "board" / "mine", config, {0: result}, code)
    archive = pack(tmp_path / "board", PACKED_ENTRIES)
    assert refused(3, "leaderboard", "check", tmp_path / "board", "--trust") == (
        f"{archive}: mine brings code of its own; unpack the archive and read it first"
    )


# Damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../a", "/etc/a", "a/../../b", "a\\b", ".", "./"])
def test_a_name_outside_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", **{"ok/b": b"", name: b"x"})
    before = count_temporary()
    with pytest.raises(FolderError, match="is outside its folder"), unpack_archive(archive):
        pass
    assert count_temporary() == before
    assert not (tmp_path.parent / "a").exists()


def test_a_link_in_an_archive_is_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("run/config.toml")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    assert refused(3, "report", tmp_path / "a.zip") == (
        f"{tmp_path}/a.zip is damaged: 'run/config.toml' is not a plain file"
    )


def test_a_file_that_is_a_folder_as_well_is_refused(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", **{"a": b"", "a/b": b""})
    assert refused(3, "report", archive).endswith("a name in it is both a file and a folder")


def test_a_small_archive_that_would_become_large_is_refused(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", a=b"0" * 1000)
    content = bytearray(archive.read_bytes())
    at = content.index(b"PK\x01\x02")
    for size in (ARCHIVE_LIMIT // 2, 2**32 - 2):
        content[at + 24 : at + 28] = size.to_bytes(4, "little")
        archive.write_bytes(content)
        assert refused(3, "report", archive) == (
            f"{archive} is damaged: its {len(content)} bytes would become {size}"
        )
    content[at + 24 : at + 28] = (999).to_bytes(4, "little")  # it holds more than it says
    archive.write_bytes(content)
    assert (
        refused(3, "report", archive) == f"{archive} is damaged: it is not a complete .zip archive"
    )


def test_a_truncated_archive_is_one_line(table: Path) -> None:
    archive = pack(table)
    whole = archive.read_bytes()
    for size in (0, 1, 30, len(whole) // 2, len(whole) - 1):
        archive.write_bytes(whole[:size])
        assert refused(3, "report", table) == (
            f"{archive} is damaged: it is not a complete .zip archive"
        )


def test_an_archive_with_any_damaged_byte_is_read_or_refused(table: Path) -> None:
    archive = pack(table)
    whole = archive.read_bytes()
    for at in range(0, len(whole), 7):
        archive.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with suppress(HeterophonyError), unpack_archive(archive):
            pass
