"""Find who leads in a measure beyond chance; a lead that chance could give is not highlighted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..runs.curves import Accuracy, MeanStd
from ..runs.summary import Summary
from .overview import average_new_clients
from .runs import Run, group_by_series
from .statistics import (
    ALPHA,
    ConfidenceInterval,
    apply_holm_correction,
    compare_pairs,
    compute_confidence_interval,
    count_pairs_needed,
)

# of one series: its measures by seed and data; runs with the same key form a pair
MeasuresByBlock = Mapping[tuple[int, str], Mapping[str, float]]
BOLD_NOTE = (
    f"Bold: higher than every other row beyond chance (paired by seed, p < {ALPHA} after Holm)."
)


def find_clear_leader(series: Mapping[str, MeasuresByBlock], key: str) -> str | None:
    """Find the series whose measure is higher than that of all others, beyond chance.

    The highest is compared with each other one over the seeds and data that both have. All
    p values, corrected for their number (Holm), must be below ALPHA.
    """
    known = {
        name: {block: measures[key] for block, measures in blocks.items()}
        for name, blocks in series.items()
        if blocks and all(key in measures for measures in blocks.values())
    }
    if len(known) < 2:
        return None
    leader = max(known, key=lambda name: fmean(known[name].values()))
    p_values = []
    for name, values in known.items():
        if name == leader:
            continue
        common = [block for block in known[leader] if block in values]
        if not common:
            return None
        pairs = compare_pairs([known[leader][b] for b in common], [values[b] for b in common])
        if pairs.mean <= 0:
            return None
        p_values.append(pairs.p)
    return leader if max(apply_holm_correction(p_values)) < ALPHA else None


# In words -----------------------------------------------------------------------------------


def explain_highlighting(table: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str | None:
    """Say what bold means in these columns, or why nothing is bold; None if nothing is compared."""
    if any(key in row["leads"] for row in table for key in keys):
        return BOLD_NOTE
    reason = explain_missing_lead(table)
    return reason and f"Nothing is bold: {reason}."


def explain_missing_lead(table: Sequence[Mapping[str, Any]]) -> str | None:
    """Say why no row leads beyond chance; None if fewer than two are finished."""
    finished = [row for row in table if row["state"] == "finished"]
    if len(finished) < 2:
        return None
    common = set.intersection(*(set(row["seeds"]) for row in finished))
    needed = count_pairs_needed(len(finished) - 1)
    if not common:
        return f"the rows have no seed in common; comparing them takes at least {needed}"
    if len(common) < needed:
        seeds = "one seed" if len(common) == 1 else f"{len(common)} seeds"
        return (
            f"{seeds} cannot tell {len(finished)} rows apart from chance; it takes at least"
            f" {needed} seeds"
        )
    return f"over {len(common)} seeds, no row is higher than all others beyond chance"


Row = dict[str, Any]
ACCURACY_COLUMNS = {
    f"{measure}.{part}": f"{measure} {title}"
    for measure in "GP"
    for part, title in (("best", "best"), ("last", "last"), ("last10", "last 10"))
}
COLUMNS = {  # key of a measure: its title
    **ACCURACY_COLUMNS,
    "worst10": "P worst 10 %",
    "std": "P std",
    "MB_up": "MB up",
    "MB_down": "MB down",
    "seconds": "seconds",
}
VALIDATION_COLUMNS = {f"{measure}.chosen": f"{measure} at best validation" for measure in "GP"}
LOSS_COLUMNS = {f"{measure}.loss": f"{measure} test loss" for measure in "GP"}
# shown only if some run has them
OPTIONAL_COLUMNS = {
    **VALIDATION_COLUMNS,
    **LOSS_COLUMNS,
    "examples": "examples a round",
    "work": "work",
    "simulated": "simulated s",
}
PERCENT_COLUMNS = {*ACCURACY_COLUMNS, *VALIDATION_COLUMNS, "worst10", "std"}
DIGITS = {"work": 2, **dict.fromkeys(LOSS_COLUMNS, 4)}  # of what is not in percent; default: 1
HIGHER_IS_BETTER = (*ACCURACY_COLUMNS, *VALIDATION_COLUMNS, "worst10")


def build_comparison_rows(runs: Sequence[Run]) -> list[Row]:
    """One row per series; a run without any evaluation has none.

    ``G`` and ``P`` are as in result.json (means over the seeds, if there are several);
    ``over_seeds`` has, by the keys of ``COLUMNS``, mean, population std and the mean's 95 %
    interval (None with one seed). ``difference`` holds the same of the paired differences to the
    first row, with p and the p corrected for the number of rows; None without a pair.
    ``leads`` lists the measures in which the row is higher than all others beyond chance.
    """
    series = [
        group for group in group_by_series(runs).values() if all(r.current_summary for r in group)
    ]
    table = add_holm_p_values([build_comparison_row(group, series[0]) for group in series])
    return add_leads(table, series)


def build_comparison_row(group: Sequence[Run], first: Sequence[Run]) -> Row:
    summaries = list_summaries(group)
    spreads = compute_spreads([extract_measures(s) for s in summaries])
    return {
        "name": group[0].series,
        "algorithm": group[0].algorithm,
        "seeds": [r.seed for r in group],
        "state": group[0].state,
        "G": average_accuracy([s.G for s in summaries if s.G]),
        "P": average_accuracy([s.P for s in summaries]),
        **{
            k: spreads[k]["mean"]
            for k in spreads
            if k not in (*ACCURACY_COLUMNS, *VALIDATION_COLUMNS, *LOSS_COLUMNS)
        },
        "over_seeds": spreads,
        "difference": None if group is first else compute_differences(group, first),
        "new_clients": average_new_clients(group),
    }


def select_columns(table: Iterable[Row]) -> dict[str, str]:
    """The columns of this table: key and title of each measure."""
    measured = {k for row in table for k in row["over_seeds"]}
    return {**COLUMNS, **{k: title for k, title in OPTIONAL_COLUMNS.items() if k in measured}}


def list_summaries(group: Iterable[Run]) -> list[Summary]:
    return [s for s in (run.current_summary for run in group) if s]


def average_accuracy(of: Sequence[Accuracy]) -> Row | None:
    """Average best, last and last ten over the seeds."""
    if not of:
        return None
    last10 = {
        "mean": fmean(a.last10.mean for a in of),
        "std": fmean(a.last10.std for a in of),
    }
    return {"best": fmean(a.best for a in of), "last": fmean(a.last for a in of), "last10": last10}


def extract_measures(summary: Summary) -> dict[str, float]:
    """The numbers of one run by the keys of ``COLUMNS``; without G if there is no generic model."""
    out: dict[str, float] = {}
    for name, a in (("G", summary.G), ("P", summary.P)):
        if a:
            parts = {"best": a.best, "last": a.last, "last10": a.last10.mean}
            out |= {f"{name}.{part}": value for part, value in parts.items()}
        if a and a.chosen:
            out[f"{name}.chosen"] = a.chosen.test
        if (loss := summary.loss.get(name)) is not None:
            out[f"{name}.loss"] = loss
    if fairness := summary.fairness["P"]:
        out |= {"worst10": fairness.worst10, "std": fairness.std}
    out |= {f"MB_{way}": count / 1e6 for way, count in summary.bytes.items()}
    out["seconds"] = summary.seconds
    later = {
        "examples": summary.examples_per_round,
        "work": summary.relative_work,
        "simulated": summary.simulated_seconds,
    }
    return out | {k: v for k, v in later.items() if v is not None}


def compute_spreads(runs: Sequence[Mapping[str, float]]) -> Row:
    """Mean, std and interval of every measure that all runs have."""
    common = [k for k in (*COLUMNS, *OPTIONAL_COLUMNS) if all(k in m for m in runs)]
    return {k: compute_spread([m[k] for m in runs]) for k in common}


def compute_spread(values: Sequence[float]) -> Row:
    of = MeanStd.from_values(values)
    return {
        "mean": of.mean,
        "std": of.std,
        "ci95": list_interval_bounds(compute_confidence_interval(values)),
    }


def list_interval_bounds(of: ConfidenceInterval | None) -> list[float] | None:
    return [of.low, of.high] if of else None


def compute_differences(group: Sequence[Run], first: Sequence[Run]) -> Row | None:
    """Paired differences to ``first``, over the seeds that both have with the same data."""
    own, other = index_measures_by_block(group), index_measures_by_block(first)
    common = [key for key in own if key in other]
    if not common or any(r.state != "finished" for r in (*group, *first)):
        return None
    pairs = [(own[key], other[key]) for key in common]
    both = [k for k in ACCURACY_COLUMNS if all(k in a and k in b for a, b in pairs)]
    compared = {
        k: compute_paired_difference([a[k] for a, _ in pairs], [b[k] for _, b in pairs])
        for k in both
    }
    return {"to": first[0].series, "seeds": [seed for seed, _ in common], **compared}


def compute_paired_difference(own: Sequence[float], other: Sequence[float]) -> Row:
    deltas = [a - b for a, b in zip(own, other, strict=True)]
    return {**compute_spread(deltas), "p": compare_pairs(own, other).p}


def add_holm_p_values(table: list[Row]) -> list[Row]:
    """Add ``p_holm`` to every difference: its p corrected for the number of rows."""
    for key in ACCURACY_COLUMNS:
        gaps = [r["difference"][key] for r in table if key in (r["difference"] or {})]
        for gap, p in zip(gaps, apply_holm_correction([g["p"] for g in gaps]), strict=True):
            gap["p_holm"] = p
    return table


def add_leads(table: list[Row], series: Sequence[Sequence[Run]]) -> list[Row]:
    """Add ``leads`` to every row; only finished runs are compared."""
    measured = {
        row["name"]: index_measures_by_block(group)
        for row, group in zip(table, series, strict=True)
        if row["state"] == "finished"
    }
    leaders = {key: find_clear_leader(measured, key) for key in HIGHER_IS_BETTER}
    for row in table:
        row["leads"] = [key for key, name in leaders.items() if name == row["name"]]
    return table


def index_measures_by_block(group: Iterable[Run]) -> dict[tuple[int, str], dict[str, float]]:
    """Measures by seed and data; runs with the same key form a pair."""
    return {(s.seed, s.data_sha256): extract_measures(s) for s in list_summaries(group)}


# Texts --------------------------------------------------------------------------------------


def format_cell(row: Row, key: str) -> str:
    """Format a measure; ± is over the seeds or, with one seed, over the last ten evaluations."""
    if key not in row["over_seeds"]:
        return "–"
    scale, digits = (100, 2) if key in PERCENT_COLUMNS else (1, DIGITS.get(key, 1))
    text = f"{scale * row['over_seeds'][key]['mean']:.{digits}f}"
    std = get_deviation(row, key)
    return text if std is None else f"{text} ± {scale * std:.{digits}f}"


def get_deviation(row: Row, key: str) -> float | None:
    """The standard deviation after ±; None if there is none to show."""
    if len(row["seeds"]) > 1:
        std = float(row["over_seeds"][key]["std"])
        return std if std or key in PERCENT_COLUMNS else None
    return float(row[key[0]]["last10"]["std"]) if key in ("G.last10", "P.last10") else None


def format_difference(row: Row, key: str) -> str:
    """Format a paired difference in percentage points; ± is over the pairs."""
    gap = (row["difference"] or {}).get(key)
    if gap is None:
        return "–"
    several = len(row["difference"]["seeds"]) > 1
    text = format_percentage_points(gap["mean"])
    return f"{text} ± {100 * gap['std']:.2f}" if several else text


def format_percentage_points(difference: float) -> str:
    """Format percentage points with their sign."""
    return f"{100 * difference:+.2f}".replace("-", "−")
