"""Finding and downloading data sets: search path, checksums, resumed downloads, errors."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests

from helpers.sources import DEBIAN, mnist_folder, refused
from heterophony.core.errors import DataError
from heterophony.data import sources
from heterophony.data.sources import SOURCES, fetch_dataset, image_sets
from heterophony.data.sources import download as search_path
from heterophony.data.sources.download import (
    CHUNK_BYTES,
    DatasetFiles,
    RemoteFile,
    download_file,
    download_resumable,
    find_or_download,
    list_cache_folders,
    open_part_exclusively,
)

CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Where Fashion-MNIST is looked for first; it is nowhere else."""
    monkeypatch.setenv("HETEROPHONY_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(search_path, "SYSTEM_FOLDER", tmp_path / "system")
    return tmp_path / "cache" / "fmnist"


@pytest.fixture
def offline(monkeypatch):
    def retrieve(url, **_):
        raise requests.exceptions.ConnectionError(f"Failed to resolve {url}")

    monkeypatch.setattr(pooch, "retrieve", retrieve)


# The order of search ------------------------------------------------------------------------


def test_the_caches_are_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("HETEROPHONY_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert list_cache_folders() == [Path.home() / ".cache" / "heterophony"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert list_cache_folders() == [tmp_path / "xdg" / "heterophony"]
    monkeypatch.setenv("HETEROPHONY_DATA", str(tmp_path / "own"))
    assert list_cache_folders() == [tmp_path / "own", tmp_path / "xdg" / "heterophony"]


def test_given_path_then_own_folder_then_cache_then_system(cache, offline, tmp_path):
    system, xdg = tmp_path / "system" / "fashion-mnist", tmp_path / "xdg" / "heterophony" / "fmnist"
    given = tmp_path / "given"
    for folder in (system, xdg, cache, given):
        folder.mkdir(parents=True)
        mnist_folder(folder, gz=folder != cache)
        assert (
            find_or_download(image_sets.FMNIST_FILES, None if folder != given else given) == folder
        )
    assert fetch_dataset("fmnist") == cache, "what is here is not downloaded"


def test_a_folder_with_some_of_the_files_is_passed_over(cache, offline, tmp_path):
    system = tmp_path / "system" / "fashion-mnist"
    for folder in (cache, system):
        folder.mkdir(parents=True)
        mnist_folder(folder, gz=True)
    file = cache / "train-labels-idx1-ubyte.gz"
    file.rename(f"{file}.part")
    assert find_or_download(image_sets.FMNIST_FILES, None) == system


def test_without_a_network_there_is_one_clear_answer(cache, offline, tmp_path):
    said = refused(find_or_download, image_sets.FMNIST_FILES, None)
    system = tmp_path / "system" / "fashion-mnist"
    for words in (str(cache), str(tmp_path / "xdg"), str(system), "ConnectionError"):
        assert words in said
    assert said.endswith(
        "dataset-fashion-mnist, or put the four idx files into a folder and set data.path"
    )


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"digits", "photos"}))
def test_every_set_says_offline_what_where_and_how(cache, offline, name):
    for ask in (sources.read_source, fetch_dataset):
        said = refused(ask, name)
        assert SOURCES[name].files.folder in said
        assert "data.path" in said
    assert str(cache.parent) in refused(sources.read_source, name)


def test_the_error_has_no_chain_of_others_behind_it(cache, offline):
    with pytest.raises(DataError) as caught:
        fetch_dataset("fmnist")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_only_what_can_be_downloaded_is():
    assert "; these can: bloodmnist, breastmnist, cifar10, cifar10-small" in refused(
        fetch_dataset, "digits"
    )
    assert "'fmnits' cannot be downloaded" in refused(fetch_dataset, "fmnits")
    assert "LEAF" in refused(fetch_dataset, "shakespeare")


def test_every_download_has_a_checksum():
    remotes = [r for known in SOURCES.values() if known.files for r in known.files.remote_files]
    assert {r.name for r in remotes if r.name.endswith((".zip", ".tar.gz"))} == {
        *("gzip.zip", "cifar-10-python.tar.gz", "cifar-100-python.tar.gz"),
        "tiny-imagenet-200.zip",
    }
    assert all(re.fullmatch("[0-9a-f]{32}", r.md5) for r in remotes)


# A server that can fail ---------------------------------------------------------------------


@dataclass
class Server:
    """Serves one content; cuts the connection after ``cuts`` bytes, once for each of them."""

    content: bytes = CONTENT
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)  # the Range of every request
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted[6:-1]) if wanted and self.ranges else 0
        if start >= len(self.content):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(self.content)}")
            request.end_headers()
            return
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(self.content) - start))
        request.end_headers()
        end = start + self.cuts.pop(0) if self.cuts else None
        request.wfile.write(self.content[start:end])


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.answer(self)

        def log_message(self, *_) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        made.url = f"http://127.0.0.1:{http.server_address[1]}/set.bin"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield made
        http.shutdown()
        thread.join()


def test_a_download_is_kept_and_not_asked_for_again(server, tmp_path):
    for _ in range(2):
        path = download_file(RemoteFile(server.url, MD5), tmp_path)
        assert path.read_bytes() == CONTENT
    assert server.asked == [None]
    assert [p.name for p in tmp_path.iterdir()] == ["set.bin"]


