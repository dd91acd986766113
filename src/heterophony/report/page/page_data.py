"""The data of the report page: all numbers and names that its script draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ...algorithms import get_display_name
from ...core.files import read_json
from ...core.scores import SCORES
from ...privacy import summary
from ...results import comparison, comparison_tables
from ...results.boards import build_board_rounds_section, build_boards_section
from ...results.label_distribution import collect_participation
from ...results.overview import compute_cumulative_costs
from ...results.runs import Curve, Run, compute_mean_curve, group_by_series, iterate_setting_texts
from ...results.statistics import compute_t_quantile
from ...results.table import Cell, Column, ResultTable, Rows, render_csv, render_table_data
from ...runs.curves import MeanStd, select_last_ten
from ...runs.events import find_last_evaluation, select_rounds
from ...runs.run_index import read_json_lines

MAX_CURVE_POINTS = 30_000  # most points in all curves of runs together; keeps the page under 2 MB
Curves = dict[str, list[list[float]]]  # points (round, accuracy or loss) by measure
CurvesByKind = dict[str, Curves]


def count_curve_points(runs: Sequence[Run]) -> int:
    """Return how many points per curve keep the report page small."""
    kinds = 4 if any(map(has_unequal_clients, runs)) else 2  # G and P, pooled and by client
    kinds += 2 if any(any(run.loss_curves.values()) for run in runs) else 0
    return max(50, MAX_CURVE_POINTS // (kinds * len(runs)))


def has_unequal_clients(run: Run) -> bool:
    """Return True if clients' test sets differ in size, so that the mean over clients differs from pooled accuracy."""
    return len({n for n in run.start["test"] if n}) > 1


def build_curves(group: Sequence[Run], points: int) -> tuple[CurvesByKind, list[CurvesByKind]]:
    """Build the page's curves of one series and of each of its runs.

    The pooled curves are ``mean`` for the series and ``curves`` for each run. If clients have different
    numbers of test examples, ``client_mean`` and ``client_curves`` are means over clients.
    ``loss_mean`` and ``loss_curves`` hold the test loss.
    """
    losses = [replace(run, curves=run.loss_curves) for run in group]
    series = {
        "mean": thin_mean_curves(group, points),
        "loss_mean": thin_mean_curves(losses, points),
    }
    each = [
        {"curves": thin_curves(run, points), "loss_curves": thin_curves(loss, points)}
        for run, loss in zip(group, losses, strict=True)
    ]
    if any(map(has_unequal_clients, group)):
        averaged = [replace(run, curves=run.client_mean_curves) for run in group]
        series["client_mean"] = thin_mean_curves(averaged, points)
        for out, run in zip(each, averaged, strict=True):
            out["client_curves"] = thin_curves(run, points)
    return series, each


def thin_mean_curves(group: Sequence[Run], points: int) -> Curves:
    """Return the mean curves of a series, with at most ``points`` points each."""
    return {k: thin_curve(compute_mean_curve(group, k), points) for k in "GP"}


def thin_curves(run: Run, points: int) -> Curves:
    """Return the curves of a run, with at most ``points`` points each."""
    return {k: thin_curve(run.curves[k], points) for k in "GP"}


def thin_curve(curve: Curve, points: int) -> list[list[float]]:
    """Keep at most ``points`` evenly spaced points of a curve, including the last; round to five digits."""
    kept = curve[:: -compute_stride(len(curve), points)]
    return [[t, round(v, 5)] for t, v in reversed(kept)]


