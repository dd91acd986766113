"""Write docs/explanation/fixhead-results.md and its figure: the choice, the measurements, and the tests.

Usage: python results/own-method/report.py [FOLDER …]

FOLDER is a folder of finished runs of ``heterophony reproduce own-method``: they are stored first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.axes import Axes
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
FINAL = FinalRuns(HERE, "own-method")
ROOT = HERE.parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "explanation" / "fixhead-results.md"
FIGURE = DOCS / "images" / "own-method.svg"
SECONDS = HERE / "seconds.json"
METHOD, OTHERS = "FixHead", ("FedReG", "FedReG with two layers", "FedRoD")
MEASURES = {"G": "G.last10", "P": "P.last10"}
PANELS = 3  # side by side in the figure
DRAWN = ("FedAvg", "FedReG", "FedRoD", METHOD)
HEAD = """\
# FixHead: results

Written from the stored runs by a script in [results/own-method](../../results/own-method/README.md). [The protocol](fixhead.md) describes the comparison, and which of its parts were written before the final runs; the history cannot prove
the order.
"""
HALF = f"{METHOD}, one epoch"
DIFFERENCES = """\
*G* and *P* are “{method}” minus the other method, in points, paired by seed: the mean ± half of its 95 % interval. *p* is that of Student's paired test, corrected by Holm's rule for all {tests} tests of
this table. *Better*: both intervals are above 0. *Worse*: both are below 0.
"""
POOLED = """\
All federations together: the mean difference ± half of its 95 % interval over the five seeds, each averaged over the federations; and p of the sign-flip test of all pairs, as the
protocol says. Federations share images and seeds, so their pairs are not independent and this p is too small: the interval is the safer number.
"""


SHARES = """\
## FedRoD's share of the lead

