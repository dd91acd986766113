"""LEAF's JSON files for all of its tasks: ``users``, ``num_samples`` and ``user_data``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import DATA_LIMIT, read_regular_file, sort_names
from ...core.samples import Scale
from ...core.scores import TaskName
from ...core.tasks import IGNORED_TOKEN
from ..source import Source, check_client_name, decide_classes
from .arrays import NamedClients, Request, wrap_arrays
from .download import DatasetFiles, find_or_download
from .folder import IMAGE_SUFFIXES, decode_image, read_image_file
from .reading import list_files
from .texts import encode_texts

KEYS = ("users", "num_samples", "user_data")


@dataclass(frozen=True)
class UserExamples:
    """The examples of one user in a LEAF file."""

    file: Path
    x: Any  # a list, or an array of numbers
    y: list[Any]


def load_users(files: Iterable[Path]) -> dict[str, UserExamples]:
    """Load every user's examples from LEAF's files."""
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
            # LEAF's count includes windows of a text, and comments, that it then leaves out
            is_counted = bool(held.y) and not isinstance(held.y[0], str | dict)
            if counts is not None and is_counted and counts[at] != len(held.y):
                raise DataError(
                    f"{path}: user '{user}' has {len(held.y)} examples, num_samples says {counts[at]}"
                )
    return found


def load_json(path: Path) -> dict[str, Any]:
    """Load one LEAF file; raise DataError if it is damaged or has another format."""
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
    """Parse the examples of one LEAF user; raise DataError if they are not two lists of equal length."""
    if not isinstance(user, str) or user not in data:
        raise DataError(f"{path} is not one of LEAF's files (lacks {user!r})")
    held = data[user]
    x, y = (held.get(k) for k in "xy") if isinstance(held, dict) else (None, None)
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        raise DataError(f"{path}: user '{user}' must have lists x and y of equal length")
    return UserExamples(path, compact_numbers(x), y)


def compact_numbers(x: list[Any]) -> Any:
    """Convert lists of numbers to an array, which needs a tenth of the memory; leave others unchanged."""
    first = x[0] if x else None
    if not isinstance(first, list) or not first or not isinstance(first[0], int | float):
        return x
    try:
        return np.array(x, np.float32)
    except (ValueError, TypeError, OverflowError):  # reported later, where numbers are needed
        return x


def list_leaf_files(path: Path) -> tuple[list[Path], list[Path]]:
    """List LEAF's training files and test files in a folder or in its subfolder ``data``.

    Without a split, the second list is empty.
    """
    for place in (path, path / DATA_FOLDER):
        train, test = (list_files(place / part, ".json") for part in ("train", "test"))
        if train and test:
            return train, test
    places = (path, path / "all_data", path / DATA_FOLDER / "all_data")
    return next(filter(None, (list_files(p, ".json") for p in places)), []), []


FEMNIST_PIXELS, FEMNIST_SHAPE = 784, (1, 28, 28)
DATA_FOLDER = "data"  # folder of a data set in LEAF's repository
IMAGE_FOLDERS = ("raw/img_align_celeba", "img_align_celeba", ".")  # below or next to that folder
TWEET_COLUMNS = 5
IMAGE_SIDE = 84  # as LEAF's own models resize CelebA
HEAD_BYTES = 1 << 16

Users = Mapping[str, UserExamples]


def is_leaf(path: Path) -> bool:
    """Return True if a folder has JSON files with LEAF's keys."""
    train, test = list_leaf_files(path)
    return any(has_leaf_keys(p) for p in (train + test)[:1])


