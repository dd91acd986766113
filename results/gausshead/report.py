"""Write docs/explanation/gausshead-results.md and its figure: the measurements, and whether the claim of the protocol holds.

Usage: python results/gausshead/report.py [FOLDER …]

FOLDER is a folder of finished runs of ``heterophony reproduce gausshead``: they are stored first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.figure import Figure
from scipy.stats import ttest_rel

sys.path.insert(0, str(Path(__file__).parents[1]))

from final_runs import Cell, FinalRuns

from heterophony.papers.leaderboard import Entry
from heterophony.report.figures.style import STYLE, get_series_style
from heterophony.results.statistics import (
    apply_holm_correction,
    compare_pairs,
    compute_confidence_interval,
)

HERE = Path(__file__).parent
FINAL = FinalRuns(HERE, "gausshead")
DOCS = HERE.parents[1] / "docs"
PAGE = DOCS / "explanation" / "gausshead-results.md"
FIGURE = DOCS / "images" / "gausshead.svg"
SECONDS = HERE / "seconds.json"
METHOD, BASE, RIVALS = "GaussHead", "FixHead", ("FedRoD", "FixHead", "pFedFDA")
DECIDING = tuple(
    f"{data}, rare, alpha {alpha}" for data in ("Fashion-MNIST", "CIFAR-10") for alpha in (0.1, 0.5)
)
NEW_CLIENTS = ", new clients"  # the end of the column in which a tenth of the clients joins later
STAR = " \\*"
MEASURES = {"G": "G.last10", "P": "P.last10"}
HEAD = """\
# GaussHead: results

Written by [`report.py`](../../results/gausshead/report.py) from the stored runs. [The protocol](gausshead.md) was written before them. Five seeds; 40 rounds, which is short: see the curves.
A dash in a table: not run, or no such number. On CIFAR-100, GaussHead and FixHead ran on another kind of processor than the other methods, with the same data and seeds; only that kind gives their hashes.

![G and P of GaussHead, FixHead, FedRoD, pFedFDA and FedAvg over the rounds](../images/gausshead.svg)
"""
NUMBERS = """\
## All methods
Test examples, mean of the last ten evaluations ± half of the 95 % interval over the seeds, in %. *Worst tenth*: P of the worst tenth of the clients after the last round. *Below Local*: the share of clients whose own model is less accurate
than that of Local with the same seed, after the last round. *MB*: all traffic, both ways. Methods that tune before a measurement (FedAvg-FT, FedBABU) are measured less often, so that their mean covers earlier rounds. FedPer and Local have no generic model: FedPer's G is that of its averaged net, and Local has no G.
"""
DIFFERENCES = """\
## Differences
GaussHead minus the other method, in points, paired by seed: mean ± half of the 95 % interval. An asterisk: p of Student's paired test is below 0.05 after Holm's correction for all {tests} tests of G and P on this page.
"""
FIXHEAD = """\
## FixHead stays, as the training of GaussHead
GaussHead uses FixHead's training: among the variants of the choice, those with it were ahead of those with FedRoD's. As a method of its own, FixHead has no lead on these federations:
{told}. FixHead minus the other method:

