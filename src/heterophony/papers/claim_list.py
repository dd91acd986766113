"""The published claims of five works, and findings: groups of claims with the same comparison.

Claims are the orderings in the tables' files and the claims in words in ``claims.toml``. Papers repeat their
theses, so claims with the same comparison are one finding.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from ..core.errors import ConfigError
from ..core.settings import CheckedSettings, construct, setting
from .table import Ordering, PublishedTable, check_choice, index_cells, load_tables

CLAIMS_FILE = files(__package__) / "claims.toml"
CellKey = tuple[str, str]  # row and column
ATTACK_MEASURES = ("psnr_mean", "psnr_max")
AUDIT_COMMAND = "heterophony audit --preset medium"


@dataclass(frozen=True)
class Comparison:
    """A difference that is claimed to be above 0: the sum of the first cells minus the second's."""

    first: tuple[CellKey, ...]
    second: tuple[CellKey, ...]

    @property
    def cells(self) -> tuple[CellKey, ...]:
        """The compared cells."""
        return (*self.first, *self.second)

    @property
    def label(self) -> str:
        """Name the difference briefly by its rows, its columns or both."""
        (row, column), (other, other_column) = self.first[0], self.second[0]
        if len(self.first) > 1:  # the falls of two rows from one column to another
            return f"fall of {row} − fall of {self.first[1][0]}"
        if column == other_column:
            return f"{row} − {other}"
        if row == other:
            return f"{column} − {other_column}"
        return f"{row}, {column} − {other}, {other_column}"


def compare_two(first: CellKey, second: CellKey) -> Comparison:
    """Return the comparison in which the first cell is claimed to be above the second."""
    return Comparison((first,), (second,))


def compare_falls(row: str, other: str, before: str, after: str) -> Comparison:
    """Return the comparison in which a row is claimed to fall less than another between two columns."""
    return Comparison(((other, before), (row, after)), ((other, after), (row, before)))


@dataclass(frozen=True)
class PaperClaim:
    """A claim of a paper, which holds if each of its comparisons holds.

    ``least``: the smallest margin by which the first cell must exceed the second. ``within``: the largest
    difference between the two. ``how`` describes how the claim is decided. Without comparisons, runs
    alone cannot decide the claim.
    """

    table: PublishedTable
    says: str
    printed: str
    how: str
    measure: str
    comparisons: tuple[Comparison, ...]
    least: float | None = None
    within: float | None = None
    command: str = ""  # command that decides the claim, other than `reproduce`
    follows: bool = False  # whether it follows from the method, which a test checks without runs

    @property
    def id(self) -> str:
        """An identifier for programs: the table and a short form of the claim."""
        return f"{self.table.name}: {self.says}"

    @property
    def is_about_attacks(self) -> bool:
        """Whether the claim is about attacks on sent updates, as in `heterophony audit`."""
        return self.measure in ATTACK_MEASURES

    @property
    def cells(self) -> tuple[CellKey, ...]:
        """The cells of the table that the claim compares."""
        return tuple(dict.fromkeys(cell for c in self.comparisons for cell in c.cells))