def has_leaf_keys(path: Path) -> bool:
    """Return True if a JSON file has one of LEAF's keys near its start."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    return any(f'"{key}"'.encode() in head for key in KEYS)


def list_clients(path: Path, users: str | None = None) -> NamedClients:
    """Return the users of LEAF files as clients: those with both training and test examples, if any."""
    train, test = (load_users(files) for files in list_leaf_files(path))
    both = [u for u, held in train.items() if held.y and u in test and test[u].y]
    if both:
        return NamedClients(tuple(sort_names(both)), has_split=True)
    return NamedClients(tuple(sort_names(u for u, held in (train | test).items() if held.y)))


def read_leaf(path: Path, request: Request) -> Source:
    """Read LEAF files; a split into the folders train and test is kept."""
    files, test_files = list_leaf_files(path)
    train, test = load_users(files), load_users(test_files)
    return replace(
        make_source(path, train, test, request), remark=describe_left_out(path, train, test)
    )


def make_source(path: Path, train: Users, test: Users, request: Request) -> Source:
    """Make a source from the examples of all LEAF users: images, texts, windows of text, or numbers."""
    everything = [held for part in (train, test) for held in part.values() if held.y]
    if not everything:
        raise DataError(f"{path} has no user with examples")
    if is_reddit(everything[0]):
        return read_reddit(path, train, test, request)
    if is_next_character(everything[0]):
        windows = [parse_all_windows(part) for part in (train, test)]
        source = build_source(path, *(windows if test else split_in_order(windows[0])))
        return replace(source, name=path.name)
    names = sort_names(check_client_name(u, str(path)) for u in train.keys() | test.keys())
    parts = [(i, part[u]) for part in (train, test) for i, u in enumerate(names) if u in part]
    parts = [(i, held) for i, held in parts if held.y]
    read = [read_user(path, names[i], held, request.task) for i, held in parts]
    check_same_shape([(held.file, names[i]) for i, held in parts], read)
    x, y = (np.concatenate([pair[k] for pair in read]) for k in (0, 1))
    x = x.reshape(-1, *FEMNIST_SHAPE) if x.shape[1:] == (FEMNIST_PIXELS,) else x
    source = wrap_arrays(x, y, path.name, shape=x.shape[1:], task=request.task, path=path)
    if request.classes is not None:
        source = decide_classes(source, request.classes)
    return replace(
        source,
        official=sum(len(held.y) for held in train.values()) if test else None,
        users=np.concatenate([np.full(len(held.y), i, np.int64) for i, held in parts]),
        user_names=tuple(names),
    )


def read_user(
    path: Path, name: str, held: UserExamples, task: TaskName
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Convert the examples and labels of one LEAF user to arrays."""
    x, y = parse_examples(path, name, held), parse_labels(name, held, task)
    if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
        raise DataError(f"{held.file}: user '{name}': x holds NaN, infinity or null")
    return x, y


def check_same_shape(
    users: Sequence[tuple[Path, str]], read: Sequence[tuple[NDArray[Any], NDArray[Any]]]
) -> None:
    """Raise DataError if a LEAF user's examples or labels have a different shape from the first user's."""
    shapes = [(x.shape[1:], y.shape[1:]) for x, y in read]
    for (file, name), shape in zip(users, shapes, strict=True):
        if shape != shapes[0]:
            raise DataError(
                f"{file}: user '{name}' has examples {shape[0]} with labels {shape[1]}, user"
                f" '{users[0][1]}' has {shapes[0][0]} with {shapes[0][1]}"
            )


def describe_left_out(path: Path, train: Users, test: Users) -> str:
    """Return a note on users who are no clients because they lack training or test examples; else empty."""
    held = [{u for u, own in part.items() if own.y} for part in (train, test)]
    left_out = (held[0] | held[1]) - (held[0] & held[1])
    if not held[0] & held[1] or not left_out:
        return ""
    return (
        f"{path.name}: {len(left_out)} of {len(held[0] | held[1])} users, such as"
        f" '{sort_names(left_out)[0]}', have no training or no test examples; they are not among the"
        " clients that keep the split"
    )


PAD, UNKNOWN = "<PAD>", "<UNK>"
VOCABULARY_SIZE = 10_000  # as LEAF's


def is_reddit(held: UserExamples) -> bool:
    """Return True if a user's examples are Reddit comments, cut into lists of tokens."""
    return isinstance(held.y[0], dict) and "target_tokens" in held.y[0]


def read_reddit(path: Path, train: Users, test: Users, request: Request) -> Source:
    """Read LEAF's Reddit: lists of tokens whose targets are the next tokens; padding is ignored.

    The vocabulary is built from the training examples.
    """
    if request.task != "sequence":
        raise DataError(
            f"{path} has lists of tokens with the tokens that come next; set data.task = 'sequence'"
        )
    names = sort_names(check_client_name(u, str(path)) for u in train.keys() | test.keys())
    parts = [
        (i, *flatten_comments(names[i], part[u]))
        for part in (train, test)
        for i, u in enumerate(names)
        if u in part
    ]
    trained = sum(len(x) for _, x, _ in parts[: len(train)])
    seen = Counter(token for _, x, y in parts[: len(train)] for row in (*x, *y) for token in row)
    known = sorted(seen.keys() - {PAD, UNKNOWN}, key=lambda token: (-seen[token], token))
    vocabulary = (PAD, UNKNOWN, *known[: VOCABULARY_SIZE - 2])
    code = partial(encode_tokens, {token: i for i, token in enumerate(vocabulary)})
    try:
        x = np.concatenate([code(rows) for _, rows, _ in parts if rows])
        y = np.concatenate([code(rows) for _, _, rows in parts if rows])
    except ValueError:
        raise DataError(f"{path}: the lists of tokens have different lengths") from None
    return Source(
        path.name,
        x,
        np.where(y == 0, IGNORED_TOKEN, y),
        Scale(),
        vocabulary,
        trained if test else None,
        users=np.repeat([i for i, _, _ in parts], [len(x) for _, x, _ in parts]).astype(np.int64),
        user_names=tuple(names),
        task="sequence",
    )


