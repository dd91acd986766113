"""The tables of a comparison of runs, for the terminal, files and the report page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

from ..core.errors import choose
from ..core.files import write_atomically
from ..core.scores import SCORES, get_metric_info
from ..runs.summary import describe_chance_level
from .comparison import (
    ACCURACIES,
    HEADLINES,
    NEW_CLIENT_MEASURES,
    ComparisonRow,
    collect_new_clients,
    compare_runs,
    explain_bold,
    list_conclusions,
    list_new_client_values,
)
from .overview import METRICS_TITLE, NETS_TITLE, describe_lone_clients, get_metric_title
from .runs import Run, group_by_series
from .table import TABLE_FORMATS, Cell, Column, Columns, ResultTable, Rows, Value

NameColumns = Mapping[str, Callable[[ComparisonRow], str]]

ACCURACY_TITLES = {
    f"{m}.{part}": f"{m} {title}"
    for m in "GP"
    for part, title in (("best", "best"), ("last", "last"), ("last10", "last 10"))
}
PERCENTAGES = {
    **ACCURACY_TITLES,
    "worst10": "P worst 10 %",
    "std": "P std",
    "below_local": "clients below Local",
    **{f"{m}.chosen": f"{m} at best validation" for m in "GP"},
}
NUMBERS = {  # title, form
    "MB_up": ("MB up", ".1f"),
    "MB_down": ("MB down", ".1f"),
    "seconds": ("seconds", ".1f"),
    **{f"{m}.loss": (f"{m} test loss", ".4f") for m in "GP"},
    "examples": ("examples a round", ".1f"),
    "work": ("work", ".2f"),
    "simulated": ("simulated s", ".1f"),
}
ORDER = (
    *(*ACCURACY_TITLES, "worst10", "std", "MB_up", "MB_down", "seconds"),
    *("below_local", "G.chosen", "P.chosen", "G.loss", "P.loss", "examples", "work", "simulated"),
)
ALWAYS_SHOWN = ORDER[:11]  # shown only if a run has them
COLUMNS = {
    key: Column(PERCENTAGES[key], key, "percent", show="std")
    if key in PERCENTAGES
    else Column(NUMBERS[key][0], key, form=NUMBERS[key][1], show="std")
    for key in ORDER
}
NEW_CLIENT_TITLES = ("G", "P on arrival", "P at the end", "P worst 10 %")


IN_FILES: NameColumns = {"algorithm": lambda row: row.name}
ON_PAGES: NameColumns = {**IN_FILES, "seed": lambda row: format_seeds(row.seeds)}
IN_CSV: NameColumns = {
    "algorithm": lambda row: row.algorithm,
    "name": lambda row: row.name,
    "seeds": lambda row: " ".join(map(str, row.seeds)),
}


def build_comparison_table(
    rows: Sequence[ComparisonRow], keys: Sequence[str] = (), names: NameColumns = IN_FILES
) -> ResultTable:
    """Build the table of a comparison, with all measures or those with these keys; leads are bold."""
    measured = {key for row in rows for key in row.spreads}
    known = {k: c for k, c in COLUMNS.items() if k in ALWAYS_SHOWN or k in measured}
    columns = [choose(known, key, "--columns") for key in keys or known]
    return ResultTable.build(
        [*names, *columns],
        [
            [*(name(row) for name in names.values()), *(row.get_cell(c.key) for c in columns)]
            for row in rows
        ],
        notes=[explain_bold(rows, [column.key for column in columns])],
    )


def format_seeds(seeds: Sequence[int]) -> str:
    """Format seeds for a table cell, as in ``0, 1, 2``."""
    return ", ".join(map(str, seeds))


def export_comparison(runs: Sequence[Run], path: Path, keys: Sequence[str] = ()) -> None:
    """Write the table of a comparison in the format of the path's suffix, with all or these columns."""
    names = IN_CSV if path.suffix == ".csv" else IN_FILES
    table = build_comparison_table(compare_runs(runs), keys, names)
    write_atomically(path, TABLE_FORMATS[path.suffix](table).encode())


# Sections of the page -----------------------------------------------------------------------


