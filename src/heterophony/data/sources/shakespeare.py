"""Shakespeare as in LEAF: each speaking role is a user; predict the character after 80 others.

It is read from LEAF's JSON, or from the text of Project Gutenberg's file no. 100 (of 1994).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import DATA_LIMIT, read_regular_file
from ...core.samples import Scale
from ..source import Source
from .download import DatasetFiles, find_or_download
from .leaf_files import UserExamples, load_users

ALPHABET = "\n !\"&'(),-." + digits + ":;>?" + ascii_uppercase + "[]" + ascii_lowercase + "}"
LABELS = ("newline", "space", *ALPHABET[2:])
WINDOW_LENGTH = 80
TRAIN_FRACTION = 0.9  # of a user's windows; the first ones are for training
CHARACTER_CODES = np.full(256, ALPHABET.index(" "), np.int8)  # others count as a space
CHARACTER_CODES[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))

SHAKESPEARE_FILES = DatasetFiles(
    "shakespeare",
    (("train/*.json", "test/*.json"), ("all_data*.json",), ("all_data/*.json",), ("*.txt",)),
    hint="make it with LEAF (data/shakespeare of github.com/TalwalkarLab/leaf), or get the text of"
    " Gutenberg's file no. 100 in the edition of 1994, and set data.path to the folder or file",
)

Windows = tuple[NDArray[np.int8], NDArray[np.int64]]


def read_shakespeare(path: Path | None = None) -> Source:
    """Read the training windows of all users, then the test windows of all users."""
    local = find_or_download(SHAKESPEARE_FILES, path)
    if local.is_file():
        files = [local]
    else:
        train, test, *others = (
            sorted(local.glob(p)) for names in SHAKESPEARE_FILES.alternatives for p in names
        )
        if train and test:
            return build_source(local, read_leaf_json(train), read_leaf_json(test))
        files = next(filter(None, others))
    users = read_leaf_json(files) if files[0].suffix == ".json" else read_plain_text(files)
    return build_source(local, *split_in_order(users))


def build_source(path: Path, train: Mapping[str, Windows], test: Mapping[str, Windows]) -> Source:
    """Join the windows of all users to one source."""
    names = sorted(train.keys() | test.keys())
    if not train:
        raise DataError(f"{path} has no user with enough text to train and to test")
    parts = [(i, *p[u]) for p in (train, test) for i, u in enumerate(names) if u in p]
    return Source(
        "shakespeare",
        np.concatenate([x for _, x, _ in parts]),
        np.concatenate([y for _, _, y in parts]),
        Scale(),
        LABELS,
        official=sum(len(y) for _, y in train.values()),
        users=np.repeat([u for u, _, _ in parts], [len(y) for _, _, y in parts]).astype(np.int64),
        user_names=tuple(names),
    )


def split_in_order(users: Mapping[str, Windows]) -> tuple[dict[str, Windows], dict[str, Windows]]:
    """Split each user's windows: the first for training, the last for test.

    The windows between them are left out, so that training and test share no character. Users
    whose text is too short for both are left out.
    """
    train, test = {}, {}
    for user, (x, y) in users.items():
        end = int(TRAIN_FRACTION * len(y))
        start = end + WINDOW_LENGTH - 1
        if start < len(y):
            train[user], test[user] = (x[:end], y[:end]), (x[start:], y[start:])
    return train, test


def encode_text(text: str) -> NDArray[np.int8]:
    """Return the position of each character in the alphabet."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return CHARACTER_CODES[np.minimum(points, 255)]


# LEAF's JSON --------------------------------------------------------------------------------


def read_leaf_json(files: Iterable[Path]) -> dict[str, Windows]:
    """Read the windows of every user in these files."""
    return parse_all_windows(load_users(files))


