"""The table of results that every command, file and page shows: typed columns and cells.

``results/render.py`` writes it for a terminal, as CSV, Markdown, LaTeX, JSON, or for a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..core.errors import choose

Interval = tuple[float, float]
# bold: leads beyond chance; good, limited, bad: a verdict; open: no verdict
Mark = Literal["", "bold", "good", "limited", "bad", "open"]


@dataclass(frozen=True)
class Column:
    """A column. Numbers are aligned to the right; ``percent`` values are fractions, shown times 100.

    ``show`` says what follows the value for people: ``std`` and ``half`` (of the interval) after
    ``±``, the ``interval`` in brackets. ``drop`` orders the columns that a narrow terminal may leave
    out: 1 goes first, 0 always stays.
    """

    title: str
    key: str = ""  # for programs; default: the title
    kind: Literal["text", "number", "percent"] = "number"
    form: str = ".2f"  # format specification of a number
    show: Literal["value", "std", "half", "interval"] = "value"
    drop: int = 0

    @property
    def name(self) -> str:
        """The key of the column, or its title if it has none."""
        return self.key or self.title


@dataclass(frozen=True)
class Cell:
    """A value with what is known about it; None is shown as –."""

    value: float | str | None = None
    std: float | None = None
    interval: Interval | None = None  # 95 %, of the mean
    note: str = ""  # in brackets after the value, such as "round 12"
    mark: Mark = ""
    form: str = ""  # in place of the column's


Value = Cell | float | str | None
Columns = list[Column | str]
Rows = list[list[Value]]


@dataclass(frozen=True)
class ResultTable:
    """Rows of cells under their columns, with a title above and notes below."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def build(
        cls,
        columns: Iterable[Column | str],
        rows: Iterable[Sequence[Value]],
        title: str = "",
        notes: Iterable[str | None] = (),
    ) -> ResultTable:
        """Build a table from plain values; a column given by its title holds text.

        Empty notes are left out.
        """
        heads = tuple(Column(c, kind="text") if isinstance(c, str) else c for c in columns)
        lines = tuple(tuple(v if isinstance(v, Cell) else Cell(v) for v in row) for row in rows)
        for line in lines:
            if len(line) != len(heads):
                raise ValueError(f"a row has {len(line)} cells for {len(heads)} columns")
        return cls(heads, lines, title, tuple(filter(None, notes)))

    def select(self, keys: Sequence[str], where: str) -> ResultTable:
        """Return the table with its first column and these, in this order.

        Raise ConfigError, naming ``where`` the keys come from, if there is no such column.
        """
        places = {column.name: i for i, column in enumerate(self.columns)}
        known = {name: i for name, i in places.items() if i}
        chosen = [0, *(choose(known, key, where) for key in keys)]
        columns = tuple(self.columns[i] for i in chosen)
        return replace(
            self, columns=columns, rows=tuple(tuple(r[i] for i in chosen) for r in self.rows)
        )