def build_difference_table(rows: Sequence[ComparisonRow]) -> ResultTable | None:
    """Build the table of paired differences to the first row; None if there is no pair."""
    compared = [(row, row.differences) for row in rows if row.differences]
    if not compared:
        return None
    columns = [Column(t, k, "percent", "+.2f", "std") for k, t in ACCURACY_TITLES.items()]
    return ResultTable.build(
        ["algorithm", "seed", *columns],
        [
            [
                row.name,
                format_seeds(gaps.seeds),
                *(g.to_cell() if (g := gaps.measures.get(k)) else None for k in ACCURACIES),
            ]
            for row, gaps in compared
        ],
        title=rows[0].name,
    )


def build_statistics_tables(rows: Sequence[ComparisonRow]) -> list[ResultTable]:
    """Build tables of means, differences and p values for G and P; empty with one seed each."""
    if all(len(row.seeds) < 2 for row in rows):
        return []
    columns = [
        Column("mean (95 % interval)", "mean", "percent", show="interval"),
        Column("Δ (95 % interval)", "difference", "percent", "+.2f", "interval"),
        Column("p (Holm)", "p", form=".2g"),
    ]
    return [
        ResultTable.build(
            ["algorithm", "seed", *columns],
            [[row.name, format_seeds(row.seeds), *list_statistics(row, key)] for row in rows],
            title,
        )
        for key, title in HEADLINES.items()
        if any(key in row.spreads for row in rows)
    ]


def list_statistics(row: ComparisonRow, key: str) -> list[Cell]:
    """List a row's cells: mean, difference and p; p is missing for a single pair."""
    own, gap = row.spreads.get(key), row.get_difference(key)
    return [
        own.to_cell() if own else Cell(),
        gap.to_cell() if gap else Cell(),
        Cell(gap.p_holm if gap and gap.ci95 else None),
    ]


def build_metric_table(runs: Sequence[Run]) -> ResultTable | None:
    """Build the table of further metrics, as means over the seeds; None without metrics."""
    measured = [r for r in runs if r.current_summary and r.current_summary.metrics]
    names = dict.fromkeys(n for r in measured if (s := r.current_summary) for n in s.metrics)
    infos = [(get_metric_info(name), m) for name in names for m in "GP"]
    if not infos:
        return None
    return ResultTable.build(
        ["algorithm", *(Column(f"{m} {get_metric_title(info)}") for info, m in infos)],
        [
            [series, *(info.format(average_metric(group, info.name, m)) for info, m in infos)]
            for series, group in group_by_series(measured).items()
        ],
        METRICS_TITLE,
    )


def build_net_table(runs: Sequence[Run]) -> ResultTable | None:
    """Build the table of P by net, as means over the seeds; None if no run has different nets."""
    mixed = [r for r in runs if r.current_summary and r.current_summary.nets]
    names = dict.fromkeys(n for r in mixed if (s := r.current_summary) for n in s.nets)
    if not names:
        return None
    return ResultTable.build(
        ["algorithm", *(Column(name, kind="percent", show="std") for name in names)],
        [
            [series, *(average_cell(list_net_accuracies(group, name)) for name in names)]
            for series, group in group_by_series(mixed).items()
        ],
        NETS_TITLE,
    )


def list_net_accuracies(group: Sequence[Run], net: str) -> list[float]:
    """List the P of clients with this net, for each seed that has such clients."""
    found = [s.nets.get(net) for r in group if (s := r.current_summary)]
    return [one.P for one in found if one is not None and one.P is not None]


def average_metric(group: Sequence[Run], name: str, measure: str) -> float | None:
    """Average a metric over the seeds; None if it is missing for a seed."""
    found = [s.metrics.get(name, {}).get(measure) for r in group if (s := r.current_summary)]
    known = [v for v in found if v is not None]
    return fmean(known) if known and len(known) == len(group) else None


def build_new_client_table(runs: Sequence[Run]) -> ResultTable | None:
    """Build the table of new clients, with a row for each series that has new clients; None if no series has any."""
    rows: Rows = []
    for name, group in group_by_series(runs).items():
        if not (found := collect_new_clients(group)):
            continue
        several = [new for _, new in found]
        sizes = ([len(n.clients) for n in several], [n.rounds for n in several])
        counts = [", ".join(dict.fromkeys(map(str, values))) for values in sizes]
        values = [list_new_client_values(several, k) for k in NEW_CLIENT_MEASURES]
        cells = [average_cell(known) for known in values]
        rows.append([name, format_seeds([seed for seed, _ in found]), *counts, *cells])
    columns = [Column(t, kind="percent", show="std") for t in NEW_CLIENT_TITLES]
    counted = [Column("clients"), Column("rounds")]
    return ResultTable.build(["algorithm", "seed", *counted, *columns], rows) if rows else None


