"""Published tables, read from TOML without torch: rows, columns, settings, printed numbers and claims."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from ..core.errors import ConfigError, choose
from ..core.settings import CheckedSettings, check_settings, construct, setting


class TableScale(StrEnum):
    """The scale of a published table's runs: quick (digits), medium (small data) or full (as in the paper)."""

    quick = "quick"
    medium = "medium"
    full = "full"


TABLES = files(__package__) / "tables"
VARIANT_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")  # part of the names of folders and files
VARIANT_SIGN = "+"  # between the names of variants that are chosen together
NO_NUMBER = "-"  # in a list of printed numbers: the paper prints no number
FigureKind = Literal["bars", "clients", "sweep", "grid", "curves", "difference", "participation"]
GENERIC_LOSS = "G_loss"  # the test loss of the generic model
MEASURES = (
    *("G", "P", "score", GENERIC_LOSS),
    *("delta_sigma", "delta_tau", "psnr_mean", "psnr_max"),
)
MEASURE_NAMES = {  # other measures are called as in the files
    GENERIC_LOSS: "test loss of G",
    "psnr_mean": "mean PSNR",
    "psnr_max": "highest PSNR",
}


@dataclass(frozen=True)
class MeasurementRule(CheckedSettings):
    """The paper's rule for computing a printed number from one or several runs."""

    rounds: Literal["best", "last", "last10"] = setting("best", "which rounds of a run count")
    clients: Literal["pooled", "mean"] = setting("pooled", "all test examples, or clients, alike")
    seeds: list[int] = field(default_factory=lambda: [0])
    personal: Literal["merged", "just_trained"] = setting(
        "merged", "whether P is of models after the merge or, as testbeds measure it, before"
    )


@dataclass(frozen=True)
class CellOverride(CheckedSettings):
    """Settings for the cells whose row and column match these patterns."""

    set: dict[str, Any]
    rows: str = "*"
    columns: str = "*"

    def applies_to(self, row: str, column: str) -> bool:
        """Return True if the cell in this row and column matches."""
        return fnmatchcase(row, self.rows) and fnmatchcase(column, self.columns)


@dataclass(frozen=True)
class TableVariant(CheckedSettings):
    """Alternative settings that the paper may have used: what they are and why to try them."""

    what: str
    reason: str
    source: str
    changes: list[CellOverride]
    control: bool = False  # whether it is our own control, which decides no claim


@dataclass(frozen=True)
class Ordering(CheckedSettings):
    """A claim that one row is above others; ``below`` and ``columns`` are patterns of names."""

    measure: str
    above: str
    below: str = "*"
    columns: str = "*"

    def describe(self) -> str:
        """Describe the ordering in words, as in ``P of FedReG is above all others``."""
        below = "all others" if self.below == "*" else self.below
        return f"{MEASURE_NAMES.get(self.measure, self.measure)} of {self.above} is above {below}"


@dataclass(frozen=True)
class PrintedNumber:
    """A printed number and, if printed, its standard deviation."""

    value: float
    std: float | None = None


@dataclass(frozen=True)
class Cell:
    """One cell of a published table: its configuration, run once per seed, and its printed numbers."""

    row: str
    column: str
    config: dict[str, Any]
    printed: dict[str, PrintedNumber]
    needs: str | None
    variant: str = ""  # the names of the chosen variants that change this cell, joined by "+"


