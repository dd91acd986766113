"""Partitions client by client: from the data set's users, a Dirichlet draw per client, or a file."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ConfigError, DataError
from ...core.files import DATA_LIMIT, read_regular_file, write_atomically
from ...core.randomness import make_generator
from ...core.settings import CheckedSettings, setting
from ..source import Source
from ..sources.reading import load_npz
from .base import Indices, SeededRule, Share, Terms, get_official_train_size, split_train_test


@dataclass(frozen=True)
class Natural(SeededRule):
    """Turn users of the data set into clients, chosen at random from those with enough examples."""

    min_size: int = setting(2, "minimum number of examples of a user", low=2)
    min_train: int = setting(1, "minimum number of training examples of a user", low=1)
    min_test: int = setting(1, "minimum number of test examples of a user", low=1)
    in_order: bool = setting(
        False, "train on the first examples, test on the last, instead of at random"
    )
    gap: int = setting(0, "with in_order: examples to drop between training and test", low=0)
    train_windows: int | None = setting(
        None, "number of consecutive training examples to keep, from a random start", low=1
    )
    test_windows: int | None = setting(
        None, "number of consecutive test examples to keep, from a random start", low=1
    )
    iid: bool = setting(False, "pool the examples of all users, and divide them equally")

    def allot(self, source: Source, terms: Terms) -> list[Share]:
        users = self.list_users(source, terms)
        found = self.split_users(users, source, terms)
        shares = [s for s in found if self.has_enough(s)]
        if len(shares) < terms.clients:
            enough = {s.name for s in shares}
            sizes = {s.name: f"{len(s.train)} to train, {len(s.test)} to test" for s in found}
            lacking = [(name, len(rows)) for name, rows in users if name not in enough]
            held = [sizes.get(name, f"{count} in all") for name, count in lacking]
            raise DataError(
                f"{terms.clients} clients, but {len(shares)} of {len(users)} users of"
                f" {source.name} have enough examples"
                + (f", '{lacking[0][0]}' does not ({held[0]})" if lacking else "")
                + "; lower data.clients, or the minimum sizes in data.partition"
            )
        order = make_generator(terms.seed, "partition").permutation(len(shares))[: terms.clients]
        return [self.draw_windows(shares[user], terms.seed, i) for i, user in enumerate(order)]

    def list_users(self, source: Source, terms: Terms) -> list[tuple[str, Indices]]:
        """List the name and rows of every user, in the order of the data set."""
        if self.iid:
            pool = make_generator(terms.seed, "pool").permutation(len(source.y))
            return [("", rows) for rows in np.array_split(pool, terms.clients)]
        if source.users is None:
            raise DataError(
                f"{source.name} has no users: data.partition.kind = 'natural' needs a data set"
                " that names the user of each example"
            )
        count = max(int(source.users.max()) + 1, len(source.user_names))
        names = [*source.user_names, *map(str, range(len(source.user_names), count))]
        ends = np.bincount(source.users, minlength=count).cumsum()
        rows = np.split(np.argsort(source.users, kind="stable"), ends[:-1])
        return list(zip(names, rows, strict=True))

    def split_users(
        self, users: list[tuple[str, Indices]], source: Source, terms: Terms
    ) -> list[Share]:
        """Split each user's rows into training and test; leave out users with too few."""
        large = [(i, u, rows) for i, (u, rows) in enumerate(users) if len(rows) >= self.min_size]
        if terms.split == "official":
            first = get_official_train_size(source, "data.split = 'official'")
            return [Share(rows[rows < first], rows[rows >= first], u) for _, u, rows in large]
        if not self.in_order:
            draws = (make_generator(terms.seed, "split", i) for i, _, _ in large)
            return [
                Share(*split_train_test(rows, terms.train_fraction, draw), u)
                for draw, (_, u, rows) in zip(draws, large, strict=True)
            ]
        ends = [int(terms.train_fraction * len(rows)) for _, _, rows in large]
        return [
            Share(rows[:at], rows[at + self.gap :], u)
            for at, (_, u, rows) in zip(ends, large, strict=True)
        ]

    def has_enough(self, share: Share) -> bool:
        """Return True if a user has enough training and test examples to become a client."""
        return len(share.train) >= max(self.min_train, self.train_windows or 1) and len(
            share.test
        ) >= max(self.min_test, self.test_windows or 1)

    def draw_windows(self, share: Share, seed: int, client: int) -> Share:
        """Keep ``train_windows`` and ``test_windows`` consecutive rows of a client, from random starts."""
        draw = make_generator(seed, "windows", client)
        train = draw_consecutive(share.train, self.train_windows, draw)
        return Share(train, draw_consecutive(share.test, self.test_windows, draw), share.name)