def test_a_cut_connection_goes_on_where_it_was(server, tmp_path):
    server.cuts = [100_000, 70_000]
    assert download_file(RemoteFile(server.url, MD5), tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={CHUNK_BYTES}-", f"bytes={2 * CHUNK_BYTES}-"]


def test_a_later_call_goes_on_with_the_part_of_an_earlier_one(server, tmp_path):
    server.cuts = [90_000, 0]
    with pytest.raises(requests.RequestException):
        download_file(RemoteFile(server.url, MD5), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["set.bin.part"]
    assert (tmp_path / "set.bin.part").read_bytes() == CONTENT[:CHUNK_BYTES]
    assert download_file(RemoteFile(server.url, MD5), tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == f"bytes={CHUNK_BYTES}-"
    assert [p.name for p in tmp_path.iterdir()] == ["set.bin"]


def test_a_full_disk_is_not_tried_again(server, cache, monkeypatch):
    tried = []

    def follow(url, file, show):
        tried.append(url)
        file.write(b"a little")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("heterophony.data.sources.download.download_rest", follow)
    wanted = DatasetFiles("mine", (("set.bin",),), (RemoteFile(server.url, MD5),), "ask somebody")
    assert "could not be downloaded (No space left on device)" in refused(
        find_or_download, wanted, None
    )
    assert len(tried) == 1


def test_a_server_that_cannot_go_on_is_asked_for_all(server, tmp_path):
    server.ranges, server.cuts = False, [70_000]
    assert download_file(RemoteFile(server.url, MD5), tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={CHUNK_BYTES}-"]


def test_a_part_that_is_whole_is_not_fetched_again(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(CONTENT)
    assert download_file(RemoteFile(server.url, MD5), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=300000-"]


def test_a_part_longer_than_the_file_is_begun_anew(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(CONTENT + b"more")
    assert download_file(RemoteFile(server.url, MD5), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=300004-", None]


def test_a_part_of_something_else_is_refused_by_the_checksum_and_forgotten(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"hash"):
        download_file(RemoteFile(server.url, MD5), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert download_file(RemoteFile(server.url, MD5), tmp_path).read_bytes() == CONTENT


def test_a_wrong_file_is_refused_in_one_line(server, cache):
    server.content = b"<html>sign in first</html>"
    wanted = DatasetFiles("mine", (("set.bin",),), (RemoteFile(server.url, MD5),), "ask somebody")
    said = refused(find_or_download, wanted, None)
    assert said.endswith(
        "could not be downloaded (its checksum is not the published one); ask somebody"
    )
    assert list((cache.parent / "mine").iterdir()) == []


def test_what_is_downloaded_is_found_in_the_first_cache(server, cache):
    wanted = DatasetFiles("mine", (("set.bin",),), (RemoteFile(server.url, MD5),))
    for _ in range(2):
        assert find_or_download(wanted, None) == cache.parent / "mine" / "set.bin"
    assert server.asked == [None]


def test_a_missing_page_is_one_line(server, cache):
    server.answer = lambda request: request.send_error(404)
    wanted = DatasetFiles("mine", (("set.bin",),), (RemoteFile(server.url, MD5),), "ask somebody")
    assert "could not be downloaded (HTTPError)" in refused(find_or_download, wanted, None)
    assert list((cache.parent / "mine").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_line(server, cache):
    cache.parent.write_text("a file where the cache should be")
    wanted = DatasetFiles("mine", (("set.bin",),), (RemoteFile(server.url, MD5),), "ask somebody")
    assert "could not be downloaded (Not a directory)" in refused(find_or_download, wanted, None)


def test_two_processes_do_not_write_one_part(server, tmp_path):
    with open_part_exclusively(tmp_path / "set.bin.part") as file:
        file.write(b"theirs")
        file.flush()
        said = refused(download_resumable, server.url, str(tmp_path / "out"))
    assert said == "set.bin is being downloaded by another process; wait for it"
    assert (tmp_path / "set.bin.part").read_bytes() == b"theirs"
    assert server.asked == []


def test_progress_is_shown_only_on_a_terminal(server, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    download_file(RemoteFile(server.url, MD5), tmp_path / "a")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    download_file(RemoteFile(server.url, MD5), tmp_path / "b")
    out, err = capsys.readouterr()
    assert out == ""
    assert "set.bin" in err
    assert "300.0/300.0 kB" in err


# Fashion-MNIST, whose sums are of the decompressed bytes ------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b"not the published bytes"),
        b"<html>sign in first</html>",
        b"\x1f\x8b\x08",
        b"x",
    ],
    ids=["other bytes", "a page", "half a file", "a byte"],
)
def test_packed_files_with_other_content_are_refused_and_removed(server, cache, content):
    server.content = content
    wanted = replace(
        image_sets.FMNIST_FILES,
        remote_files=(RemoteFile(server.url, MD5, md5_is_of_decompressed=True),),
    )
    assert "its checksum is not the published one" in refused(find_or_download, wanted, None)
    assert list(cache.iterdir()) == []


def test_packed_files_with_the_published_content_are_kept(server, tmp_path):
    server.content = gzip.compress(CONTENT, 1)
    path = download_file(RemoteFile(server.url, MD5, md5_is_of_decompressed=True), tmp_path)
    assert gzip.decompress(path.read_bytes()) == CONTENT


def test_debians_package_is_looked_for():
    assert image_sets.FMNIST_FILES.list_search_paths()[-1] == DEBIAN
