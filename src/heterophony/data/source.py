"""A data set as it was read, before it is partitioned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import ConfigError, DataError
from ..core.samples import Scale
from ..core.scores import TaskName
from ..core.tasks import IGNORED_TOKEN
from .targets import MAX_CLASSES, choose_target_names


@dataclass(frozen=True)
class Source:
    """Examples as stored, their targets, and what the data set says about them."""

    name: str
    x: NDArray[Any]
    y: NDArray[Any]  # labels; what ``task`` asks for
    scale: Scale  # how examples become network input
    labels: tuple[str, ...]  # the names of the classes, labels, tokens or targets
    official: int | None = None  # size of the official training set, which comes first
    users: NDArray[np.int64] | None = None  # the user each example comes from, if known
    user_names: tuple[str, ...] = ()
    task: TaskName = "classification"
    remark: str = ""  # how it differs from the published data set of its name

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
        if np.issubdtype(self.x.dtype, np.floating) and not np.isfinite(self.x).all():
            raise DataError(f"{self.name}: the examples hold NaN or infinity")


def decide_classes(source: Source, classes: int | Sequence[str] | None) -> Source:
    """Return the source with these classes; without them, its labels must be 0, 1, … without gaps.

    The largest label alone does not say how many classes there are: labels 1, 2, 3 may be three.
    """
    if source.task != "classification":
        return (
            source
            if classes is None
            else replace(source, labels=choose_target_names(source.labels, source.task, classes))
        )
    if classes is not None:
        return replace(source, labels=parse_class_names(classes))
    found = np.unique(source.y).tolist()
    if found == list(range(len(found))):
        return source
    shown = [*found[:5], "…", found[-1]] if len(found) > 6 else found
    from_zero = found == list(range(1, len(found) + 1))
    how = "y - 1" if from_zero else "np.unique(y, return_inverse=True)[1]"
    raise DataError(
        f"{source.name}: the labels are {', '.join(map(str, shown))}, not 0 … {len(found) - 1};"
        f" number them so ({how}), or give classes={found[-1] + 1} (data.classes) if some classes"
        " have no example"
    )


def parse_class_names(classes: int | Sequence[str]) -> tuple[str, ...]:
    """Check and convert ``data.classes``: the names of the classes, or how many there are."""
    if isinstance(classes, int) and classes > MAX_CLASSES:
        raise ConfigError(f"data.classes: must be at most {MAX_CLASSES}, not {classes}")
    names = [str(i) for i in range(classes)] if isinstance(classes, int) else classes
    if isinstance(names, str) or not names or not all(isinstance(n, str) and n for n in names):
        raise ConfigError(f"data.classes: must be names or a number, not {classes!r}")
    if len(set(names)) < len(names):
        raise ConfigError("data.classes: a name is listed twice")
    return tuple(names)
