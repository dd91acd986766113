"""A data set before it is partitioned: examples, targets for any task, and client names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.algorithm import POOLED_CLIENT
from ..core.errors import ConfigError, DataError
from ..core.files import NAME_PATTERN, NAME_RULE, sort_names
from ..core.records import Record
from ..core.samples import Scale
from ..core.scores import TaskName
from ..core.tasks import IGNORED_TOKEN
from .columns import Columns, is_missing

MAX_CLASSES = 1 << 20
GROUPS = 10  # number of groups into which a regression's targets are cut for partitions by label


def parse_targets(
    y: NDArray[Any], task: TaskName, name: str
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Check a data set's targets for its task; return them in stored form, with the class names."""
    number = np.issubdtype(y.dtype, np.number) or y.dtype == np.bool_
    whole = np.issubdtype(y.dtype, np.integer)
    if task == "classification":
        if y.dtype == np.bool_:
            y, whole = y.astype(np.int64), True
        if y.ndim == 2 and y.shape[1] == 1:  # the shape that Keras and MedMNIST use
            y = y[:, 0]
        if y.ndim == 1 and y.size and all(isinstance(label, str) for label in y.tolist()):
            return parse_text_labels(y.tolist(), name)
        if y.ndim != 1 or not whole:
            raise DataError(
                f"{name}: labels must be one whole number per example, not {y.dtype} {y.shape}"
                f"{describe_invalid_label(y)}{suggest_task(y)}"
            )
        if y.size and int(y.min()) < 0:
            raise DataError(
                f"{name}: label {y.min()} (example {int(y.argmin())}) is negative; number the labels"
                " 0, 1, …"
            )
        return y.astype(np.int64), number_labels(y, name)
    if task == "regression":
        if y.ndim not in (1, 2) or not number or not np.isfinite(y).all():
            raise DataError(
                f"{name}: targets of a regression must be finite numbers, one or one row per"
                f" example, not {y.dtype} {y.shape}"
            )
        columns = y.reshape(len(y), -1).astype(np.float32)
        names = ("target",) if columns.shape[1] == 1 else make_number_names(columns.shape[1])
        return columns, names
    if task == "multilabel":
        if y.ndim != 2 or not number or not np.isin(y, (0, 1)).all():
            raise DataError(
                f"{name}: each example's labels must be a row of zeros and ones; got {y.dtype} of shape {y.shape}"
            )
        return y.astype(np.float32), make_number_names(y.shape[1])
    if y.ndim != 2 or not whole or (y[y != IGNORED_TOKEN] < 0).any():
        raise DataError(
            f"{name}: the targets of a sequence must be a row of whole numbers from 0 (or"
            f" {IGNORED_TOKEN}: does not count), not {y.dtype} {y.shape}"
        )
    return y.astype(np.int64), number_labels(y, name)


def number_labels(y: NDArray[Any], name: str) -> tuple[str, ...]:
    """Return the class or token names 0, 1, … up to the largest label."""
    largest = int(y.max()) if y.size else -1
    if largest >= MAX_CLASSES:
        at = np.unravel_index(int(y.argmax()), y.shape)[0]
        raise DataError(
            f"{name}: label {largest} is too large (example {at}): there can be {MAX_CLASSES} classes; number the"
            " labels 0, 1, … (np.unique(y, return_inverse=True)[1])"
        )
    return make_number_names(largest + 1)


def number_text_labels(
    texts: Sequence[Any], classes: int | Sequence[str] | None, where: str
) -> tuple[NDArray[np.int64], list[str]]:
    """Convert text labels to numbers, in the order of ``classes`` or sorted; also return the class names."""
    if isinstance(classes, int):
        raise ConfigError(
            f"data.classes: is a number ({classes}), but the labels of {where} are names; list the"
            " names, or remove data.classes"
        )
    names = list(classes or sorted(set(texts)))
    positions = {name: i for i, name in enumerate(names)}
    for row, text in enumerate(texts, 1):
        if text not in positions:
            raise DataError(
                f"{where}, row {row}: label '{text}' is not in data.classes: {', '.join(names)}"
            )
    return np.array([positions[text] for text in texts], np.int64), names


