"""The claims of the five works: every ordering that a table prints, and every claim in words.

Orderings come from the tables' files. ``claims.toml`` says for each claim in words how it is decided.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from ..core.errors import ConfigError
from ..core.fields import check_settings, construct, setting
from .table import Ordering, PublishedTable, check_choice, load_tables

CLAIMS_FILE = files(__package__) / "claims.toml"
CellKey = tuple[str, str]  # row and column
ATTACK_MEASURES = ("psnr_mean", "psnr_max")
AUDIT_COMMAND = "heterophony audit --preset medium"


@dataclass(frozen=True)
class PaperClaim:
    """A claim of a work. It holds if every comparison does: the first cell is above the second.

    ``least``: above by at least so much. ``within``: no further apart than this. A claim without
    comparisons cannot be decided from runs alone; ``how`` says how it is.
    """

    table: PublishedTable
    says: str
    printed: str
    how: str
    measure: str
    comparisons: tuple[tuple[CellKey, CellKey], ...]
    least: float | None = None
    within: float | None = None
    command: str = ""  # that decides it, if it is not `reproduce`
    follows: bool = False  # it follows from the method, and a test checks it: no run is needed

    @property
    def id(self) -> str:
        """A name for programs: the table, and the claim in short."""
        return f"{self.table.name}: {self.says}"

    @property
    def is_about_attacks(self) -> bool:
        """Whether it is about attacks on what is sent, which `heterophony audit` makes."""
        return self.measure in ATTACK_MEASURES

    @property
    def cells(self) -> tuple[CellKey, ...]:
        """The cells that it takes to decide it."""
        return tuple(dict.fromkeys(cell for pair in self.comparisons for cell in pair))


@dataclass(frozen=True)
class WrittenClaim:
    """A claim in words, as ``claims.toml`` has it.

    ``pairs`` are of rows: the first above the second, in every column that ``columns`` matches.
    ``column_pairs`` are of columns, in every row that ``rows`` matches.
    """

    table: str
    says: str
    how: str
    printed: str = ""
    measure: str = "P"
    pairs: list[list[str]] = field(default_factory=list)
    columns: str = "*"
    column_pairs: list[list[str]] = field(default_factory=list)
    rows: str = "*"
    least: float | None = setting(None, "above by at least so many points")
    within: float | None = setting(None, "no further apart than so many points")
    command: str = ""
    follows: bool = False

    def __post_init__(self) -> None:
        check_settings(self)


def list_claims(tables: Sequence[PublishedTable] | None = None) -> list[PaperClaim]:
    """List all claims: table by table, orderings before words."""
    written = read_written_claims()
    claims: list[PaperClaim] = []
    for table in load_tables() if tables is None else tables:
        claims += list_orderings(table)
        claims += [expand_claim(table, claim) for claim in written if claim.table == table.name]
    return claims


# Orderings ----------------------------------------------------------------------------------


def list_orderings(table: PublishedTable) -> Iterator[PaperClaim]:
    """Yield a claim for every ordering and column of a table."""
    for ordering in table.orderings:
        for column in table.columns:
            if fnmatchcase(column, ordering.columns):
                yield from describe_ordering(table, ordering, column)


def describe_ordering(
    table: PublishedTable, ordering: Ordering, column: str
) -> Iterator[PaperClaim]:
    """Yield the claim that an ordering makes in a column, unless it has no other row there."""
    printed = {c.row: c.printed for c in table.cells if c.column == column}
    rows = [r for r in printed if r != ordering.above and fnmatchcase(r, ordering.below)]
    if ordering.above not in printed or not rows:
        return
    below = "all others" if ordering.below == "*" else ordering.below
    yield PaperClaim(
        table=table,
        says=f"{column}: {ordering.measure} of {ordering.above} is above {below}",
        printed=describe_printed(printed, ordering, rows),
        how="every difference, paired by seed, is above 0",
        measure=ordering.measure,
        comparisons=tuple(((ordering.above, column), (row, column)) for row in rows),
        command=AUDIT_COMMAND if ordering.measure in ATTACK_MEASURES else "",
    )


def describe_printed(printed: dict[str, Any], ordering: Ordering, rows: Sequence[str]) -> str:
    """Say the printed numbers: that of the first row, and the highest of the others."""
    values = {r: n.value for r in rows if (n := printed[r].get(ordering.measure))}
    top = printed[ordering.above].get(ordering.measure)
    if top is None or not values:
        return "no numbers, a figure"
    nearest = max(values, key=lambda r: values[r])
    return f"{top.value:g} against {values[nearest]:g} ({nearest})"


# Words --------------------------------------------------------------------------------------


def read_written_claims() -> list[WrittenClaim]:
    """Read the claims in words."""
    try:
        raw = tomllib.loads(CLAIMS_FILE.read_text(encoding="utf-8"))
        return [construct(WrittenClaim, claim, "claims") for claim in raw["claims"]]
    except (tomllib.TOMLDecodeError, ConfigError) as error:
        raise ConfigError(f"{CLAIMS_FILE.name}: {error}") from None


def expand_claim(table: PublishedTable, claim: WrittenClaim) -> PaperClaim:
    """Return a claim in words with the cells that it compares."""
    cells = {(c.row, c.column) for c in table.cells}
    pairs = [
        ((first, column), (second, column))
        for first, second in check_names(claim.pairs, table.rows)
        for column in table.columns
        if fnmatchcase(column, claim.columns)
    ] + [
        ((row, first), (row, second))
        for first, second in check_names(claim.column_pairs, table.columns)
        for row in table.rows
        if fnmatchcase(row, claim.rows)
    ]
    return PaperClaim(
        table=table,
        says=claim.says,
        printed=claim.printed,
        how=claim.how,
        measure=claim.measure,
        comparisons=tuple(p for p in pairs if {*p} <= cells),
        least=claim.least,
        within=claim.within,
        command=claim.command,
        follows=claim.follows,
    )


def check_names(pairs: Sequence[Sequence[str]], names: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the pairs; raise if one is not of two rows or columns of the table."""
    for pair in pairs:
        if len(pair) != 2:
            raise ConfigError(f"claims.pairs: {pair} must be two names")
        for name in pair:
            check_choice(name, names, "claims.pairs")
        yield pair[0], pair[1]