{table}"""
JOINED = """\
## New clients
Fashion-MNIST, rare, alpha 0.1, with a tenth of the clients left out of the training. They join after the last round. The table has P on their test examples with the model as received, and after one round of their own training
(none for methods that only tune). Few clients, so the intervals are wide.
"""
TAKEN = """\
## Seconds
Processor time of ten rounds and one evaluation on the first federation, one core, the fastest of three: {told}.
"""


@dataclass(frozen=True)
class Difference:
    """One method minus another, in points."""

    mean: float
    low: float
    high: float
    certain: bool

    def __str__(self) -> str:
        text = f"{self.mean:+.1f} ± {(self.high - self.low) / 2:.1f}{STAR if self.certain else ''}"
        return text.replace("-", "−")


def list_columns(final: Mapping[Cell, Entry]) -> list[str]:
    return list(dict.fromkeys(cell.column for cell in final))


def list_rows(final: Mapping[Cell, Entry]) -> list[str]:
    return list(dict.fromkeys(cell.row for cell in final))


def compute_differences(
    final: Mapping[Cell, Entry], method: str = METHOD
) -> dict[tuple[str, str, str], Difference]:
    """Compare a method with every other on every federation; the key is row, column, G or P."""
    pairs = dict(find_pairs(final, method))
    corrected = apply_holm_correction([float(ttest_rel(*ab).pvalue) for ab in pairs.values()])
    found = {}
    for (key, (mine, other)), p in zip(pairs.items(), corrected, strict=True):
        one = compare_pairs(mine, other)
        assert one.interval is not None
        low, high = 100 * one.interval.low, 100 * one.interval.high
        found[key] = Difference(100 * one.mean, low, high, p < 0.05)
    return found


def find_pairs(
    final: Mapping[Cell, Entry], method: str
) -> Iterator[tuple[tuple[str, str, str], tuple[list[float], list[float]]]]:
    for cell, entry in final.items():
        mine = final.get(Cell(method, cell.column))
        for letter, measure in MEASURES.items() if mine and cell.row != method else ():
            assert mine is not None
            pair = list(mine.list_values(measure)), list(entry.list_values(measure))
            if len(pair[0]) == len(pair[1]) and pair[0] != pair[1]:
                yield (cell.row, cell.column, letter), pair


def write_claim(found: Mapping[tuple[str, str, str], Difference]) -> str:
    """Decide the claim exactly as the protocol says."""
    lines, held = [], True
    for rival in RIVALS:
        of = [found[rival, column, "P"] for column in DECIDING]
        held &= all(d.low > 0 for d in of)
        above = sum(d.low > 0 for d in of)
        told = "; ".join(f"{c} {d}" for c, d in zip(DECIDING, of, strict=True))
        lines.append(f"- P against {rival}: above on {above} of {len(of)} federations ({told}).")
    verdict = (
        "**It holds**: GaussHead helps where clients take part rarely, against FedRoD, FixHead and pFedFDA, on all four federations that the protocol names."
        if held
        else "**It does not hold** as the protocol states it: against at least one method, on at least one of the four federations, the interval of P is not above 0."
    )
    return "\n".join(["## The claim", verdict, "", *lines, ""])


def write_summary(found: Mapping[tuple[str, str, str], Difference], columns: Sequence[str]) -> str:
    """Count on how many federations a method is above and below each other one."""
    titles = ["against", "P above", "P below", "G above", "G below"]
    rows = []
    for row in dict.fromkeys(key[0] for key in found):
        cells = [row]
        for letter in ("P", "G"):
            of = [found[row, c, letter] for c in columns if (row, c, letter) in found]
            cells += [str(sum(d.low > 0 for d in of)), str(sum(d.high < 0 for d in of))]
        rows.append(cells)
    text = f"On how many of the {len(columns)} federations the interval is above or below 0:\n"
    return f"{text}\n{format_table(titles, rows)}"


def write_differences(final: Mapping[Cell, Entry]) -> str:
    found, columns = compute_differences(final), list_columns(final)
    parts = [
        write_claim(found),
        DIFFERENCES.format(tests=len(found)),
        write_summary(found, columns),
    ]
    for letter in ("P", "G"):
        rows = [
            [row, *(str(found.get((row, column, letter), "–")) for column in columns)]
            for row in list_rows(final)
            if row != METHOD
        ]
        parts.append(f"### {letter}\n\n{format_table(['', *columns], rows)}")
    return "\n".join(parts)


def write_base(final: Mapping[Cell, Entry]) -> str:
    """Compare FixHead, whose training GaussHead uses, with all other methods."""
    found, columns = compute_differences(final, BASE), list_columns(final)

    def count(row: str, letter: str) -> str:
        of = [found[row, c, letter] for c in columns if (row, c, letter) in found]
        return f"above on {sum(d.low > 0 for d in of)}, below on {sum(d.high < 0 for d in of)} of {len(of)}"

    told = "; ".join(
        f"against {row} its P is {count(row, 'P')}, its G {count(row, 'G')}"
        for row in ("FedRoD", "FedETF", METHOD)
    )
    return FIXHEAD.format(told=told, table=write_summary(found, columns))


def write_new_clients(final: Mapping[Cell, Entry]) -> str:
    """Write P of clients that joined after training, before and after they trained."""
    curves, rows = json.loads(FINAL.curves.read_text()), []
    for cell in final:
        if joined := curves[cell.name].get("new_clients"):
            rows.append([cell.row, *(show([s[of] for s in joined]) for of in ("before", "P"))])
    if not rows:
        return ""
    return f"{JOINED}\n{format_table(['', 'as received', 'after a round'], rows)}"


def write_seconds() -> str:
    """Write the processor time of ten rounds, if it was measured."""
    if not SECONDS.exists():
        return ""
    found = json.loads(SECONDS.read_text())
    return TAKEN.format(told=", ".join(f"{row} {taken:.1f}" for row, taken in found.items()))


def write_numbers(final: Mapping[Cell, Entry]) -> str:
    curves, parts = json.loads(FINAL.curves.read_text()), [NUMBERS]
    for column in list_columns(final):
        cells = {c: e for c, e in final.items() if c.column == column}
        rows = [[c.row, *write_row(e, curves[c.name].get("below_local"))] for c, e in cells.items()]
        titles = ["", "G", "P", "worst tenth", "below Local", "MB"]
        parts.append(f"### {column}\n\n{format_table(titles, rows)}")
    return "\n".join(parts)


def show(values: Sequence[float]) -> str:
    """Return a mean in % and half of its interval over the seeds; a dash without values."""
    found = compute_confidence_interval([100 * v for v in values]) if values else None
    return f"{100 * fmean(values):.1f} ± {(found.high - found.low) / 2:.1f}" if found else "–"


def write_row(entry: Entry, below: Sequence[float] | None) -> list[str]:
    travelled = fmean(entry.list_values("MB_up")) + fmean(entry.list_values("MB_down"))
    share = "–" if below is None else f"{100 * fmean(below):.0f}"
    measured = [show(entry.list_values(m)) for m in (*MEASURES.values(), "worst10")]
    return [*measured, share, f"{travelled:.0f}"]


def format_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    marks = ["---"] + ["--:"] * (len(titles) - 1)
    return "\n".join(f"| {' | '.join(line)} |" for line in [titles, marks, *rows]) + "\n"


def draw_curves(final: Mapping[Cell, Entry]) -> None:
    """Draw G and P over the rounds on the federations of the claim."""
    curves = json.loads(FINAL.curves.read_text())
    matplotlib.rcParams.update({**STYLE, "font.size": 10, "axes.titlesize": 10})
    figure = Figure(figsize=(11, 5), layout="constrained")
    grid = figure.subplots(2, len(DECIDING), squeeze=False)
    drawn = (METHOD, "FixHead", "FedRoD", "pFedFDA", "FedAvg")
    for line, measure in zip(grid, ("P", "G"), strict=True):
        for axes, column in zip(line, DECIDING, strict=True):
            for i, row in enumerate(drawn):
                points = curves[Cell(row, column).name][measure]
                axes.plot(*points, label=row, linewidth=1.5, **get_series_style(i))
            axes.grid(color="#e5e5e5", linewidth=0.6)
            if measure == "P":
                axes.set_title(column.replace(", rare, alpha", ", rare\nα ="))
            else:
                axes.set_xlabel("round")
        line[0].set_ylabel(f"{measure}, %")
    grid[0][0].legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(FIGURE, metadata={"Date": None})


def write_page(final: Mapping[Cell, Entry]) -> str:
    joined = {c: e for c, e in final.items() if c.column.endswith(NEW_CLIENTS)}
    federations = {c: e for c, e in final.items() if c not in joined}
    parts = [
        HEAD,
        write_differences(federations),
        write_base(federations),
        write_new_clients(joined),
        write_seconds(),
        write_numbers(federations),
    ]
    return "\n".join(filter(None, parts))


def main() -> None:
    if sys.argv[1:]:
        FINAL.add([Path(word) for word in sys.argv[1:]])
    final = FINAL.read()
    draw_curves(final)
    PAGE.write_text(write_page(final), encoding="utf-8")


if __name__ == "__main__":
    main()