def compute_stride(length: int, points: int) -> int:
    """Return the stride that keeps at most ``points`` points of a curve."""
    return -(-length // points) or 1


def build_client_mean_table(
    runs: Sequence[Run], rows: Sequence[comparison.ComparisonRow]
) -> ResultTable | None:
    """Build the page's table of G and P over the last ten evaluations, pooled and as the mean over clients.

    Return None if both are equal because all clients have the same number of test examples.
    """
    if not any(map(has_unequal_clients, runs)):
        return None
    groups = group_by_series(runs)
    kinds = ("pooled", "mean over clients")
    columns = [
        Column(f"{m} last 10, {kind}", kind="percent", show="std") for m in "GP" for kind in kinds
    ]
    cells = [
        [
            cell
            for m in "GP"
            for cell in (
                replace(row.get_cell(f"{m}.last10"), mark=""),
                average_last_ten(groups[row.name], m),
            )
        ]
        for row in rows
    ]
    lines: Rows = [[row.name, *own] for row, own in zip(rows, cells, strict=True)]
    return ResultTable.build(["algorithm", *columns], lines)


def average_last_ten(group: Sequence[Run], measure: str) -> Cell:
    """Return a table cell: the mean over clients in the last ten evaluations, with the deviation over seeds.

    With one seed, the deviation is over the evaluations.
    """
    last = [select_last_ten(run.client_mean_curves[measure]) for run in group]
    if not all(last):
        return Cell()
    spread = MeanStd.from_values([fmean(ten) for ten in last] if len(last) > 1 else last[0])
    return Cell(spread.mean, spread.std)


MAX_POINTS = 500  # limit for one curve


def build_protection_section(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Build the page's section of protections; None if no run has protections or malicious clients."""
    rows: Rows = []
    curves, notes = [], dict[str, list[str]]()
    for name, group in group_by_series(runs).items():
        start = group[0].start
        if not start.get("protection") and not start.get("bad_clients"):
            continue
        privacy = start.get("privacy", {})
        curve = find_epsilon_curve(group)
        rows.append(
            [
                name,
                ", ".join(map(format_protection, start.get("protection", []))) or "–",
                (f"{curve[-1][1]:.3f}" if curve else "no bound") if privacy else "–",
                f"{privacy['delta']:g}" if privacy else "–",
                len(start.get("bad_clients", [])),
            ]
        )
        if privacy:
            outside = "; ".join(privacy["outside"])
            note = f"ε is about {privacy['accounting']}. Outside ε: {outside}."
            notes.setdefault(note, []).append(name)
        if curve:
            curves.append({"name": name, "points": thin_curve(curve, MAX_POINTS)})
    if not rows:
        return None
    columns = (
        "series",
        "protection",
        Column("ε"),
        Column("δ"),
        Column("malicious clients", form="d"),
    )
    texts = [f"{', '.join(names)}: {note}" for note, names in notes.items()]
    table = ResultTable.build(columns, rows, notes=texts)
    return {"table": render_table_data(table), "curves": curves}


def find_epsilon_curve(group: Sequence[Run]) -> list[tuple[int, float]]:
    """Return (round, ε) of a series: the largest ε of its runs after each round, from 1."""
    found: dict[int, float] = {}
    for run in group:
        for event in select_rounds(run.events):
            epsilon = event.get("epsilon")
            if epsilon is not None:
                t = event["t"] + 1
                found[t] = max(found.get(t, 0.0), epsilon)
    return sorted(found.items())


def format_protection(settings: Mapping[str, Any]) -> str:
    """Format a protection, as in ``top_k (ratio 0.1)``."""
    given = {k: v for k, v in settings.items() if k != "kind" and v not in ({}, "server")}
    values = [f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in given.items()]
    return f"{settings['kind']} ({', '.join(values)})" if values else str(settings["kind"])


AuditRecord = dict[str, Any]
MAX_IMAGES = 8  # rows of images


def build_audit_section(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Build the page's section about the privacy audit to which runs belong; None without an audit."""
    folders = dict.fromkeys(r.folder.parent for r in runs)
    audited = [f for f in folders if (f / "audit.json").is_file()]
    return read_audit_section(audited[0]) if audited else None


def read_audit_section(folder: Path) -> dict[str, Any] | None:
    """Read the table and images of a privacy audit; None if nothing was attacked."""
    content, records = (
        read_json(folder / "audit.json"),
        list(read_json_lines(folder / "attacks.jsonl")),
    )
    if not content["rows"]:
        return None
    originals, columns, attacks = select_images(records)
    how = content["asked"]["how"]
    return {
        "attack": f"Attack: {how['attack']}, {how['iterations']} iterations, labels {how['labels']}",
        "table": render_table_data(summary.build_audit_table(content)),
        "shape": content["asked"]["shape"],
        "when": describe_shown_rounds(records),
        "columns": [
            "original",
            *(f"{get_display_name(name)}, {private}" for name, private in columns),
        ],
        "images": [
            [
                {"pixels": o["original"], "caption": f"client {o['client']}"},
                *(
                    build_thumbnail(attacks[name, p, o["client"], o["image"]])
                    for name, p in columns
                ),
            ]
            for o in originals
        ],
    }


def choose_shown_rounds(
    records: Sequence[AuditRecord], attacks: Sequence[AuditRecord]
) -> dict[str, int]:
    """Choose, by algorithm, the round whose attacked images are shown: the last, or that of the lowest loss level."""
    matched = summary.collect_matched_rounds(records)
    levels, last = summary.list_common_levels(matched), max(r["round"] for r in attacks)
    names = dict.fromkeys(r["algorithm"] for r in attacks)
    return {name: matched[name][levels[-1]] if levels else last for name in names}


def describe_shown_rounds(records: Sequence[AuditRecord]) -> str:
    """Describe when the shown images of an audit were attacked, as in ``after 10 rounds`` or ``at loss 0.5``."""
    levels = summary.list_common_levels(summary.collect_matched_rounds(records))
    if levels:
        return f"at loss {levels[-1]:g}"
    last = max(r["round"] for r in summary.collect_attacks(records))
    return f"after {last} round{'s' * (last != 1)}"


def build_thumbnail(r: AuditRecord) -> dict[str, str]:
    """Return the pixels of an audit's reconstructed image, with its PSNR as caption."""
    return {"pixels": r["picture"], "caption": f"{r['psnr']:.1f} dB"}


def select_images(
    records: Sequence[AuditRecord],
) -> tuple[list[AuditRecord], list[tuple[str, str]], Any]:
    """Select the images of an audit to show; return the originals, the columns, and the attacks by key."""
    start, attacks = records[0], summary.collect_attacks(records)
    shown = choose_shown_rounds(records, attacks)
    by_key = {
        (r["algorithm"], r["private"], r["client"], r["image"]): r
        for r in attacks
        if r["round"] == shown[r["algorithm"]]
    }
    originals = {(r["image"], r["client"]): r for r in by_key.values()}
    kinds = [(a, p) for a in start["algorithms"] for p in summary.PRIVATE_KNOWLEDGE]
    columns = [k for k in kinds if any(key[:2] == k for key in by_key)]
    return [originals[k] for k in sorted(originals)][:MAX_IMAGES], columns, by_key


Json = dict[str, Any]
MAX_HEATMAP_CLIENTS = 1000  # more columns would be narrower than a pixel


def build_page_data(runs: Sequence[Run]) -> Json:
    """Build all data of the report page, ready for JSON."""
    rows = comparison.compare_runs(runs)
    federations = {str(r.start["data_sha256"]): r.start for r in reversed(runs)}
    order = list(reversed(federations))
    points = count_curve_points(runs)
    return {
        "title": format_page_title(runs),
        "score": format_score(runs),
        "summary": describe_runs(runs, rows),
        "series": [
            build_series_data(name, group, order, points)
            for name, group in group_by_series(runs).items()
        ],
        "student95": list_student_factors(max(map(len, group_by_series(runs).values()))),
        "stride": max(compute_stride(len(r.curves[k]), points) for r in runs for k in "GP"),
        "table": render_table_data(
            comparison_tables.build_comparison_table(rows, names=comparison_tables.ON_PAGES)
        ),
        "client_means": render_optional_table(build_client_mean_table(runs, rows)),
        "nets": render_optional_table(comparison_tables.build_net_table(runs)),
        "metrics": render_optional_table(comparison_tables.build_metric_table(runs)),
        "csv": render_csv(
            comparison_tables.build_comparison_table(rows, names=comparison_tables.IN_CSV)
        ),
        "differences": render_optional_table(comparison_tables.build_difference_table(rows)),
        "statistics": build_statistics_section(rows),
        "new_clients": render_optional_table(comparison_tables.build_new_client_table(runs)),
        "audit": build_audit_section(runs),
        "protection": build_protection_section(runs),
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
    """List Student's t factors for 95 % intervals of the mean of 1, 2, … seeds; the factor for one seed is 0."""
    return [0.0, *(round(compute_t_quantile(n - 1), 5) for n in range(2, seeds + 1))]


def render_optional_table(table: ResultTable | None) -> Json | None:
    """Return a table's page data; None if there is no table."""
    return render_table_data(table) if table else None


def build_statistics_section(rows: Sequence[comparison.ComparisonRow]) -> Json | None:
    """Build the page's section of statistics: conclusions, means, intervals and p values; None for one run."""
    if len(rows) < 2 and all(len(row.seeds) < 2 for row in rows):
        return None
    tables = [render_table_data(table) for table in comparison_tables.build_statistics_tables(rows)]
    return {"conclusions": comparison.list_conclusions(rows), "tables": tables}


def format_score(runs: Sequence[Run]) -> str:
    """Return the name of the runs' score, such as accuracy, which depends on the task."""
    return " or ".join(
        dict.fromkeys(SCORES.get(r.start.get("task", "classification"), "score") for r in runs)
    )


def format_page_title(runs: Sequence[Run]) -> str:
    """Return the title of the report page: algorithms and data sets."""
    names = list(dict.fromkeys(r.display_name for r in runs))
    algorithms = (
        f"{len(names)} algorithms"
        if len(names) > 5
        else " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    )
    data = dict.fromkeys(Path(str(r.config.get("data", {}).get("name", ""))).stem for r in runs)
    return " on ".join(filter(None, (algorithms, ", ".join(filter(None, data)))))


def describe_runs(runs: Sequence[Run], rows: Sequence[comparison.ComparisonRow]) -> str:
    """Summarise the report page: how many clients, rounds and seeds there are, and which series lead."""
    sizes = [
        format_count_range([len(r.start["clients"]) for r in runs], "clients"),
        format_count_range([r.start["rounds"] for r in runs], "rounds"),
        format_count_range([len(group) for group in group_by_series(runs).values()], "seeds"),
    ]
    return " ".join(filter(None, (f"{', '.join(sizes)}.", describe_leaders(rows))))


def describe_leaders(rows: Sequence[comparison.ComparisonRow]) -> str:
    """Describe which series leads in G or P over the last ten evaluations, or why no series leads."""
    leading: dict[str, list[str]] = {}
    for key in ("G.last10", "P.last10"):
        for row in rows:
            if key in row.leads:
                value = f"{key[0]} ({100 * row.spreads[key].mean:.2f} %)"
                leading.setdefault(row.name, []).append(value)
    leaders = [f"{name} has the highest {' and '.join(values)}" for name, values in leading.items()]
    if leaders:
        return (
            f"Over the last ten evaluations {' and '.join(leaders)}, beyond chance over the seeds."
        )
    reason = comparison.explain_missing_lead(rows)
    return f"No winner is shown: {reason}." if reason else ""


def format_count_range(numbers: Sequence[int], word: str) -> str:
    """Format counts with their noun, as in ``20 clients``, ``10–20 clients`` or ``1 seed``."""
    low, high = min(numbers), max(numbers)
    span = f"{low}–{high}" if low < high else f"{low}"
    return f"{span} {word.removesuffix('s') if high == 1 else word}"


def build_series_data(name: str, group: Sequence[Run], order: Sequence[str], points: int) -> Json:
    """Build the page data of one series: its mean curves and its runs."""
    series, each = build_curves(group, points)
    return {
        "name": name,
        # without the round, so that it stays the same while a run continues
        "key": name.removesuffix(f", {group[0].state}"),
        **series,
        "runs": [
            build_run_data(run, order.index(run.start["data_sha256"]), curves)
            for run, curves in zip(group, each, strict=True)
        ],
    }


def build_run_data(run: Run, federation: int, curves: CurvesByKind) -> Json:
    """Build the page data of one run: its result.json, costs and curves."""
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
    """Build the page's section of labels: training examples per client and class of a run's federation."""
    start = run.start
    return {
        "run": run.label if several else "",
        "clients": start["clients"][:MAX_HEATMAP_CLIENTS],
        "left_out": max(0, len(start["clients"]) - MAX_HEATMAP_CLIENTS),
        "classes": start["classes"],
        "counts": start["labels"][:MAX_HEATMAP_CLIENTS],
    }


def build_confusion_section(runs: Sequence[Run]) -> Json | None:
    """Build the page's section of confusion matrices, from the first run of each series; None if no run has any."""
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
    """Build the page's section of settings: the value of each setting in every series."""
    groups = [
        [dict(iterate_setting_texts(r.config)) for r in group]
        for group in group_by_series(runs).values()
    ]
    keys = dict.fromkeys(k for group in groups for c in group for k in c)
    return [
        {"key": k, "values": [", ".join(dict.fromkeys(c.get(k, "–") for c in g)) for g in groups]}
        for k in keys
    ]