{method} is {parent} with another shared head. So its lead over {other} is {parent}'s lead plus what the head adds, which the table above shows against {parent}. The mean ± half of its 95 % interval, in
points, paired by seed.
"""


# The choice -------------------------------------------------------------------------------------


def write_choice() -> str:
    """Write the accuracies of each candidate on validation examples."""
    found = json.loads((HERE / "choice.json").read_text())
    parts = [key.rpartition(", seed ")[0].partition(", ") for key in found]
    sets, names = (list(dict.fromkeys(part[i] for part in parts)) for i in (0, 2))

    def list_runs(name: str, data: str) -> list[dict[str, float]]:
        return [v for k, v in found.items() if k.startswith(f"{data}, {name}, seed")]

    def average(name: str, data: str, measure: str) -> float:
        return fmean(run[measure] for run in list_runs(name, data))

    sums = {n: fmean(average(n, d, "G") + average(n, d, "P") for d in sets) for n in names}
    rows = [
        [
            name,
            *(f"{average(name, data, m):.1f}" for data in sets for m in "GP"),
            f"{sums[name]:.1f}",
            str(len(list_runs(name, sets[0]))),
        ]
        for name in sorted(names, key=lambda n: (-len(list_runs(n, sets[0])), -sums[n]))
    ]
    titles = ["", *(f"{data}, {m}" for data in sets for m in "GP"), "G + P", "seeds"]
    text = "## The choice\n\nValidation examples, mean over two or five seeds from 100 on, in %. FedReG and FedRoD are for comparison. Rows with two seeds cannot be compared with rows with five."
    return f"{text}\n\n{format_table(titles, rows)}"


def write_rates() -> str:
    """Write the learning rates that were tried, and mark the chosen ones."""
    found = json.loads((HERE / "rates.json").read_text())
    by_method: dict[tuple[str, str], dict[str, Mapping[str, float]]] = {}
    for key, numbers in found.items():
        data, name, rate = key.split(", ")
        by_method.setdefault((name, data), {})[rate.removeprefix("lr ")] = numbers
    rates = sorted({rate for tried in by_method.values() for rate in tried})
    rows = []
    for (name, data), tried in sorted(by_method.items()):
        best = choose_rate(name, tried)
        cells = [format_trial(tried[rate]) for rate in rates]
        cells = [f"**{c}**" if r == best else c for r, c in zip(rates, cells, strict=True)]
        rows.append([f"{name}, {data}", *cells])
    text = "## Learning rates\n\nG / P on validation examples of seed 100, in %. The chosen rate is bold."
    return f"{text}\n\n{format_table(['', *rates], rows)}"


def choose_rate(name: str, tried: Mapping[str, Mapping[str, float]]) -> str:
    """Choose the rate with the highest G + P; FedPer has no common head, so its P counts."""
    measures = "P" if name == "FedPer" else "GP"
    ended = [rate for rate in tried if "diverged" not in tried[rate]]
    return max(ended, key=lambda rate: sum(tried[rate][m] for m in measures))


def format_trial(numbers: Mapping[str, float]) -> str:
    return "diverged" if "diverged" in numbers else f"{numbers['G']:.1f} / {numbers['P']:.1f}"


# The final runs ---------------------------------------------------------------------------------


def write_numbers(final: Mapping[Cell, Entry]) -> str:
    """Write the accuracies of every method on every federation."""
    parts = [
        "## The final runs\n\nTest examples, seeds 0 to 4, mean of the last ten evaluations ± half of the 95 % interval, in %. *Worst tenth* is P of the worst tenth of clients after the last"
        " round. *MB* is all traffic, both ways. *Passes* is the number of times that a selected client goes through its examples in a round; the fine-tuning of FedAvg-FT and FedBABU before a measurement does not count. Their P is measured in every tenth round only, with 100 clients"
        " in every twentieth, so its mean also covers early rounds, and is lower than its final value: P after the last round is below each table.\n"
    ]
    curves = json.loads(FINAL.curves.read_text())
    for column in list_columns(final):
        rows = [[c.row, *write_row(e)] for c, e in final.items() if c.column == column]
        titles = ["", "G", "P", "worst tenth", "MB", "passes"]
        parts.append(f"### {column}\n\n{format_table(titles, rows)}")
        cells = [c for c in final if c.column == column]
        parts.append(write_last_round({c.row: curves[c.name] for c in cells}))
    return "\n".join(parts)


def write_last_round(curves: Mapping[str, Mapping[str, list[list[float]]]]) -> str:
    """Write P after the last round of methods that measure it rarely, beside that of the method."""
    rare = [row for row, found in curves.items() if len(found["P"][0]) < len(found["G"][0])]
    told = [f"{row} {curves[row]['P'][1][-1]:.1f}" for row in (*rare, METHOD)]
    return f"P after the last round, mean over the seeds: {', '.join(told)}.\n"


def write_seconds() -> str:
    """Write how long ten rounds take, if it was measured."""
    if not SECONDS.exists():
        return ""
    found = json.loads(SECONDS.read_text())
    told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in found.items())
    return (
        "### Seconds\n\nTen rounds of two passes on one idle core, Fashion-MNIST, 20 clients, the fastest of three:"
        f" {told}.\n"
    )


def write_row(entry: Entry) -> list[str]:
    def show(measure: str) -> str:
        values = [100 * v for v in entry.list_values(measure)]
        found = compute_confidence_interval(values) if values else None
        return f"{fmean(values):.1f} ± {(found.high - found.low) / 2:.1f}" if found else "–"

    travelled = fmean(entry.list_values("MB_up")) + fmean(entry.list_values("MB_down"))
    accuracies = [show(m) for m in (*MEASURES.values(), "worst10")]
    passes = fmean(entry.list_values("work")) * entry.config["training"]["epochs"]
    return [*accuracies, f"{travelled:.0f}", f"{passes:.2f}"]


def write_differences(
    final: Mapping[Cell, Entry], title: str, method: str, others: Sequence[str]
) -> str:
    """Write the paired differences of a row to others, with their tests."""
    pairs = [
        (column, other)
        for column in list_columns(final)
        for other in others
        if Cell(other, column) in final and Cell(method, column) in final
    ]
    tests = []
    for column, other in pairs:
        a, b = final[Cell(method, column)], final[Cell(other, column)]
        for measure in MEASURES.values():
            tests.append((a.list_values(measure), b.list_values(measure)))
    corrected = apply_holm_correction([float(ttest_rel(a, b).pvalue) for a, b in tests])
    rows = []
    for i, (column, other) in enumerate(pairs):
        found = [compare_pairs(*tests[2 * i + k]) for k in (0, 1)]
        intervals = [c.interval for c in found if c.interval is not None]
        verdict = "better" if all(x.low > 0 for x in intervals) else "–"
        verdict = "worse" if all(x.high < 0 for x in intervals) else verdict
        cells = []
        for k, one in enumerate(found):
            assert one.interval is not None
            half = 50 * (one.interval.high - one.interval.low)
            cells += [sign(f"{100 * one.mean:+.1f} ± {half:.1f}"), format_p(corrected[2 * i + k])]
        rows.append([column, other, *cells, verdict])
    titles = ["", "against", "G", "p", "P", "p", "it is"]
    told = DIFFERENCES.format(method=method, tests=len(tests)), format_table(titles, rows, words=2)
    return "\n".join([f"## {title}\n", *told, *write_pooled(final, method, others)])


def write_pooled(final: Mapping[Cell, Entry], method: str, others: Sequence[str]) -> list[str]:
    """Test all pairs of all federations together, and the differences averaged by seed."""
    lines = []
    for other in others:
        columns = [
            c for c in list_columns(final) if {Cell(method, c), Cell(other, c)} <= final.keys()
        ]
        for letter, measure in MEASURES.items() if columns else ():
            mine, theirs = (
                [final[Cell(row, column)].list_values(measure) for column in columns]
                for row in (method, other)
            )
            found = compare_pairs([v for vs in mine for v in vs], [v for vs in theirs for v in vs])
            by_seed = compare_pairs(average_by_seed(mine), average_by_seed(theirs)).interval
            assert by_seed is not None
            mean, half = 100 * found.mean, 50 * (by_seed.high - by_seed.low)
            pairs = sum(len(values) for values in mine)
            lines.append(
                f"- {letter} against {other}: {sign(f'{mean:+.1f} ± {half:.1f}')}; p = {found.p:.2g} of {pairs} pairs"
            )
    return [POOLED, *lines, ""]


def write_shares(final: Mapping[Cell, Entry]) -> str:
    """Write how much of the method's lead over FedReG FedRoD has, on which the method is based."""
    reference, parent = OTHERS[0], OTHERS[-1]
    rows = (reference, parent, METHOD)
    columns = [c for c in list_columns(final) if {Cell(row, c) for row in rows} <= final.keys()]

    def subtract(row: str, measure: str, of: Sequence[str]) -> str:
        mine, theirs = (
            [final[Cell(r, c)].list_values(measure) for c in of] for r in (row, reference)
        )
        found = compare_pairs(average_by_seed(mine), average_by_seed(theirs))
        assert found.interval is not None
        half = 50 * (found.interval.high - found.interval.low)
        return sign(f"{100 * found.mean:+.1f} ± {half:.1f}")

    pairs = [(row, measure) for measure in MEASURES.values() for row in (METHOD, parent)]
    lines = [(c, [c]) for c in columns] + [("all, averaged by seed", columns)]
    cells = [[name, *(subtract(*pair, of) for pair in pairs)] for name, of in lines]
    titles = ["", *(f"{row} − {reference}, {measure[0]}" for row, measure in pairs)]
    return "\n".join(
        [SHARES.format(method=METHOD, parent=parent, other=reference), format_table(titles, cells)]
    )


