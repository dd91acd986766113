"""Write docs/explanation/fine-tuning-results.md from the runs in runs.zip.

Usage: python results/fine-tuning/report.py [FOLDER]

FOLDER holds the runs of ``heterophony reproduce fine-tuning``: those that have finished are stored first.
"""

from __future__ import annotations

import json
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
SECONDS = HERE / "seconds.json"  # of ten rounds, by method
TITLES = ("", "G", "P", f"P − {ALONE}'s", "worst tenth", "MB", "seconds")
HEAD = """\
# Fine-tuning: results

Written by [`report.py`](../../results/fine-tuning/report.py) from the stored runs, each with its settings, its events and the hash of its models. {pretraining} The settings are in
[`fine-tuning.toml`](../../src/heterophony/papers/tables/fine-tuning.toml). To run them:

    heterophony reproduce fine-tuning --scale full --workers 1 --out runs/fine-tuning -c engine.name=serial
    python results/fine-tuning/report.py runs/fine-tuning

After the last round on test examples, in %: mean over {seeds} seeds ± half of the 95 % interval; differences are paired by seed. *Worst tenth* is P of the worst tenth of the clients. *MB* is all traffic of a run, both ways; *seconds* is the
processor time of ten rounds on one core at alpha 0.5, the fastest of three ([how](../../results/measure_seconds.py)). G\\*: personal parameters are averaged only to measure it. [How to fine-tune](../how-to/adapters.md) describes the methods.
"""
FOUND = """\
## What it shows

- **P: Local is the highest in both federations**, beyond the (uncorrected) interval of every difference. Each client trains the whole pretrained net on its own images; at this skew and size that is hard to beat. FedPer and FedSA-LoRA, which share a part, come closest.
- **G: full fine-tuning is the highest** (2 to 3.5 points above LoRA, FFA-LoRA and the linear probe at alpha 0.1, 4 to 6 at alpha 0.5). LoRA sends a fifth of its bytes and FFA-LoRA a seventeenth.
- **Of the methods with personal adapters**, FedSA-LoRA is 44 and 19 points above LoRA in P. FedDPA is not above LoRA. A possible reason, not tested: its head is shared, so a personal adapter is trained with the head before the average and used with the one after it.
- **Adapters do not save time here**: LoRA takes longer than full fine-tuning. Only plain layers [train without autograd](../how-to/scaling.md#small-clients).
- The checkpoint is weak (24 % on the 100 classes), the net small, the rounds few, and nothing was tuned but one rate of two. Larger pretrained nets may order the methods otherwise.
"""


def store(folder: Path) -> None:
    """Copy the table's finished runs into the archive; commits and memories are left out."""
    for run in list_runs(load_table("fine-tuning"), load_runs([folder], print)):
        (HERE / run.folder.name).mkdir(exist_ok=True)
        for name in KEPT:  # the checkpoint was beside the runs, wherever they were
            text = (run.folder / name).read_text(encoding="utf-8").replace(f"{folder}/", "")
            (HERE / run.folder.name / name).write_text(text, encoding="utf-8")
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
    parts = [HEAD.format(pretraining=how, seeds=seeds), FOUND]
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
    seconds = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
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
            f"{seconds[name]:.1f}" if name in seconds else "–",
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