def draw_consecutive(rows: Indices, n: int | None, draw: np.random.Generator) -> Indices:
    """Draw ``n`` consecutive rows of a client from a random start; return all rows if ``n`` is None."""
    if n is None:
        return rows
    start = int(draw.integers(len(rows) - n + 1))
    return rows[start : start + n]


ClassProportions = NDArray[np.float64]  # a client's share of every class


@dataclass(frozen=True)
class PerClientDirichlet(SeededRule):
    """Draw a class distribution for each client, and its examples from the official sets.

    Clients draw independently, so they may hold the same examples. NumPy's legacy generator
    reproduces the authors' partitions exactly for the same seed.
    """

    alpha: float = setting(0.1, "small: few classes per client; large: similar labels", above=0)
    train: int = setting(500, "maximum number of training examples of a client", low=1)
    test: int = setting(100, "maximum number of test examples of a client", low=1)
    mode: Literal["exact_authors", "exact_size"] = setting(
        "exact_authors", "sizes as rounded, or filled up from the last class"
    )
    repeat_test: bool = setting(
        False, "let a client's test examples repeat, as the authors do for Tiny ImageNet"
    )

    def allot(self, source: Source, terms: Terms) -> list[Share]:
        first = get_official_train_size(source, "data.partition.kind = 'per_client_dirichlet'")
        if terms.seed >= 2**32:
            raise ConfigError(f"seed: must be below 2**32 for this partition, not {terms.seed}")
        draw, classes = np.random.RandomState(terms.seed), len(source.labels)
        mixes = draw.dirichlet(np.full(classes, self.alpha), size=terms.clients)
        sets = [np.arange(len(source.y)) < first, np.arange(len(source.y)) >= first]
        pools = [[np.flatnonzero(s & (source.y == c)) for s in sets] for c in range(classes)]
        return [self.draw_share(mix, pools, draw) for mix in mixes]

    def draw_share(
        self, mix: ClassProportions, pools: list[list[Indices]], draw: np.random.RandomState
    ) -> Share:
        """Draw one client's rows, class by class, for training and then for test."""
        train, test = [], []
        wanted = zip(
            self.count_per_class(mix, self.train), self.count_per_class(mix, self.test), strict=True
        )
        for c, (a, b) in enumerate(wanted):
            train.append(draw_examples("train", a, c, pools[c][0], draw))
            test.append(draw_examples("test", b, c, pools[c][1], draw, self.repeat_test))
        return Share(np.concatenate(train), np.concatenate(test))

    def count_per_class(self, mix: ClassProportions, size: int) -> list[int]:
        """Compute how many examples of each class a client draws: rounded shares, at most ``size`` in total."""
        counts, left = [], size
        for share in mix:
            counts.append(min(int(size * share + 0.5), left))
            left -= counts[-1]
        if self.mode == "exact_size":
            counts[-1] += left
        return counts


def draw_examples(
    part: str, n: int, c: int, pool: Indices, draw: np.random.RandomState, repeat: bool = False
) -> Indices:
    """Draw a client's ``n`` examples of class ``c`` from the examples of this class."""
    if n > len(pool) and not (repeat and len(pool)):
        also = ", or set data.partition.repeat_test = true" if part == "test" else ""
        raise DataError(
            f"a client drew {n} examples of class {c} to {part}, but there are"
            f" {len(pool)}; lower data.partition.{part}{also}"
        )
    return np.asarray(draw.choice(pool, n, replace=repeat), np.int64)


REQUIRED_PARTS = ("train", "test")
PARTS = (*REQUIRED_PARTS, "validation")


@dataclass(frozen=True)
class FromFile(CheckedSettings):
    """Read each client's rows for training, test and validation from a file."""

    path: str = setting("partition.json", "a .json or .npz that `data partition --save` wrote")

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
                f"{path} was written for different data from this {source.name} (data_sha256 differs)"
            )
        return list(shares.values())


def check_share(share: Share, who: str, examples: int) -> None:
    """Raise DataError if a row of a client does not exist or is used twice; test rows may repeat."""
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
    """Compute a digest of examples and labels, which shows whether a partition file is for these data."""
    h = hashlib.sha256()
    for array in (x, y):
        h.update(f"{array.dtype}{array.shape}".encode())
        h.update(np.ascontiguousarray(array).data)
    return h.hexdigest()