def parse_text_labels(
    labels: Sequence[str], name: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Convert labels that are text to numbers: by value if all labels are digits, otherwise in sorted order."""
    check_labels_given(labels, name)
    texts = [label.strip() for label in labels]
    if all(text.isdecimal() for text in texts):
        numbers = np.array([int(text) for text in texts], np.int64)
        return numbers, number_labels(numbers, name)
    y, names = number_text_labels(texts, None, name)
    return y, tuple(names)


def check_labels_given(labels: Sequence[Any], where: str) -> None:
    """Raise DataError if the label of a row is missing."""
    for row, label in enumerate(labels, 1):
        if is_missing(label):
            raise DataError(f"{where}, row {row}: the label is missing; remove the row")


def describe_invalid_label(y: NDArray[Any]) -> str:
    """Describe the first label that is not a whole number, for an error message."""
    if y.ndim != 1 or not y.size:
        return ""
    numbers = np.issubdtype(y.dtype, np.floating)
    odd = np.flatnonzero(y != np.floor(y)) if numbers else np.arange(1)
    return f" (example {odd[0]} has {str(y[odd[0]])[:40]!r})" if len(odd) else ""


def suggest_task(y: NDArray[Any]) -> str:
    """Return a hint for an error message: how to convert the labels, or which task allows them."""
    if y.ndim == 1 and np.issubdtype(y.dtype, np.floating):
        whole = y.size and (y == np.floor(y)).all()
        convert = "; if they are classes, use y.astype(int)" if whole else ""
        return f"{convert}; for numbers set task='regression' (data.task)"
    if y.ndim == 2:
        numbers = np.issubdtype(y.dtype, np.number) or y.dtype == np.bool_
        one_hot = y.size and numbers and np.isin(y, (0, 1)).all() and (y.sum(1) == 1).all()
        convert = "; if they are one-hot, use y.argmax(1)" if one_hot else ""
        return f"{convert}; set task='regression', 'multilabel' or 'sequence' (data.task)"
    return ""


def make_number_names(count: int) -> tuple[str, ...]:
    """Return the default names of classes or targets: 0, 1, 2, …"""
    return tuple(str(i) for i in range(count))


def choose_target_names(
    names: tuple[str, ...], task: TaskName, classes: int | Sequence[str]
) -> tuple[str, ...]:
    """Return the names of labels or tokens from ``data.classes``; raise ConfigError if there are too few."""
    if task == "regression":
        raise ConfigError("data.classes: a regression has no classes; remove it")
    given = make_number_names(classes) if isinstance(classes, int) else tuple(classes)
    if task == "multilabel" and len(given) != len(names):
        raise ConfigError(
            f"data.classes: {len(given)} labels, but the data have {len(names)} for each example"
        )
    if len(given) < len(names):
        raise ConfigError(
            f"data.classes: {len(given)} tokens, but the data have a token {len(names) - 1}"
        )
    return given


def group_examples(y: NDArray[Any], task: TaskName) -> tuple[NDArray[np.int64], int]:
    """Assign examples to groups that replace classes in partitions by label; also return the group count.

    Groups of a regression have equal sizes, by the first target. Examples with several labels are
    grouped by their first label. Sequences form one group.
    """
    if task == "regression":
        rank = np.argsort(np.argsort(y[:, 0], kind="stable"), kind="stable")
        groups = min(GROUPS, len(y))
        return (rank * groups // len(y)).astype(np.int64), groups
    if task == "multilabel":
        first = np.where(y.any(1), y.argmax(1), y.shape[1])
        return first.astype(np.int64), y.shape[1] + 1
    return np.zeros(len(y), np.int64), 1


def count_targets(y: NDArray[Any], task: TaskName, names: int) -> NDArray[np.int64]:
    """Count the examples of each class or label, each token of sequences, or all examples of a regression."""
    if task == "multilabel":
        return np.asarray(y.sum(0), np.int64)
    if task == "regression":
        return np.full(names, len(y), np.int64)
    return np.bincount(y[y != IGNORED_TOKEN].ravel(), minlength=names)


@dataclass(frozen=True)
class Source:
    """A data set before it is partitioned: stored examples, targets, class names, official split and users."""

    name: str
    x: NDArray[Any]
    y: NDArray[Any]  # labels, or the targets that ``task`` needs
    scale: Scale  # how examples become network input
    labels: tuple[str, ...]  # the names of the classes, labels, tokens or targets
    official: int | None = None  # size of the official training set, which comes first
    users: NDArray[np.int64] | None = None  # user of each example, if known
    user_names: tuple[str, ...] = ()
    task: TaskName = "classification"
    remark: str = ""  # differences from the published data set of the same name
    columns: Columns = Columns()  # for a table, in which x has NaN for a missing value
    record: Record | None = None  # layout of a row of x, for packed examples

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise DataError(f"{self.name}: {len(self.x)} examples but {len(self.y)} labels")
        if len(self.y) == 0:
            raise DataError(f"{self.name}: there are no examples")
        known = self.y[self.y != IGNORED_TOKEN] if self.task == "sequence" else self.y
        counted = self.task in ("classification", "sequence") and known.size
        if counted and (known.min() < 0 or known.max() >= len(self.labels)):
            raise DataError(f"{self.name}: labels must be 0 … {len(self.labels) - 1}")
        if self.task == "sequence" and not np.issubdtype(self.x.dtype, np.integer):
            raise DataError(f"{self.name}: a sequence must be of whole numbers, not {self.x.dtype}")
        if np.issubdtype(self.x.dtype, np.floating) and not (
            self.columns or np.isfinite(self.x).all()
        ):
            raise DataError(f"{self.name}: the examples hold NaN or infinity")


def decide_classes(source: Source, classes: int | Sequence[str] | None) -> Source:
    """Return the source with the classes in ``data.classes``; by default, labels must be 0, 1, … without gaps.

    The largest label does not determine the number of classes: labels 1, 2, 3 may be three classes.
    """
    if source.task != "classification":
        if classes is None:
            return source
        names = choose_target_names(source.labels, source.task, classes)
        return replace(source, labels=names)
    if classes is not None and source.labels != make_number_names(len(source.labels)):
        y, given = number_text_labels([source.labels[i] for i in source.y], classes, source.name)
        return replace(source, y=y, labels=parse_class_names(given))
    if classes is not None:
        labels, largest = parse_class_names(classes), int(source.y.max())
        if largest >= len(labels):
            raise DataError(
                f"{source.name}: labels must be 0 … {len(labels) - 1}, but example"
                f" {int(source.y.argmax())} has {largest}; number the labels 0, 1, … (y - 1), or list"
                " all classes (data.classes)"
            )
        return replace(source, labels=labels)
    found = np.unique(source.y).tolist()
    if found == list(range(len(found))):
        return source
    shown = [*found[:5], "…", found[-1]] if len(found) > 6 else found
    from_zero = found == list(range(1, len(found) + 1))
    how = "y - 1" if from_zero else "np.unique(y, return_inverse=True)[1]"
    raise DataError(
        f"{source.name}: the labels are {', '.join(map(str, shown))}, not 0 … {len(found) - 1};"
        f" renumber them ({how}), or set classes={found[-1] + 1} (data.classes) if some classes"
        " have no example"
    )


def parse_class_names(classes: int | Sequence[str]) -> tuple[str, ...]:
    """Check and convert ``data.classes``: the names of the classes, or their number."""
    if isinstance(classes, int) and classes > MAX_CLASSES:
        raise ConfigError(f"data.classes: must be at most {MAX_CLASSES}, not {classes}")
    names = make_number_names(classes) if isinstance(classes, int) else classes
    if isinstance(names, str) or not names or not all(isinstance(n, str) and n for n in names):
        raise ConfigError(f"data.classes: must be names or a number, not {classes!r}")
    if len(set(names)) < len(names):
        raise ConfigError("data.classes: a name is listed twice")
    return tuple(names)


CLIENT = "client"  # the column or array that names clients, unless ``data.users`` is set
T = TypeVar("T")


def name_users(source: Source, clients: Iterable[object], where: str) -> Source:
    """Return the source with each example's client as its user; names are in natural order."""
    given: list[object] = clients.tolist() if hasattr(clients, "tolist") else list(clients)
    if len(given) != len(source.y):
        raise DataError(
            f"{where}: must have one name per example: {len(source.y)} examples, {len(given)} names"
        )
    users, names = number_clients(given, where)
    return replace(source, users=users, user_names=names)


def number_clients(
    clients: Iterable[object], where: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Convert client names, one per example, to positions; also return the names in natural order."""
    known: dict[str, object] = {}
    found: list[str] = []
    for row, value in enumerate(clients, 1):
        name = parse_client_name(value, f"{where}, row {row}")
        if known.setdefault(name, value) != value:
            raise DataError(
                f"{where}, row {row}: {value!r} and {known[name]!r} would both be client '{name}';"
                " write the name in one way"
            )
        found.append(name)
    names = sort_names(known)
    positions = {name: i for i, name in enumerate(names)}
    return np.array([positions[name] for name in found], dtype=np.int64), tuple(names)


def parse_client_name(value: Any, where: str) -> str:
    """Convert the name of a client, a text or a number, to text."""
    if not isinstance(value, str) and is_missing(value):
        value = ""
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")
    if isinstance(value, list | tuple | dict | set):
        raise DataError(f"{where}: the name of a client must be a text or a number, not {value!r}")
    if not (name := str(value)):
        raise DataError(f"{where}: the name of the client is missing")
    return check_client_name(name, where)


def check_client_name(name: str, where: str) -> str:
    """Return the name; raise DataError if it is not allowed for a client."""
    if name == POOLED_CLIENT:
        raise DataError(f"{where}: '{name}' stands for all clients together; rename the client")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"{where}: {name!r} is not text in UTF-8; rename the client") from None
    return name


def check_names_on_boards(names: Iterable[str]) -> None:
    """Raise DataError if a client's name cannot appear in topics, certificates and commands of boards."""
    for name in names:
        if not NAME_PATTERN.fullmatch(name):
            raise DataError(
                f"'{name}' cannot be a client's name on boards; rename it in the data: {NAME_RULE}"
            )


def check_plain_name(name: str) -> str:
    """Return a client's name; raise DataError if it cannot be the name of a folder or file."""
    if not NAME_PATTERN.fullmatch(name):
        raise DataError(f"'{name}' cannot be a client's name; {NAME_RULE}")
    return name


def name_own_clients(own: Iterable[tuple[object, T]]) -> dict[str, T]:
    """Map clients' names, as text and in natural order, to their data; raise DataError for a duplicate."""
    by_name: dict[str, T] = {}
    for client, held in own:
        name = parse_client_name(client, "clients")
        if name in by_name:
            raise DataError(f"two clients have the name '{name}'; rename one of them")
        by_name[name] = held
    return {name: by_name[name] for name in sort_names(by_name)}