def average_by_seed(values: Sequence[Sequence[float]]) -> list[float]:
    """Average the values of all federations, seed by seed."""
    return [fmean(of_seed) for of_seed in zip(*values, strict=True)]


def list_columns(final: Mapping[Cell, Entry]) -> list[str]:
    return list(dict.fromkeys(cell.column for cell in final))


def write_missing(final: Mapping[Cell, Entry]) -> str:
    """List the cells of the protocol that have no runs yet."""
    lines = []
    for column in FINAL.table.columns:
        lacking = [c.row for c in FINAL.list_cells() if c.column == column and c not in final]
        if lacking:
            all_rows = column not in list_columns(final)
            lines.append(f"- {column}: {'all methods' if all_rows else '; '.join(lacking)}")
    return "\n".join(["## Not run yet\n", *lines, ""]) if lines else ""


def format_p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def sign(text: str) -> str:
    return text.replace("-", "−")


def format_table(titles: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    marks = ["---"] * words + ["--:"] * (len(titles) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in [titles, marks, *rows]) + "\n"


# The figure -------------------------------------------------------------------------------------


def draw_curves(final: Mapping[Cell, Entry]) -> None:
    """Draw G and P over the rounds: a panel for each federation, three of them side by side."""
    curves, columns = json.loads(FINAL.curves.read_text()), list_columns(final)
    matplotlib.rcParams.update({**STYLE, "font.size": 10, "axes.titlesize": 10})
    bands = [columns[i : i + PANELS] for i in range(0, len(columns), PANELS)]
    figure = Figure(figsize=(3.1 * PANELS, 5 * len(bands)), layout="constrained")
    grid = figure.subplots(2 * len(bands), PANELS, squeeze=False)
    for i, line in enumerate(grid):
        measure, band = list(MEASURES)[i % 2], bands[i // 2]
        for axes in line[len(band) :]:
            axes.set_visible(False)
        for axes, column in zip(line, band, strict=False):
            draw_panel(axes, measure, {r: curves.get(Cell(r, column).name, {}) for r in DRAWN})
            if measure == "G":
                axes.set_title(column.replace(", ", "\n", 1))
            else:
                axes.set_xlabel("round")
        line[0].set_ylabel(f"{measure}, %")
    grid[0][0].legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(FIGURE, metadata={"Date": None})


def draw_panel(
    axes: Axes, measure: str, curves: Mapping[str, Mapping[str, list[list[float]]]]
) -> None:
    """Draw one accuracy of all methods on one federation."""
    for i, (row, found) in enumerate(curves.items()):
        if measure in found:
            axes.plot(*found[measure], label=row, linewidth=1.5, **get_series_style(i))
    axes.grid(color="#e5e5e5", linewidth=0.6)


def write_page(final: Mapping[Cell, Entry]) -> str:
    """Write the whole page from the stored runs."""
    ablations = [c.row for c in final if c.row.startswith(f"{METHOD}, ") and c.row != HALF]
    parts = [
        write_differences(final, "Against FedReG and FedRoD", METHOD, OTHERS),
        write_shares(final),
        write_differences(final, "With half of the work", HALF, OTHERS),
        write_numbers(final),
        write_seconds(),
        write_differences(final, "Without its parts", METHOD, list(dict.fromkeys(ablations))),
        write_missing(final),
        write_choice(),
        write_rates(),
    ]
    picture = f"![G and P of {', '.join(DRAWN)} over the rounds](../images/own-method.svg)\n"
    return "\n".join([HEAD, picture, *filter(None, parts)])


def main() -> None:
    folders = [Path(word) for word in sys.argv[1:]]
    if folders:
        FINAL.add(folders)
    final = FINAL.read()
    draw_curves(final)
    PAGE.write_text(write_page(final), encoding="utf-8")


if __name__ == "__main__":
    main()