@dataclass(frozen=True)
class WrittenClaim(CheckedSettings):
    """A claim in words, as written in ``claims.toml``.

    ``pairs``: in each pair of rows, the first is above the second in every column that ``columns``
    matches. ``column_pairs``: the same for pairs of columns, in every row that ``rows`` matches.
    ``best``: a row and a column, whose cell is above all others that ``rows`` and ``columns`` match.
    ``falls_least``: a row and two columns; from the first column to the second, the row falls less
    than all other rows that ``rows`` matches.
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
    best: list[str] = field(default_factory=list)
    falls_least: list[list[str]] = field(default_factory=list)
    least: float | None = setting(None, "above by at least this many points")
    within: float | None = setting(None, "no further apart than this many points")
    command: str = ""
    follows: bool = False


@cache
def list_claims() -> tuple[PaperClaim, ...]:
    """List the claims of all papers, table by table: orderings, then claims in words."""
    written = read_written_claims()
    claims: list[PaperClaim] = []
    for table in load_tables():
        claims += list_orderings(table)
        claims += [expand_claim(table, claim) for claim in written if claim.table == table.name]
    return tuple(claims)


# Orderings ----------------------------------------------------------------------------------


def list_orderings(table: PublishedTable) -> Iterator[PaperClaim]:
    """Yield a claim for every ordering in every column of a published table."""
    for ordering in table.orderings:
        for column in table.columns:
            if fnmatchcase(column, ordering.columns):
                yield from describe_ordering(table, ordering, column)


def describe_ordering(
    table: PublishedTable, ordering: Ordering, column: str
) -> Iterator[PaperClaim]:
    """Yield the claim of an ordering in one column, unless it has no other row to compare with."""
    printed = {c.row: c.printed for c in table.cells if c.column == column}
    rows = [r for r in printed if r != ordering.above and fnmatchcase(r, ordering.below)]
    if ordering.above not in printed or not rows:
        return
    yield PaperClaim(
        table=table,
        says=f"{column}: {ordering.describe()}",
        printed=describe_printed(printed, ordering, rows),
        how="every difference, paired by seed, is above 0",
        measure=ordering.measure,
        comparisons=tuple(compare_two((ordering.above, column), (row, column)) for row in rows),
        command=AUDIT_COMMAND if ordering.measure in ATTACK_MEASURES else "",
    )


def describe_printed(printed: dict[str, Any], ordering: Ordering, rows: Sequence[str]) -> str:
    """Format the printed numbers that an ordering compares: its row's and the highest other row's."""
    values = {r: n.value for r in rows if (n := printed[r].get(ordering.measure))}
    top = printed[ordering.above].get(ordering.measure)
    if top is None or not values:
        return "no numbers, a figure"
    nearest = max(values, key=lambda r: values[r])
    return f"{top.value:g} against {values[nearest]:g} ({nearest})"


# Words --------------------------------------------------------------------------------------


def read_written_claims() -> list[WrittenClaim]:
    """Read the claims in words from ``claims.toml``."""
    try:
        raw = tomllib.loads(CLAIMS_FILE.read_text(encoding="utf-8"))
        return [construct(WrittenClaim, claim, "claims") for claim in raw["claims"]]
    except (tomllib.TOMLDecodeError, ConfigError) as error:
        raise ConfigError(f"{CLAIMS_FILE.name}: {error}") from None


def expand_claim(table: PublishedTable, claim: WrittenClaim) -> PaperClaim:
    """Build a claim from its entry in ``claims.toml``, with all its comparisons."""
    cells = {(c.row, c.column) for c in table.cells}
    found = (c for c in list_comparisons(table, claim) if {*c.cells} <= cells)
    return PaperClaim(
        table=table,
        says=claim.says,
        printed=claim.printed,
        how=claim.how,
        measure=claim.measure,
        comparisons=tuple(found),
        least=claim.least,
        within=claim.within,
        command=claim.command,
        follows=claim.follows,
    )


def list_comparisons(table: PublishedTable, claim: WrittenClaim) -> Iterator[Comparison]:
    """Yield the comparisons of a claim in words, including cells without a printed number."""
    rows = [row for row in table.rows if fnmatchcase(row, claim.rows)]
    columns = [column for column in table.columns if fnmatchcase(column, claim.columns)]
    for pair in claim.pairs:
        first, second = check_claim_names("pairs", pair, table.rows, table.rows)
        yield from (compare_two((first, column), (second, column)) for column in columns)
    for pair in claim.column_pairs:
        first, second = check_claim_names("column_pairs", pair, table.columns, table.columns)
        yield from (compare_two((row, first), (row, second)) for row in rows)
    if claim.best:
        row, column = check_claim_names("best", claim.best, table.rows, table.columns)
        others = [(r, c) for r in rows for c in columns if (r, c) != (row, column)]
        yield from (compare_two((row, column), other) for other in others)
    for fall in claim.falls_least:
        kinds = (table.rows, table.columns, table.columns)
        row, before, after = check_claim_names("falls_least", fall, *kinds)
        yield from (compare_falls(row, r, before, after) for r in rows if r != row)


def check_claim_names(key: str, names: Sequence[str], *kinds: dict[str, Any]) -> Sequence[str]:
    """Return the names in a written claim; raise ConfigError unless they are rows or columns of its table."""
    if len(names) != len(kinds):
        raise ConfigError(f"claims.{key}: {list(names)} must be {len(kinds)} names")
    for name, kind in zip(names, kinds, strict=True):
        check_choice(name, kind, f"claims.{key}")
    return names


# Findings -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """Claims that rest on the same comparisons of the same runs; the first covers all others."""

    claims: tuple[PaperClaim, ...]

    @property
    def id(self) -> str:
        """The identifier of the first claim."""
        return self.claims[0].id

    @property
    def comparisons(self) -> int:
        """The number of comparisons that were examined for the finding."""
        return len(self.claims[0].comparisons)


def group_claims(claims: Sequence[PaperClaim]) -> list[Finding]:
    """Group claims into findings, in the order of their first claims.

    Claims are one finding if they compare cells with the same settings in the same way. The parts of a
    claim, such as one ordering per column, join it if together they are equivalent to it.
    """
    keys = [encode_comparisons(claim) for claim in claims]
    left, groups = dict.fromkeys(range(len(claims))), []
    for i in sorted(left, key=lambda i: -len(keys[i])):
        if i not in left:
            continue
        group = [j for j in left if j == i or (keys[i] and keys[j] == keys[i])]
        parts = [j for j in left if keys[j] and keys[j] < keys[i]]
        if keys[i] and frozenset().union(*(keys[j] for j in parts)) == keys[i]:
            group += parts
        for j in group:
            del left[j]
        groups.append(group)
    return [Finding(tuple(claims[j] for j in group)) for group in sorted(groups, key=min)]


def encode_comparisons(claim: PaperClaim) -> frozenset[tuple[Any, ...]]:
    """Encode a claim's comparisons by settings and measures, so that equal comparisons from two tables match."""
    cells = index_cells(claim.table.name)
    rule, limits = claim.table.measured, (claim.least, claim.within)
    how = (claim.measure, rule.rounds, rule.clients, rule.personal, *limits)

    def describe(keys: Sequence[CellKey]) -> tuple[str, ...]:
        return tuple(encode_cell_settings(cells[key].config) for key in keys)

    return frozenset((*how, describe(c.first), describe(c.second)) for c in claim.comparisons)


def encode_cell_settings(config: dict[str, Any], *without: str) -> str:
    """Encode a cell's settings as JSON; equal settings give equal text, whatever their notation."""
    kept = {k: v for k, v in config.items() if k not in without}
    participation = dict(kept["participation"])
    if "rate" in participation:
        clients = kept["data"]["clients"]
        participation["count"] = max(1, int(participation.pop("rate") * clients))
    return json.dumps({**kept, "participation": participation}, sort_keys=True)
