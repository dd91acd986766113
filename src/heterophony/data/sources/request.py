"""What a configuration asks of users' data, and the clients that data name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.scores import TaskName


@dataclass(frozen=True)
class Request:
    """The settings ``data.classes``, ``data.task`` and ``data.users``."""

    classes: int | Sequence[str] | None = None
    task: TaskName = "classification"
    users: str | None = None  # the column or array that names each example's client


@dataclass(frozen=True)
class NamedClients:
    """The clients that data name."""

    names: tuple[str, ...]
    has_split: bool = False  # each of them has training and test examples of its own


NO_CLIENTS = NamedClients(())
