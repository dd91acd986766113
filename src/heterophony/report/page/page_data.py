"""The data of the report page: all numbers and names that its script draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...core.scores import SCORES
from ...results import comparison, comparison_tables
from ...results.boards import build_board_rounds_section, build_boards_section
from ...results.label_distribution import collect_participation
from ...results.overview import compute_cumulative_costs
from ...results.runs import Run, group_by_series, iterate_setting_texts
from ...results.statistics import compute_t_quantile
from ...results.table import ResultTable, render_csv, render_page
from ...runs.events import find_last_evaluation
from . import sections

Json = dict[str, Any]
MAX_HEATMAP_CLIENTS = 1000  # more columns would be narrower than a pixel


def build_page_data(runs: Sequence[Run]) -> Json:
    """Collect all data of the page, ready for JSON."""
    rows = comparison.compare_runs(runs)
    federations = {str(r.start["data_sha256"]): r.start for r in reversed(runs)}
    order = list(reversed(federations))
    points = sections.count_curve_points(runs)
    return {
        "title": format_title(runs),
        "score": format_score(runs),
        "summary": describe_runs(runs, rows),
        "series": [
            build_series_data(name, group, order, points)
            for name, group in group_by_series(runs).items()
        ],
        "student95": list_student_factors(max(map(len, group_by_series(runs).values()))),
        "stride": max(
            sections.compute_stride(len(r.curves[k]), points) for r in runs for k in "GP"
        ),
        "table": render_page(
            comparison_tables.build_comparison_table(rows, names=comparison_tables.ON_PAGES)
        ),
        "client_means": render_optional(sections.build_client_mean_table(runs, rows)),
        "nets": render_optional(comparison_tables.build_net_table(runs)),
        "metrics": render_optional(comparison_tables.build_metric_table(runs)),
        "csv": render_csv(
            comparison_tables.build_comparison_table(rows, names=comparison_tables.IN_CSV)
        ),
        "differences": render_optional(comparison_tables.build_difference_table(rows)),
        "statistics": build_statistics_section(rows),
        "new_clients": render_optional(comparison_tables.build_new_client_table(runs)),
        "audit": sections.build_audit_section(runs),
        "protection": sections.build_protection_section(runs),
        "federations": [
            {"clients": start["clients"], "train": start["train"], "test": start["test"]}
            for start in (federations[sha] for sha in order)
        ],
        "participation": [
            {
                "labels": p.run_labels,
                "federation": order.index(p.data_sha256),
                "rounds_selected": p.rounds_selected.tolist(),
                "rounds_trained": p.rounds_trained.tolist(),
            }
            for p in collect_participation(runs)
        ],
        "boards": [build_boards_section(r.boards, r.label) for r in runs if r.boards],
        "board_rounds": [s for r in runs if (s := build_board_rounds_section(r)) is not None],
        "label_distribution": build_label_distribution_section(runs[0], several=len(order) > 1),
        "confusion": build_confusion_section(runs),
        "settings": build_settings_section(runs),
    }


def list_student_factors(seeds: int) -> list[float]:
    """List the factors for 95 % intervals of the mean of 1, 2, … values; the factor for one is 0."""
    return [0.0, *(round(compute_t_quantile(n - 1), 5) for n in range(2, seeds + 1))]


def render_optional(table: ResultTable | None) -> Json | None:
    return render_page(table) if table else None


def build_statistics_section(rows: Sequence[comparison.ComparisonRow]) -> Json | None:
    """Collect conclusions, means, intervals and p values; None for a single run."""
    if len(rows) < 2 and all(len(row.seeds) < 2 for row in rows):
        return None
    tables = [render_page(table) for table in comparison_tables.build_statistics_tables(rows)]
    return {"conclusions": comparison.list_conclusions(rows), "tables": tables}


def format_score(runs: Sequence[Run]) -> str:
    """Return the name of the score of G and P: accuracy, or the score of another task."""
    return " or ".join(
        dict.fromkeys(SCORES.get(r.start.get("task", "classification"), "score") for r in runs)
    )


def format_title(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(r.display_name for r in runs))
    algorithms = (
        f"{len(names)} algorithms"
        if len(names) > 5
        else " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    )
    data = dict.fromkeys(Path(str(r.config.get("data", {}).get("name", ""))).stem for r in runs)
    return " on ".join(filter(None, (algorithms, ", ".join(filter(None, data)))))


def describe_runs(runs: Sequence[Run], rows: Sequence[comparison.ComparisonRow]) -> str:
    """Summarise the page: what is compared and which series leads in G or P beyond chance."""
    sizes = [
        format_count([len(r.start["clients"]) for r in runs], "clients"),
        format_count([r.start["rounds"] for r in runs], "rounds"),
        format_count([len(group) for group in group_by_series(runs).values()], "seeds"),
    ]
    return " ".join(filter(None, (f"{', '.join(sizes)}.", describe_leaders(rows))))


def describe_leaders(rows: Sequence[comparison.ComparisonRow]) -> str:
    """Describe which series leads in G or P over the last ten evaluations, or why none does."""
    leading: dict[str, list[str]] = {}
    for key in ("G.last10", "P.last10"):
        for row in rows:
            if key in row.leads:
                value = f"{key[0]} ({100 * row.spreads[key].mean:.2f} %)"
                leading.setdefault(row.name, []).append(value)
    leaders = [f"{name} has the highest {' and '.join(values)}" for name, values in leading.items()]
    if leaders:
        return f"Over the last ten evaluations {' and '.join(leaders)}: more than chance over the seeds."
    reason = comparison.explain_missing_lead(rows)
    return f"No winner is shown: {reason}." if reason else ""


def format_count(numbers: Sequence[int], word: str) -> str:
    """Format a range with its noun, as in ``20 clients``, ``10–20 clients`` or ``1 seed``."""
    low, high = min(numbers), max(numbers)
    span = f"{low}–{high}" if low < high else f"{low}"
    return f"{span} {word.removesuffix('s') if high == 1 else word}"


def build_series_data(name: str, group: Sequence[Run], order: Sequence[str], points: int) -> Json:
    """Collect the data of one series: its mean curves and its runs."""
    series, each = sections.build_curves(group, points)
    return {
        "name": name,
        "key": name.removesuffix(
            f", {group[0].state}"
        ),  # without the round, so that it stays the same while a run continues
        **series,
        "runs": [
            build_run_data(run, order.index(run.start["data_sha256"]), curves)
            for run, curves in zip(group, each, strict=True)
        ],
    }


def build_run_data(run: Run, federation: int, curves: sections.CurvesByKind) -> Json:
    """Collect the data of one run: its result.json, with clients as columns of counts."""
    summary = run.current_summary
    result = summary.to_dict() if summary else None
    clients = result.pop("clients") if result else {}
    last = find_last_evaluation(run.events)
    measured = sorted({int(t) for curve in curves["curves"].values() for t, _ in curve})
    return {
        "label": run.label,
        "state": run.state,
        "seed": run.seed,
        "federation": federation,
        **curves,
        "costs": compute_cumulative_costs(run.events, measured),
        "result": result,
        "G": last and last["G"],
        "P": last and last["P"],
        "participations": [c["participations"] for c in clients.values()],
    }


def build_label_distribution_section(run: Run, several: bool) -> Json:
    """Collect the training examples per client and class in the run's federation."""
    start = run.start
    return {
        "run": run.label if several else "",
        "clients": start["clients"][:MAX_HEATMAP_CLIENTS],
        "left_out": max(0, len(start["clients"]) - MAX_HEATMAP_CLIENTS),
        "classes": start["classes"],
        "counts": start["labels"][:MAX_HEATMAP_CLIENTS],
    }


def build_confusion_section(runs: Sequence[Run]) -> Json | None:
    """Collect the confusion counts of every series' first run that has them; None if no run has."""
    found = []
    for name, group in group_by_series(runs).items():
        start, last = group[0].start, find_last_evaluation(group[0].events)
        held = last.get("confusion", {}) if last else {}
        measures = {m: held[m] for m in ("P", "G") if any(held.get(m) or ())}
        if measures:
            found.append(
                {"name": name, "run": group[0].label, "classes": start["classes"]}
                | {"clients": start["clients"], "cells": measures}
            )
    return {"series": found} if found else None


def build_settings_section(runs: Sequence[Run]) -> list[Json]:
    """Collect the value of every setting in every series."""
    groups = [
        [dict(iterate_setting_texts(r.config)) for r in group]
        for group in group_by_series(runs).values()
    ]
    keys = dict.fromkeys(k for group in groups for c in group for k in c)
    return [
        {"key": k, "values": [", ".join(dict.fromkeys(c.get(k, "–") for c in g)) for g in groups]}
        for k in keys
    ]