def encode_tokens(positions: Mapping[str, int], rows: list[list[str]]) -> NDArray[np.int64]:
    """Convert Reddit's tokens to positions in the vocabulary; tokens outside it become ``UNKNOWN``."""
    unknown = positions[UNKNOWN]
    return np.array([[positions.get(token, unknown) for token in row] for row in rows], np.int64)


def flatten_comments(user: str, held: UserExamples) -> tuple[list[list[str]], list[list[str]]]:
    """Join the token lists of all of a Reddit user's comments; return inputs and targets."""
    x: list[list[str]] = []
    y: list[list[str]] = []
    for tokens, about in zip(held.x, held.y, strict=True):
        targets = about.get("target_tokens") if isinstance(about, dict) else None
        for rows, out in ((tokens, x), (targets, y)):
            if not isinstance(rows, list) or not all(
                isinstance(row, list) and all(isinstance(t, str) for t in row) for row in rows
            ):
                raise DataError(f"{held.file}: user '{user}': a comment must be lists of tokens")
            out += rows
        if len(x) != len(y):
            raise DataError(
                f"{held.file}: user '{user}': x and target_tokens have different lengths"
            )
    return x, y


def is_next_character(held: UserExamples) -> bool:
    """Return True if a LEAF user's examples are texts and the labels are the next characters."""
    return all(isinstance(v, str) for v in (held.x[0], held.y[0])) and len(held.y[0]) == 1


def parse_examples(path: Path, user: str, held: UserExamples) -> NDArray[Any]:
    """Convert one LEAF user's examples: lists of numbers, image names, or Sent140's tweets."""
    where = f"{held.file}: user '{user}'"
    if all(isinstance(v, str) for v in held.x):
        return read_named_images(path, held.x, where)
    if is_tweet(held.x[0]) and all(map(is_tweet, held.x)):
        return encode_texts([tweet[-1] for tweet in held.x])[0]
    try:
        x = np.array(held.x, np.float32)
    except (ValueError, TypeError, OverflowError):
        raise DataError(
            f"{where}: x must be lists of numbers of equal length, names of images, or strings with"
            " the next character as y; store other text as numbers in an .npz"
        ) from None
    return x[:, None] if x.ndim == 1 else x


def is_tweet(x: Any) -> bool:
    """Return True if an example is a row of Sent140: number, date, query, user and text."""
    return isinstance(x, list) and len(x) == TWEET_COLUMNS and all(isinstance(v, str) for v in x)


def read_named_images(path: Path, names: Sequence[str], where: str) -> NDArray[np.uint8]:
    """Read the image files whose names are CelebA's examples."""
    if any(Path(n).suffix.lower() not in IMAGE_SUFFIXES or Path(n).name != n for n in names):
        raise DataError(
            f"{where}: x is text, but neither names of images nor strings with the next character as"
            " y; store it as numbers in an .npz"
        )
    bases = (path, path / DATA_FOLDER, path.parent)
    folders = [base / f for base in bases for f in IMAGE_FOLDERS]
    at = next((f for f in folders if (f / names[0]).is_file()), None)
    if at is None:
        raise DataError(f"{where}: there is no {names[0]}; put the images into {folders[0]}")
    images = [decode_image(read_image_file(at / n), at / n, side=IMAGE_SIDE) for n in names]
    return np.stack(images)


def parse_labels(user: str, held: UserExamples, task: TaskName) -> NDArray[Any]:
    """Convert one LEAF user's labels; whole numbers may be written as 3.0."""
    try:
        y = np.array(held.y)
        if not np.issubdtype(y.dtype, np.number):
            raise ValueError
    except ValueError:
        raise DataError(f"{held.file}: user '{user}': y must be numbers") from None
    whole = task in ("classification", "sequence") and y.dtype.kind == "f"
    return y.astype(np.int64) if whole and (y == np.floor(y)).all() else y