def average_cell(values: Sequence[float]) -> Cell:
    """Return a table cell with the mean of values and, if there are several, their deviation."""
    if not values:
        return Cell()
    return Cell(fmean(values), pstdev(values) if len(values) > 1 else None)


# Terminal -----------------------------------------------------------------------------------


def build_overview_tables(runs: Sequence[Run]) -> list[ResultTable]:
    """Build the tables that ``heterophony compare`` prints: main measures with notes, and other metrics."""
    rows = compare_runs(runs)
    measured = {key for row in rows for key in row.spreads}
    shown = ["G.best", "G.last10", "P.best", "P.last10", "worst10"]
    shown += [k for k in ("below_local", "G.chosen", "P.chosen") if k in measured]
    new = any(row.new_clients for row in rows)
    drops = {"worst10": 3, "G.best": 4, "P.best": 5, "below_local": 6}
    columns: Columns = ["algorithm"]
    columns += [replace(COLUMNS[key], drop=drops.get(key, 0)) for key in shown]
    columns += [Column("P new", kind="percent")] if new else []
    columns += [
        Column(f"Δ{title}", kind="percent", form="+.2f", show="interval", drop=7 + i)
        for i, title in enumerate(HEADLINES.values())
    ]
    columns += [Column("work", drop=6), Column("MB", form=".1f", drop=2)]
    columns += [Column("seconds", form=".1f", drop=1)]
    score = " or ".join(dict.fromkeys(SCORES[r.start.get("task", "classification")] for r in runs))
    main = ResultTable.build(
        columns,
        [list_overview_cells(row, shown, new) for row in rows],
        f"{score} in %; G: the generic model on all test data, P: own models on own data",
        list_overview_notes(runs, rows, shown, new),
    )
    more = (build_net_table(runs), build_metric_table(runs))
    return [main, *(table for table in more if table)]


def list_overview_cells(row: ComparisonRow, shown: Sequence[str], new: bool) -> list[Value]:
    """List the cells of a comparison row in the table that ``heterophony compare`` prints."""
    gaps = [row.get_difference(key) for key in HEADLINES]
    sent = sum(row.spreads[f"MB_{way}"].mean for way in ("up", "down"))
    work = row.spreads.get("work")
    return [
        row.name,
        *(row.get_cell(key) for key in shown),
        *([(row.new_clients or {}).get("P")] if new else []),
        *(gap.to_cell() if gap else None for gap in gaps),
        work.to_cell() if work else None,
        sent,
        row.spreads["seconds"].mean,
    ]


def list_overview_notes(
    runs: Sequence[Run], rows: Sequence[ComparisonRow], shown: Sequence[str], new: bool
) -> list[str | None]:
    """List the notes below the table of ``heterophony compare``: columns, data and conclusions."""
    seeds = len(rows[0].seeds)
    spread = f"± over {seeds} seeds" if seeds > 1 else "± over the last ten evaluations"
    return [
        f"{spread}; Δ: paired by seed, against {rows[0].name}, with its 95 % interval;"
        " work: examples trained on, relative to FedAvg; MB: both ways",
        *dict.fromkeys(r.start.get("data_remark", "") for r in runs),
        *dict.fromkeys(describe_lone_clients(r.events) for r in runs),
        *list_runs_at_chance(runs),
        explain_bold(rows, shown),
        *list_conclusions(rows),
        "P new: P of clients that joined after training, once they have trained on their own data"
        if new
        else None,
    ]


def list_runs_at_chance(runs: Sequence[Run]) -> list[str]:
    """Describe the runs that are no better than chance; runs with the same reason share a sentence."""
    named = dict[str, list[str]]()
    for run in runs:
        if run.summary and (sentence := describe_chance_level(run.summary, run.start)):
            named.setdefault(sentence, []).append(run.label)
    return [f"{'; '.join(labels)}: {sentence}" for sentence, labels in named.items()]
