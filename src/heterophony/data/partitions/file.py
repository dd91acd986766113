"""Partitions in files (JSON or ``.npz``): written by ``data partition --save``, or by users."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import DATA_LIMIT, read_regular_file, write_atomically
from ...core.settings import check_settings, setting
from ..source import Source
from ..sources.reading import load_npz
from .base import Indices, Share, Terms

REQUIRED_PARTS = ("train", "test")
PARTS = (*REQUIRED_PARTS, "validation")


@dataclass(frozen=True)
class FromFile:
    """Read from a file which rows each client has for training, test and validation."""

    path: str = setting("partition.json", "a .json or .npz that `data partition --save` wrote")

    def __post_init__(self) -> None:
        check_settings(self)

    def allot(self, source: Source, terms: Terms) -> list[Share]:
        path = Path(self.path).expanduser()
        shares, data_sha256 = read_partition(path)
        if not shares:
            raise DataError(f"{path} has no clients")
        if len(shares) != terms.clients:
            raise DataError(
                f"{path} has {len(shares)} clients, but data.clients is {terms.clients};"
                f" set data.clients = {len(shares)}"
            )
        for client, share in shares.items():
            check_share(share, f"{path}: client {client}", len(source.y))
        if data_sha256 is not None and data_sha256 != digest_examples(source.x, source.y):
            raise DataError(
                f"{path} was written for other data than {source.name} here (data_sha256 differs)"
            )
        return list(shares.values())


def check_share(share: Share, who: str, examples: int) -> None:
    """Check that all rows exist and none is used twice. (Test examples may repeat.)"""
    for part in REQUIRED_PARTS:
        if not len(getattr(share, part)):
            raise DataError(f"{who} has no rows to {part}; it needs at least one")
    rows = np.concatenate([share.train, share.validation, np.unique(share.test)])
    outside = rows[(rows < 0) | (rows >= examples)]
    if len(outside):
        raise DataError(f"{who} has row {outside[0]}, but the data have rows 0 … {examples - 1}")
    seen, times = np.unique(rows, return_counts=True)
    if len(seen) < len(rows):
        raise DataError(f"{who} has row {seen[times > 1][0]} more than once")


def digest_examples(x: NDArray[Any], y: NDArray[Any]) -> str:
    """Compute the digest of examples and labels, to detect rows that refer to other data."""
    h = hashlib.sha256()
    for array in (x, y):
        h.update(f"{array.dtype}{array.shape}".encode())
        h.update(np.ascontiguousarray(array).data)
    return h.hexdigest()


def write_partition(path: Path, clients: Mapping[str, Share], data_sha256: str) -> None:
    """Write a partition as JSON or ``.npz``, by the suffix of the path."""
    if path.suffix == ".npz":
        whole = io.BytesIO()
        content: dict[str, Any] = pack_shares(clients)
        np.savez_compressed(whole, **content, data_sha256=np.array(data_sha256))
        write_atomically(path, whole.getvalue())
        return
    if path.suffix != ".json":
        raise DataError(f"cannot write {path}: a partition is a .json or an .npz file")
    # a line per client: people can read and compare it
    lines = [f"{json.dumps(c)}: {json.dumps(encode_share(s))}" for c, s in clients.items()]
    head = f'{{"data_sha256": "{data_sha256}", "clients": {{\n'
    write_atomically(path, (head + ",\n".join(lines) + "\n}}\n").encode())


def encode_share(share: Share) -> dict[str, Any]:
    rows = {part: getattr(share, part).tolist() for part in PARTS}
    return {part: r for part, r in rows.items() if r or part in REQUIRED_PARTS}


def pack_shares(clients: Mapping[str, Share]) -> dict[str, NDArray[Any]]:
    """Concatenate the rows of all clients, with the number of each."""
    out: dict[str, NDArray[Any]] = {"clients": np.array(list(clients))}
    for part in PARTS:
        rows = [getattr(s, part) for s in clients.values()]
        if part in REQUIRED_PARTS or any(len(r) for r in rows):
            out[part], out[f"{part}_sizes"] = np.concatenate(rows), np.array([len(r) for r in rows])
    return out


def read_partition(path: Path) -> tuple[dict[str, Share], str | None]:
    """Read each client's rows and, if given, the digest of the data they refer to."""
    try:
        return read_npz_partition(path) if path.suffix == ".npz" else read_json_partition(path)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"data.partition.path: there is no {path}") from None
    except OSError as error:
        raise DataError(f"data.partition.path: cannot read {path}: {error.strerror}") from None
    except Exception:  # numpy and zipfile raise almost anything for a damaged file
        raise DataError(
            f"data.partition.path: cannot read {path} as a partition; it must hold, for"
            ' every client, rows: {"0": {"train": [0, 1], "test": [2]}, …}'
        ) from None


def read_json_partition(path: Path) -> tuple[dict[str, Share], str | None]:
    content = json.loads(read_regular_file(path, DATA_LIMIT), object_pairs_hook=make_unique)
    clients = content.get("clients", content)
    shares = {}
    for client, share in clients.items():
        parts = {"validation": [], **share}
        train, test, held_out = (parse_rows(parts[p], f"{path}: client {client}") for p in PARTS)
        shares[client] = Share(train, test, client, held_out)
    return shares, content.get("data_sha256")


def make_unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary; refuse a key that is there twice, instead of dropping the first."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DataError(f"data.partition.path: the file has '{key}' twice; keep one of them")
        found[key] = value
    return found


def read_npz_partition(path: Path) -> tuple[dict[str, Share], str | None]:
    content: dict[str, Any] = dict(load_npz(path))
    none = {"validation": [], "validation_sizes": np.zeros(len(content["clients"]), np.int64)}
    content = {**none, **content}
    train, test, held_out = (
        np.split(parse_rows(content[part], str(path)), content[f"{part}_sizes"].cumsum()[:-1])
        for part in PARTS
    )
    names = [str(c) for c in content["clients"].tolist()]
    columns = zip(train, test, names, held_out, strict=True)
    shares = make_unique((share[2], Share(*share)) for share in columns)
    digest = content.get("data_sha256")
    return shares, None if digest is None else str(digest)


def parse_rows(rows: Any, who: str) -> Indices:
    """Convert rows to an array; anything but whole numbers is refused, not rounded."""
    array = np.asarray(rows)
    if array.size and (array.ndim != 1 or not np.issubdtype(array.dtype, np.integer)):
        raise DataError(f"{who}: rows must be a list of whole numbers")
    return array.reshape(-1).astype(np.int64)