@dataclass(frozen=True)
class PublishedTable:
    """A published table, or a figure with the same structure."""

    name: str
    paper: str
    where: str
    what: str
    measured: MeasurementRule = MeasurementRule()
    figure: FigureKind = setting("bars", "how it is drawn")
    draws: list[str] = field(default_factory=list)  # measures in the figure; empty: all
    settings: dict[str, Any] = field(default_factory=dict)
    # settings of the checkpoint that all runs start from
    pretraining: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    exceptions: list[CellOverride] = field(default_factory=list)
    variants: dict[str, TableVariant] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)  # names of the variants to run, in their order
    printed: dict[str, Any] = field(default_factory=dict)
    std: dict[str, Any] = field(default_factory=dict)
    orderings: list[Ordering] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)
    unsaid: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    needs: str | None = setting(None, "why it cannot be run here")
    baseline: str = setting("", "the table whose FedAvg is the baseline; default: its own settings")

    def __post_init__(self) -> None:
        check_settings(self)
        for key, numbers in (("printed", self.printed), ("std", self.std)):
            for measure, rows in numbers.items():
                self.check_numbers(f"{key}.{measure}", measure, rows)
        for measure in self.draws:
            check_choice(measure, MEASURES, "draws")
        self.check_overrides("exceptions", self.exceptions)
        for name, variant in self.variants.items():
            if not VARIANT_NAME.fullmatch(name):
                raise ConfigError(f"variants.{name}: must be lower-case words joined by '-'")
            self.check_overrides(f"variants.{name}", variant.changes)
        for o in self.orderings:
            check_choice(o.above, self.rows, "orderings.above")
            check_choice(o.measure, self.printed or MEASURES, "orderings.measure")

    def check_numbers(self, where: str, measure: str, rows: Mapping[str, Any]) -> None:
        """Raise ConfigError unless every row of printed numbers is in the table and has one per column."""
        check_choice(measure, MEASURES, where)
        for row, numbers in rows.items():
            check_choice(row, self.rows, where)
            if not isinstance(numbers, list) or len(numbers) != len(self.columns):
                raise ConfigError(f"{where}.{row}: must have {len(self.columns)} numbers")
            if any(n != NO_NUMBER and not isinstance(n, int | float) for n in numbers):
                raise ConfigError(f"{where}.{row}: must be numbers, or '{NO_NUMBER}' for none")

    def check_overrides(self, where: str, overrides: Sequence[CellOverride]) -> None:
        """Raise ConfigError if an override matches no cell of the table."""
        for e in overrides:
            if not any(e.applies_to(r, c) for r in self.rows for c in self.columns):
                raise ConfigError(f"{where}: no cell is in '{e.rows}' and '{e.columns}'")

    @property
    def cells(self) -> list[Cell]:
        """All cells, row by row; in a table with printed numbers, only the cells that have one."""
        return list(self._iterate_cells())

    def _iterate_cells(self) -> Iterator[Cell]:
        for row, row_settings in self.rows.items():
            needs = row_settings.get("needs", self.needs)
            row_changes = {k: v for k, v in row_settings.items() if k != "needs"}
            for i, (column, column_changes) in enumerate(self.columns.items()):
                printed = self.get_printed(row, i)
                if self.printed and not printed:
                    continue
                exceptions = [e.set for e in self.exceptions if e.applies_to(row, column)]
                config = deepcopy(self.settings)
                for changes in (column_changes, row_changes, *exceptions):
                    merge_settings(config, changes)
                changed = self._apply_variants(config, row, column)
                yield Cell(row, column, config, printed, needs, changed)

    def _apply_variants(self, config: dict[str, Any], row: str, column: str) -> str:
        """Apply the chosen variants to a cell's configuration; return the names of the variants that change it."""
        names = []
        for name in self.chosen:
            before = deepcopy(config)
            for change in self.variants[name].changes:
                if change.applies_to(row, column):
                    merge_settings(config, change.set)
            names += [name] if config != before else []
        return VARIANT_SIGN.join(names)

    @property
    def variant(self) -> str:
        """The names of the chosen variants, joined by "+"; empty if none is chosen."""
        return VARIANT_SIGN.join(self.chosen)

    def choose_variants(self, names: Iterable[str]) -> PublishedTable:
        """Return the published table with the settings of these variants, in the order of its file."""
        wanted = [name for joined in names for name in joined.split(VARIANT_SIGN)]
        for name in wanted:
            if not self.variants:
                raise ConfigError(f"--variant {name}: {self.name} has no variants")
            check_choice(name, self.variants, "--variant")
        return replace(self, chosen=[name for name in self.variants if name in wanted])

    def get_printed(self, row: str, column: int) -> dict[str, PrintedNumber]:
        """Return the printed numbers of a cell by measure."""
        out = {}
        for measure, rows in self.printed.items():
            value = rows.get(row, {column: NO_NUMBER})[column]
            std = self.std.get(measure, {}).get(row, {column: NO_NUMBER})[column]
            if value != NO_NUMBER:
                out[measure] = PrintedNumber(value, None if std == NO_NUMBER else std)
        return out

    def build_baseline(self, row: str, column: str) -> dict[str, Any]:
        """Return the settings of the FedAvg baseline for a cell, with the chosen variants.

        They come from the table and the column, unless the work has a table for its baseline.
        """
        if self.baseline:
            data = next(c.config["data"] for c in self.cells if (c.row, c.column) == (row, column))
            found = (c.config for c in load_table(self.baseline).cells)
            return next(c for c in found if c["data"]["name"] == data["name"])
        config = deepcopy(self.settings)
        merge_settings(config, self.columns[column])
        config["algorithm"] = {"name": "fedavg"}
        for exception in self.exceptions:
            if exception.applies_to("FedAvg", column):
                merge_settings(config, exception.set)
        self._apply_variants(config, "FedAvg", column)
        return config

    @property
    def missing_requirements(self) -> str | None:
        """Why cells of the table cannot be run here; None if all cells can be run."""
        missing = dict.fromkeys(c.needs for c in self.cells if c.needs)
        return self.needs or "; ".join(missing) or None