ALPHABET = "\n !\"&'(),-." + digits + ":;>?" + ascii_uppercase + "[]" + ascii_lowercase + "}"
LABELS = ("newline", "space", *ALPHABET[2:])
WINDOW_LENGTH = 80
TRAIN_FRACTION = 0.9  # share of a user's windows used for training: the first ones
CHARACTER_CODES = np.full(256, ALPHABET.index(" "), np.int8)  # other characters count as a space
CHARACTER_CODES[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))

SHAKESPEARE_FILES = DatasetFiles(
    "shakespeare",
    (("train/*.json", "test/*.json"), ("all_data*.json",), ("all_data/*.json",), ("*.txt",)),
    hint="make it with LEAF (data/shakespeare of github.com/TalwalkarLab/leaf), or get the text of"
    " Gutenberg's file no. 100 in the 1994 edition, and set data.path to the folder or file",
)

Windows = tuple[NDArray[np.int8], NDArray[np.int64]]


def read_shakespeare(path: Path | None = None) -> Source:
    """Read LEAF's Shakespeare: the training windows of all users, then their test windows."""
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
    """Make a source for next-character prediction from all users' windows of text."""
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

    Windows in between are left out, so that training and test share no character. Users whose text
    is too short for both are left out.
    """
    train, test = {}, {}
    for user, (x, y) in users.items():
        end = int(TRAIN_FRACTION * len(y))
        start = end + WINDOW_LENGTH - 1
        if start < len(y):
            train[user], test[user] = (x[:end], y[:end]), (x[start:], y[start:])
    return train, test


def encode_text(text: str) -> NDArray[np.int8]:
    """Convert a text to the positions of its characters in LEAF's alphabet."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return CHARACTER_CODES[np.minimum(points, 255)]


# LEAF's JSON --------------------------------------------------------------------------------


def read_leaf_json(files: Iterable[Path]) -> dict[str, Windows]:
    """Read each user's windows of Shakespeare text from LEAF's files."""
    return parse_all_windows(load_users(files))


def parse_all_windows(users: Mapping[str, UserExamples]) -> dict[str, Windows]:
    """Convert all users' examples to windows of text; leave out users without windows."""
    windows = {
        u: parse_windows(held.x, held.y, f"{held.file}: user '{u}'") for u, held in users.items()
    }
    return {u: w for u, w in windows.items() if len(w[1])}


def parse_windows(x: list[Any], y: list[Any], where: str) -> Windows:
    """Convert one user's windows of text: strings of 80 characters, each with the character that follows it."""
    for texts, length in ((x, WINDOW_LENGTH), (y, 1)):
        if not all(isinstance(t, str) and len(t) == length for t in texts):
            raise DataError(f"{where}: x must be strings of {WINDOW_LENGTH} characters, y of one")
    return encode_text("".join(x)).reshape(-1, WINDOW_LENGTH), encode_text("".join(y)).astype(
        np.int64
    )


# The text -----------------------------------------------------------------------------------

SPEECH_START = re.compile(r"  ([A-Za-z][A-Za-z ]*)\. (.*)")  # two spaces, the role, a full stop
SPEECH_CONTINUATION = re.compile(r"    (.*)")
# one play has a different layout
COMEDY_OF_ERRORS = "THE COMEDY OF ERRORS"
COMEDY_SPEECH_START, COMEDY_SPEECH_CONTINUATION = (
    re.compile(r"([A-Z][A-Z ]*)\. (.*)"),
    re.compile(r"(.*)"),
)
AUTHOR_LINE = "by William Shakespeare"
SONNETS = "THE SONNETS"  # numbers and indented verses look like speeches; LEAF skips them


def read_plain_text(files: Iterable[Path]) -> dict[str, Windows]:
    """Read Shakespeare's plays as plain text: the windows of every role with more than two lines."""
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
    """Collect the lines that each role in Shakespeare's plays speaks, under the name PLAY_ROLE."""
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
    """Find the title of a play, which is two or three lines above its author."""
    lines = [line.strip() for line in above]
    return next((line for line in reversed(lines) if line), "").upper()


def slide_windows(text: str) -> Windows:
    """Cut a text into all windows of 80 characters; return the windows and the character after each."""
    code = encode_text(re.sub("  +", " ", text.replace("\n", " ")))
    if len(code) <= WINDOW_LENGTH:
        return np.empty((0, WINDOW_LENGTH), np.int8), np.empty(0, np.int64)
    x = np.lib.stride_tricks.sliding_window_view(code, WINDOW_LENGTH)[:-1]
    return x, code[WINDOW_LENGTH:].astype(np.int64)  # x is a view, copied only when joined
