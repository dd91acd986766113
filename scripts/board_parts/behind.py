"""Which methods do worse than their papers claim, and by how much."""

from __future__ import annotations

from heterophony.algorithms import get_display_name

from .numbers import Board, G, P, Table
from .plan import BASELINES

HEAD = """\
## Where a method does worse than its paper says

Papers that train one model for all clients claim that its G is at least FedAvg's. Papers on personal models claim that P is above the P of FedAvg, and of clients that train alone (*Local*). Each line names a method that is significantly below one of these (corrected as in the tables), with the paired
difference in points. G is judged only where all clients use one model. The search above is all that was tried; causes were not isolated.

"""


def write_behind(board: Board) -> str:
    """List every method that is significantly behind what its paper claims to beat."""
    names = sorted(
        {name for table in board.tables.values() for name in table.entries} - {*BASELINES, "fedavg"}
    )
    lines = []
    for name in names:
        found = [
            f"{measure[0]} below {get_display_name(other)}'s by {', '.join(deficits)}"
            for other, measure in (("fedavg", P), ("local", P), ("fedavg", G))
            if (deficits := list_deficits(board, name, other, measure))
        ]
        if found:
            lines.append(f"- **{get_display_name(name)}**: {'; '.join(found)}.")
    return HEAD + "\n".join(lines) + "\n" if lines else ""


def list_deficits(board: Board, name: str, other: str, measure: str) -> list[str]:
    """Describe by how much a method is below another one, in each setting where it is."""
    found = [(table, find_deficit(table, name, other, measure)) for table in board.tables.values()]
    return [f"{deficit:.1f} ({table.setting.title})" for table, deficit in found if deficit]


def find_deficit(table: Table, name: str, other: str, measure: str) -> float | None:
    """Return by how many points a method is significantly below another one; None if it is not."""
    if name not in table.entries or table.is_one_model_for_all(name) != (measure == G):
        return None
    compared = table.compare(name, other, measure)
    if compared is None or compared.interval is None or compared.interval.high >= 0:
        return None
    return -100 * compared.mean