def describe_variants(table: PublishedTable, names: Iterable[str]) -> list[dict[str, str]]:
    """Return variants of a table as plain data: what each changes, why, and its source."""
    found = ((name, table.variants[name]) for name in names)
    return [
        {"name": name, "what": v.what, "reason": v.reason, "source": v.source} for name, v in found
    ]


def merge_settings(config: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Update a configuration in place: merge sections key by key, replace other values."""
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            merge_settings(config[key], value)
        else:
            config[key] = deepcopy(value)


def check_choice(word: str, choices: Mapping[str, Any] | tuple[str, ...], where: str) -> None:
    """Raise ConfigError unless a word in a table's file is one of the choices."""
    choose(dict.fromkeys(choices), word, where)


def parse_table(name: str, text: str) -> PublishedTable:
    """Parse the TOML file of a published table; raise ConfigError for unknown keys and wrong values."""
    try:
        raw = tomllib.loads(text)
        parts: dict[str, Any] = {
            "measured": construct(MeasurementRule, raw.pop("measured", {}), "measured")
        }
        for key, kind in (("exceptions", CellOverride), ("orderings", Ordering)):
            parts[key] = [construct(kind, entry, key) for entry in raw.pop(key, [])]
        parts["variants"] = {k: parse_variant(k, v) for k, v in raw.pop("variants", {}).items()}
        return construct(PublishedTable, {"name": name, **raw, **parts}, "table")
    except (tomllib.TOMLDecodeError, ConfigError) as error:
        raise ConfigError(f"{name}.toml: {error}") from None


def parse_variant(name: str, raw: Mapping[str, Any]) -> TableVariant:
    """Parse one variant of a table's file."""
    where = f"variants.{name}"
    changes = [construct(CellOverride, c, where) for c in raw.get("changes", [])]
    return construct(TableVariant, {**raw, "changes": changes}, where)


@cache
def list_table_names() -> tuple[str, ...]:
    """List the names of all published tables, sorted."""
    names = (p.name for p in TABLES.iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml")))


def load_table(name: str) -> PublishedTable:
    """Load the published table or figure with this name."""
    check_choice(name, list_table_names(), "reproduce")
    return parse_table(name, (TABLES / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def index_cells(name: str, variant: str = "") -> dict[tuple[str, str], Cell]:
    """Index the cells of a published table by row and column, with the settings of a variant."""
    table = load_table(name).choose_variants([variant] if variant else [])
    return {(cell.row, cell.column): cell for cell in table.cells}


def load_tables() -> list[PublishedTable]:
    """Load all published tables, sorted by name."""
    return [load_table(name) for name in list_table_names()]
