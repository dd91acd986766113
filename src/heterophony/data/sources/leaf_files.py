"""LEAF's JSON files: ``users``, ``num_samples`` and ``user_data``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ...core.files import DATA_LIMIT, read_regular_file

KEYS = ("users", "num_samples", "user_data")


@dataclass(frozen=True)
class UserExamples:
    """The examples of one user as they are in a file."""

    file: Path
    x: list[Any]
    y: list[Any]


def load_users(files: Iterable[Path]) -> dict[str, UserExamples]:
    """Load the examples of every user in these files."""
    found: dict[str, UserExamples] = {}
    for path in files:
        content = load_json(path)
        names, counts = content["users"], content.get("num_samples")
        if counts is not None and len(counts) != len(names):
            raise DataError(f"{path}: {len(names)} users but {len(counts)} num_samples")
        for at, user in enumerate(names):
            if user in found:
                raise DataError(f"{path}: user '{user}' is also in another file")
            found[str(user)] = held = parse_user(path, user, content["user_data"])
            if counts is not None and counts[at] != len(held.y):
                raise DataError(
                    f"{path}: user '{user}' has {len(held.y)} examples, num_samples says {counts[at]}"
                )
    return found


def load_json(path: Path) -> dict[str, Any]:
    """Load one file; raise DataError if it is damaged or not one of LEAF's."""
    try:
        content = json.loads(read_regular_file(path, DATA_LIMIT))
        if not isinstance(content["users"], list) or not isinstance(content["user_data"], dict):
            raise TypeError("users must be a list, user_data an object")
        if not isinstance(content.get("num_samples", []), list):
            raise TypeError("num_samples must be a list")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} is not one of LEAF's files ({reason})") from None
    return dict(content)


def parse_user(path: Path, user: object, data: dict[str, Any]) -> UserExamples:
    """Return the examples of one user; raise DataError if they are not two lists of one length."""
    if not isinstance(user, str) or user not in data:
        raise DataError(f"{path} is not one of LEAF's files (lacks {user!r})")
    held = data[user]
    x, y = (held.get(k) for k in "xy") if isinstance(held, dict) else (None, None)
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        raise DataError(f"{path}: user '{user}' must have lists x and y of equal length")
    return UserExamples(path, x, y)


def list_leaf_files(path: Path) -> tuple[list[Path], list[Path]]:
    """List the files of training and test examples; without test files, all are for both."""
    train, test = (sorted((path / part).glob("*.json")) for part in ("train", "test"))
    if train and test:
        return train, test
    places = (path, path / "all_data")
    return next(filter(None, (sorted(p.glob("*.json")) for p in places)), []), []
