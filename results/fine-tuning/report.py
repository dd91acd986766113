"""Write docs/explanation/fine-tuning-results.md from the runs in runs.zip.

Usage: python results/fine-tuning/report.py [FOLDER]

FOLDER holds the runs of ``heterophony reproduce fine-tuning``: those that have finished are stored first.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from board_parts.packing import pack

from heterophony.papers.reproduce import CellRun
from heterophony.papers.table import PublishedTable, load_table
from heterophony.papers.verdicts import AVERAGED_TO_MEASURE
from heterophony.results.comparison import extract_measures
from heterophony.results.runs import Run, load_runs
from heterophony.results.statistics import compute_confidence_interval

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "explanation" / "fine-tuning-results.md"
KEPT = ("config.toml", "events.jsonl", "result.json")  # of a run folder
ALONE = "Local"
TITLES = ("", "G", "P", f"P − {ALONE}'s", "worst tenth", "MB", "seconds")
HEAD = """\
# Fine-tuning: results

Written by [`report.py`](../../results/fine-tuning/report.py) from the stored runs, each with its settings, its events and the hash of its models. {pretraining} The settings are in
[`fine-tuning.toml`](../../src/heterophony/papers/tables/fine-tuning.toml). To run them:

    heterophony reproduce fine-tuning --scale full --workers 1 --out runs/fine-tuning -c engine.name=serial
    python results/fine-tuning/report.py runs/fine-tuning

After the last round on test examples, in %: mean over {seeds} seeds ± half of the 95 % interval; differences are paired by seed. *Worst tenth* is P of the worst tenth of the clients. *MB* is all traffic of a run, both ways; *seconds* is the
time of a run on one core. G\\*: personal parameters are averaged only to measure it. [How to fine-tune](../how-to/adapters.md) describes the methods.
"""


def store(folder: Path) -> None:
    """Copy the table's finished runs into the archive; commits and memories are left out."""
    for run in list_runs(load_table("fine-tuning"), load_runs([folder], print)):
        (HERE / run.folder.name).mkdir(exist_ok=True)
        for name in KEPT:
            shutil.copyfile(run.folder / name, HERE / run.folder.name / name)
    pack(HERE)


def list_runs(table: PublishedTable, found: Sequence[Run]) -> list[Run]:
    """Return the finished runs of the table."""
    finished = {run.folder.name: run for run in found if run.summary}
    names = (CellRun(c, s).folder_name for c in table.cells for s in table.measured.seeds)
    return [finished[name] for name in names if name in finished]


def write_page(table: PublishedTable, found: Sequence[Run]) -> str:
    """Write the page; a method of which no run is stored has no line."""
    runs = {run.folder.name: run for run in list_runs(table, found)}
    seeds = len(table.measured.seeds)
    source = table.pretraining or {}
    how = f"All begin with one `{source['model']['name']}`, trained for {source['rounds']} rounds on `{source['data']['name']}`."
    parts = [HEAD.format(pretraining=how, seeds=seeds)]
    for column in dict.fromkeys(cell.column for cell in table.cells):
        lines = list(write_lines(table, column, runs))
        if lines:
            marks = ["---"] + ["--:"] * (len(TITLES) - 1)
            body = "\n".join(f"| {' | '.join(line)} |" for line in [TITLES, marks, *lines])
            parts.append(f"## {column}\n\n{body}\n")
    return "\n".join(parts)


def write_lines(
    table: PublishedTable, column: str, runs: dict[str, Run]
) -> Iterator[Sequence[str]]:
    """Write the line of every method in a column."""
    measured, algorithms = {}, {}
    for cell in (c for c in table.cells if c.column == column):
        names = {seed: CellRun(cell, seed).folder_name for seed in table.measured.seeds}
        found = {s: extract_measures(runs[n].summary) for s, n in names.items() if n in runs}
        if found:
            measured[cell.row] = found
            algorithms[cell.row] = cell.config["algorithm"]["name"]
    alone = measured.get(ALONE, {})
    for name, of in measured.items():
        row = name + (
            ""
            if len(of) == len(table.measured.seeds)
            else f" ({len(of)} of {len(table.measured.seeds)} seeds)"
        )
        both = [100 * (of[s]["P.last"] - alone[s]["P.last"]) for s in of if s in alone]
        averaged = algorithms[name] in AVERAGED_TO_MEASURE
        mark = " \\*" * (averaged and "G.last" in next(iter(of.values())))
        yield (
            row,
            show([100 * m["G.last"] for m in of.values() if "G.last" in m]) + mark,
            show([100 * m["P.last"] for m in of.values()]),
            show(both, "+") if name != ALONE else "",
            show([100 * m["worst10"] for m in of.values() if "worst10" in m]),
            f"{fmean(m['MB_up'] + m['MB_down'] for m in of.values()):.1f}",
            f"{fmean(m['seconds'] for m in of.values()):.0f}",
        )


def show(values: Sequence[float], sign: str = "") -> str:
    """Return the mean and half of the interval; a dash without values."""
    if not values:
        return "–"
    text, interval = f"{fmean(values):{sign}.1f}", compute_confidence_interval(values)
    if interval is not None:
        text += f" ± {(interval.high - interval.low) / 2:.1f}"
    return text.replace("-", "−")


def main() -> None:
    for word in sys.argv[1:]:
        store(Path(word))
    found = load_runs([HERE], print)
    PAGE.write_text(write_page(load_table("fine-tuning"), found), encoding="utf-8")
    print(f"wrote {PAGE} from {len(list_runs(load_table('fine-tuning'), found))} runs")


if __name__ == "__main__":
    main()