def write_partition(
    path: Path,
    clients: Mapping[str, Share],
    data_sha256: str,
    nets: Mapping[str, str] | None = None,
) -> None:
    """Write a partition as JSON or ``.npz``, by the suffix of the path; JSON includes the clients' nets."""
    if path.suffix == ".npz":
        whole = io.BytesIO()
        content: dict[str, Any] = pack_shares(clients)
        np.savez_compressed(whole, **content, data_sha256=np.array(data_sha256))
        write_atomically(path, whole.getvalue())
        return
    if path.suffix != ".json":
        raise DataError(f"cannot write {path}: a partition is a .json or an .npz file")
    # one line per client, so that people can read and compare the file
    lines = [f"{json.dumps(c)}: {json.dumps(encode_share(s))}" for c, s in clients.items()]
    named = f'"nets": {json.dumps(nets)}, ' if nets else ""
    head = f'{{"data_sha256": "{data_sha256}", {named}"clients": {{\n'
    write_atomically(path, (head + ",\n".join(lines) + "\n}}\n").encode())


def encode_share(share: Share) -> dict[str, Any]:
    """Return a client's rows as lists for JSON; empty validation rows are left out."""
    rows = {part: getattr(share, part).tolist() for part in PARTS}
    return {part: r for part, r in rows.items() if r or part in REQUIRED_PARTS}


def pack_shares(clients: Mapping[str, Share]) -> dict[str, NDArray[Any]]:
    """Return a partition as arrays for ``.npz``: the joined rows of all clients, and each client's number of rows."""
    out: dict[str, NDArray[Any]] = {"clients": np.array(list(clients))}
    for part in PARTS:
        rows = [getattr(s, part) for s in clients.values()]
        if part in REQUIRED_PARTS or any(len(r) for r in rows):
            out[part], out[f"{part}_sizes"] = np.concatenate(rows), np.array([len(r) for r in rows])
    return out


def read_partition(path: Path) -> tuple[dict[str, Share], str | None]:
    """Read a partition file: each client's rows and, if stored, the digest of the data."""
    try:
        return read_npz_partition(path) if path.suffix == ".npz" else read_json_partition(path)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"data.partition.path: there is no {path}") from None
    except OSError as error:
        raise DataError(f"data.partition.path: cannot read {path}: {error.strerror}") from None
    except Exception:  # numpy and zipfile can raise almost any error for a damaged file
        raise DataError(
            f"data.partition.path: cannot read {path} as a partition; it must hold, for"
            ' every client, rows: {"0": {"train": [0, 1], "test": [2]}, …}'
        ) from None


def read_json_partition(path: Path) -> tuple[dict[str, Share], str | None]:
    """Read a partition from JSON, and the digest of its data if the file has one."""
    content = json.loads(
        read_regular_file(path, DATA_LIMIT), object_pairs_hook=make_dict_of_unique_keys
    )
    clients = content.get("clients", content)
    shares = {}
    for client, share in clients.items():
        parts = {"validation": [], **share}
        train, test, held_out = (parse_rows(parts[p], f"{path}: client {client}") for p in PARTS)
        shares[client] = Share(train, test, client, held_out)
    return shares, content.get("data_sha256")


def make_dict_of_unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of a partition file's keys and values; raise DataError if a client or another key occurs twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DataError(
                f"data.partition.path: the file contains '{key}' twice; remove one of them"
            )
        found[key] = value
    return found


def read_npz_partition(path: Path) -> tuple[dict[str, Share], str | None]:
    """Read a partition from ``.npz``, and the digest of its data if the file has one."""
    content: dict[str, Any] = dict(load_npz(path))
    none = {"validation": [], "validation_sizes": np.zeros(len(content["clients"]), np.int64)}
    content = {**none, **content}
    train, test, held_out = (
        np.split(parse_rows(content[part], str(path)), content[f"{part}_sizes"].cumsum()[:-1])
        for part in PARTS
    )
    names = [str(c) for c in content["clients"].tolist()]
    columns = zip(train, test, names, held_out, strict=True)
    shares = make_dict_of_unique_keys((share[2], Share(*share)) for share in columns)
    digest = content.get("data_sha256")
    return shares, None if digest is None else str(digest)


def parse_rows(rows: Any, who: str) -> Indices:
    """Convert a client's rows to an array; raise DataError if they are not whole numbers."""
    array = np.asarray(rows)
    if array.size and (array.ndim != 1 or not np.issubdtype(array.dtype, np.integer)):
        raise DataError(f"{who}: rows must be a list of whole numbers")
    return array.reshape(-1).astype(np.int64)
