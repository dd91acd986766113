"""Read a privacy audit as evidence for the claims of the published table about attacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..core.errors import FolderError
from ..core.files import read_json
from ..papers.claim_list import ATTACK_MEASURES
from ..papers.evidence import (
    CellAtScale,
    StoredRun,
    digest_settings,
    list_cells_at_scales,
    match_runs,
    shrink_cell,
)
from ..papers.reproduce import find_differences
from ..papers.table import TableScale, load_table, load_tables
from ..results.runs import Run, load_runs
from .run_audit import LEAKAGE_TABLE, get_preset
from .summary import PRIVATE_KNOWLEDGE, AuditPreset

AUDIT_FILE = "audit.json"
RUNS_FOLDER = Path("runs")  # where `reproduce` and `audit` put runs by default
DIGITS = 3  # of stored numbers, in dB


def read_own_runs(folder: Path | None, note: Callable[[str], None]) -> list[StoredRun]:
    """Read the user's runs and audits of published tables: in this folder, or below ``runs/``.

    ``note`` receives which folders were left out, and why.
    """
    judged = (TableScale.medium, TableScale.full)
    folders = [folder] if folder else [p for s in judged for p in RUNS_FOLDER.glob(f"*-{s}")]
    audits: list[StoredRun] = []
    for candidate in [folder] if folder else sorted(RUNS_FOLDER.glob("*")):
        if is_audit(candidate):
            try:
                audits += describe_audit(candidate)
            except FolderError as error:
                note(f"left out: {error}")
    if not folders:
        return audits
    # all tables: a claim may rest on another table's FedAvg, or on centralised training
    cells = list_cells_at_scales(load_tables())
    return [*match_runs(load_runs(folders, note), cells), *audits]


def is_audit(folder: Path) -> bool:
    """Return True if a folder holds a finished audit."""
    return (folder / AUDIT_FILE).is_file()


def describe_audit(folder: Path) -> Iterator[StoredRun]:
    """Yield what a finished audit at medium scale shows, for each row of the table and attacker."""
    content = read_json(folder / AUDIT_FILE)
    check_preset(folder, content["asked"])
    runs = {run.config["algorithm"]["name"]: run for run in load_runs([folder])}
    table = load_table(LEAKAGE_TABLE)
    for at in (at for cell in table.cells for at in shrink_cell(table, cell)):
        name = at.cell.config["algorithm"]["name"]
        if name not in runs:
            raise FolderError(f"{folder}: the run of {name} is missing")
        check_settings(at, runs[name])
        for knowledge in PRIVATE_KNOWLEDGE:
            if row := find_row(folder, content, name, knowledge):
                yield describe_row(at, runs[name], row)


def find_row(
    folder: Path, content: dict[str, Any], name: str, knowledge: str
) -> dict[str, Any] | None:
    """Find the row of an algorithm and an attacker; None if that attacker was not tried.

    Raise FolderError if a level of the loss is missing.
    """
    levels = {f"{v:g}" for v in content["asked"]["victims"]["losses"]}
    rows: list[dict[str, Any]] = content["rows"]
    for row in rows:
        if (row["algorithm"], row["private"]) == (name, knowledge):
            if set(row.get("losses", ())) == levels:
                return row
            raise FolderError(
                f"{folder}: {name} was not attacked at all losses that were asked for"
            )
    return None


def check_preset(folder: Path, asked: dict[str, Any]) -> None:
    """Refuse an audit with other attacks than those of the preset."""
    preset = get_preset(AuditPreset.medium)
    wanted = {
        "algorithms": list(preset.algorithms),
        "victims": preset.victims.describe(),
        "how": asdict(preset.attack_settings),
        "data": preset.settings["data"]["name"],
        "attackers": PRIVATE_KNOWLEDGE,
    }
    for key, value in wanted.items():
        found = asked.get(key)
        if to_lists(value) != to_lists(found):
            raise FolderError(f"{folder}: {key} is not as in --preset medium: {found}")


def to_lists(value: Any) -> Any:
    """Return a value as JSON has it: without tuples."""
    if isinstance(value, dict):
        return {k: to_lists(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value


def check_settings(at: CellAtScale, run: Run) -> None:
    """Refuse a run with other settings than the cell, apart from its rounds."""
    wanted = {k: v for k, v in at.cell.config.items() if k != "rounds"}
    for key, value, found in find_differences(wanted, run.config):
        raise FolderError(f"{run.folder}: {key} is {found}; --preset medium has {value}")


def digest_audit(config: dict[str, Any]) -> str:
    """Return a digest of a cell's settings and of the preset's attacks."""
    preset = get_preset(AuditPreset.medium)
    attacks = {"victims": preset.victims.describe(), "how": asdict(preset.attack_settings)}
    return digest_settings({**config, **attacks})


def describe_row(at: CellAtScale, run: Run, row: dict[str, Any]) -> StoredRun:
    """Return the numbers of one algorithm under one attacker, as a stored run."""
    if run.summary is None:
        raise FolderError(f"{run.folder} is not finished")
    return replace(
        at.describe(run),
        variant=f"personal-parameters-{row['private']}",
        evaluated=[],
        curves={},
        settings_sha256=digest_audit(at.cell.config),
        numbers={measure: round(row[measure], DIGITS) for measure in ATTACK_MEASURES},
    )