def parse_all_windows(users: Mapping[str, UserExamples]) -> dict[str, Windows]:
    """Convert the examples of all users; leave out users without any."""
    windows = {
        u: parse_windows(held.x, held.y, f"{held.file}: user '{u}'") for u, held in users.items()
    }
    return {u: w for u, w in windows.items() if len(w[1])}


def parse_windows(x: list[Any], y: list[Any], where: str) -> Windows:
    """Convert one user's examples: strings of 80 characters, and the character after each."""
    for texts, length in ((x, WINDOW_LENGTH), (y, 1)):
        if not all(isinstance(t, str) and len(t) == length for t in texts):
            raise DataError(f"{where}: x must be strings of {WINDOW_LENGTH} characters, y of one")
    return encode_text("".join(x)).reshape(-1, WINDOW_LENGTH), encode_text("".join(y)).astype(
        np.int64
    )


# The text -----------------------------------------------------------------------------------

SPEECH_START = re.compile(r"  ([A-Za-z][A-Za-z ]*)\. (.*)")  # two spaces, the role, a full stop
SPEECH_CONTINUATION = re.compile(r"    (.*)")
# one play has another layout
COMEDY_OF_ERRORS = "THE COMEDY OF ERRORS"
COMEDY_SPEECH_START, COMEDY_SPEECH_CONTINUATION = (
    re.compile(r"([A-Z][A-Z ]*)\. (.*)"),
    re.compile(r"(.*)"),
)
AUTHOR_LINE = "by William Shakespeare"
SONNETS = "THE SONNETS"  # numbers and indented verses look like speeches; LEAF skips them


def read_plain_text(files: Iterable[Path]) -> dict[str, Windows]:
    """Read the windows of every role that speaks more than two lines in a play."""
    text = "\n".join(
        read_regular_file(path, DATA_LIMIT).decode("utf-8-sig", "replace") for path in files
    )
    roles = {
        role: lines
        for role, lines in collect_lines_by_role(text.splitlines()).items()
        if len(lines) > 2
    }
    # LEAF writes every line with its end, so that the last character of a role is a space
    return {role: slide_windows(" ".join([*lines, ""])) for role, lines in roles.items()}


def collect_lines_by_role(lines: list[str]) -> dict[str, list[str]]:
    """Collect the lines of each role, named PLAY_ROLE."""
    spoken: dict[str, list[str]] = {}
    title, role = "", None
    for number, line in enumerate(lines):
        if AUTHOR_LINE in line:
            title, role = find_title(lines[:number][-3:]), None
            continue
        if title == SONNETS:
            continue
        odd = title == COMEDY_OF_ERRORS
        if begun := (COMEDY_SPEECH_START if odd else SPEECH_START).match(line):
            name = begun[1].upper()  # some roles are written in several ways
            role = None if not title or (odd and name.startswith("ACT ")) else f"{title}_{name}"
            words = begun[2]
        elif role and (
            more := (COMEDY_SPEECH_CONTINUATION if odd else SPEECH_CONTINUATION).match(line)
        ):
            role = None if odd and more[1].startswith("<") else role
            words = more[1]
        else:
            continue
        if role:
            spoken.setdefault(re.sub(r"\W+", "_", role), []).append(words)
    return spoken


def find_title(above: list[str]) -> str:
    """Find the title of a play: it stands two or three lines above its author."""
    lines = [line.strip() for line in above]
    return next((line for line in reversed(lines) if line), "").upper()


def slide_windows(text: str) -> Windows:
    """Cut every window of 80 characters, one character apart, and the character after it."""
    code = encode_text(re.sub("  +", " ", text.replace("\n", " ")))
    if len(code) <= WINDOW_LENGTH:
        return np.empty((0, WINDOW_LENGTH), np.int8), np.empty(0, np.int64)
    x = np.lib.stride_tricks.sliding_window_view(code, WINDOW_LENGTH)[:-1]
    return x, code[WINDOW_LENGTH:].astype(np.int64)  # x is a view, copied only when joined
