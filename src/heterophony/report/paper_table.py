"""A published table with our numbers beside the printed ones: as text, and as files."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from ..analysis.exports import (
    escaped,
    latex,
    markdown,
    piped,
)
from ..core.files import write, write_json
from ..papers.quick import ABOUT
from ..papers.scale import Scale

if TYPE_CHECKING:
    from ..papers.reproduce import Outcome
    from ..papers.verdicts import Line

TITLES = ["row", "column", "data here", "", "printed", "ours", "last 10", "difference", "verdict"]
COLUMNS = (
    *("row", "column", "data", "measure", "printed", "printed_std", "ours", "std", "last10"),
    *("difference", "seeds", "verdict", "why"),
)


def cells(line: Line) -> list[str]:
    """A line as people read it."""
    printed = line.printed
    digits = 4 if line.measure == "score" else 2
    said = "–" if printed is None else with_std([printed.value], digits, printed.std)
    gap = line.difference
    verdict = f"{line.verdict}: {line.why}" if line.verdict == "not comparable" else line.verdict
    return [
        line.row,
        line.column,
        line.data,
        line.measure,
        said,
        with_std(line.values, digits),
        with_std(line.last10, digits),
        "–" if gap is None else f"{gap:+.{digits}f}".replace("-", "−"),
        verdict,
    ]


def with_std(values: list[float] | tuple[float, ...], digits: int, std: float | None = None) -> str:
    """Mean, and the deviation over several."""
    if not values:
        return "–"
    std = stdev(values) if len(values) > 1 else std
    text = f"{fmean(values):.{digits}f}"
    return text if std is None else f"{text} ± {std:.{digits}f}"


def save(outcome: Outcome, folder: Path) -> None:
    """``table.json``, ``table.csv`` (numbers in full), ``table.md`` and ``table.tex``."""
    write_json(folder / "table.json", outcome.json())
    shown = [cells(line) for line in outcome.lines]
    write(folder / "table.csv", as_csv(outcome).encode())
    about = [piped(words) for words in described(outcome)]
    table = markdown(TITLES, [map(piped, line) for line in shown], text=4)
    write(folder / "table.md", "\n\n".join([f"# {about[0]}", *about[1:], table]).encode())
    comments = "".join(f"% {words}\n" for words in described(outcome))
    table = latex(TITLES, [map(escaped, line) for line in shown], text=4)
    write(folder / "table.tex", (comments + table).encode())


def described(outcome: Outcome) -> list[str]:
    """What the table is, for whoever finds it alone: title, how numbers are made, what holds."""
    table, how = outcome.table, outcome.table.found.measured
    rounds = {"best": "best of all", "last": "last", "last10": "mean of the last ten"}[how.rounds]
    clients = {"pooled": "all test examples count alike", "mean": "all clients count alike"}
    seeds = ", ".join(map(str, table.seeds))
    words = {True: "holds", False: "does not hold", None: "cannot be told"}
    return [
        f"{table.found.paper}, {table.found.where}: {table.found.what}",
        f"Ours: {rounds} evaluations, {clients[how.clients]}; seeds {seeds}; {table.scale} scale.",
        *([ABOUT] if table.scale is Scale.quick else []),
        *(f"{words[c.holds]}: {c.text} ({c.why})" for c in outcome.claims),
    ]


def as_csv(outcome: Outcome) -> str:
    out = StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in outcome.lines:
        printed = line.printed
        writer.writerow(
            {
                "row": line.row,
                "column": line.column,
                "data": line.data,
                "measure": line.measure,
                "printed": printed and printed.value,
                "printed_std": printed and printed.std,
                "ours": line.mean,
                "std": line.std,
                "last10": fmean(line.last10) if line.last10 else None,
                "difference": line.difference,
                "seeds": " ".join(map(str, line.seeds)),
                "verdict": line.verdict,
                "why": line.why,
            }
        )
    return out.getvalue()
