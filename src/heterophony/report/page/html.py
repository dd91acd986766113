"""HTML pages of runs, labels and leaderboards: self-contained, with all data escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ...core.files import write_atomically
from ...papers.leaderboard import MEASURES, Ranking, build_ranking_table
from ...results.label_distribution import LabelDistribution
from ...results.runs import Run
from ...results.table import Column, ResultTable, Value, render_table_data
from .page_data import build_page_data

# The scripts of a page are joined into one; its first file says "use strict".
DRAWING_SCRIPTS = (
    "elements.js",
    "drawing.js",
    "saving.js",
    "client_bars.js",
    "label_distribution.js",
)
REPORT_SCRIPTS = (
    "report.js",
    *DRAWING_SCRIPTS,
    "legend.js",
    "curve_lines.js",
    "coinciding.js",
    "curves.js",
    "scatter.js",
    "tables.js",
    "statistics.js",
    "target.js",
    "clients.js",
    "participation.js",
    "audit.js",
    "protection.js",
    "boards.js",
    "gantt.js",
    "confusion.js",
)
RUN_LIST_SCRIPTS = ("run_list.js", "elements.js", "run_rows.js", "sparkline.js", "boards.js")


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write the report page of these runs as one HTML file."""
    write_atomically(path, render_report(runs).encode())


def render_report(runs: Sequence[Run], live: bool = False) -> str:
    """Render the report page of these runs; a live page also receives the dashboard's updates."""
    data = build_page_data(runs)
    return render_page("report.html", REPORT_SCRIPTS, data, live, title=data["title"])


def render_page(
    template: str, scripts: Sequence[str], data: Any, live: bool = False, **texts: str
) -> str:
    """Render an HTML page: fill a template with style, script, data and escaped texts.

    The page sends no requests, and the browser runs only its own script. A live page may
    also connect to the server that it came from.
    """
    css = read_asset("page.css") + (read_asset("dashboard.css") if live else "")
    js = "\n".join(read_asset(name) for name in (*scripts, *(["live_updates.js"] if live else [])))
    return Template(read_asset("head.html") + read_asset(template)).substitute(
        {name: escape(text) for name, text in texts.items()},
        policy=build_security_policy(css, js, live),
        css=css,
        js=js,
        data=dump_safe_json(data),
    )


def build_security_policy(css: str, js: str, live: bool) -> str:
    """Return the page's content security policy: only its own style and script and, if live, its server."""
    own = f"default-src 'none'; style-src '{compute_csp_hash(css)}'; script-src '{compute_csp_hash(js)}'"
    return f"{own}; connect-src 'self'" if live else own


def dump_safe_json(data: Any) -> str:
    """Serialise a page's data as JSON that cannot close the script element around it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def read_asset(name: str) -> str:
    """Read a template, script or style of the pages."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def compute_csp_hash(text: str) -> str:
    """Return the hash of an inline script or style, as a content security policy expects it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write_label_page(distribution: LabelDistribution, path: Path) -> None:
    """Write the page of a label distribution as one HTML file."""
    write_atomically(path, render_label_page(distribution).encode())


def render_label_page(distribution: LabelDistribution) -> str:
    """Render the page of a label distribution."""
    return render_page(
        "label_page.html",
        ("label_page.js", *DRAWING_SCRIPTS),
        build_label_page_data(distribution),
        title=distribution.title,
        summary=describe_sizes(distribution),
        colors=describe_colors(distribution),
    )


def build_label_page_data(distribution: LabelDistribution) -> dict[str, Any]:
    """Collect the data of the label page: counts, client sizes, and the table of clients."""
    return {
        "clients": distribution.clients,
        "classes": distribution.classes,
        "counts": distribution.label_counts.tolist(),
        "stacks": build_size_stacks(distribution),
        "table": render_table_data(build_client_table(distribution)),
    }


def build_size_stacks(distribution: LabelDistribution) -> list[list[dict[str, Any]]]:
    """Build the bars of client sizes: own examples and, with rebalancing, the balanced set."""

    def build_layer(colour: str, label: str, values: Any) -> dict[str, Any]:
        return {"colour": colour, "label": label, "values": values.tolist()}

    stacks = [[build_layer("neutral", "training examples", distribution.train_sizes)]]
    if balanced := distribution.balanced:
        kept = build_layer("c0", "kept", balanced.num_kept)
        stacks.append([kept, build_layer("c1", "augmented copies", balanced.num_copies)])
    return stacks


def build_client_table(distribution: LabelDistribution) -> ResultTable:
    """Build the label page's table of clients: sizes, number of classes, and the largest class."""
    balanced, validation = distribution.balanced, distribution.validation_sizes
    titles = ["training", *(["validation"] if validation is not None else []), "test"]
    titles += ["classes", "largest class", "its share"]
    titles += ["balanced", "of it augmented"] if balanced else []
    rows: list[list[Value]] = []
    for i, (name, counts) in enumerate(
        zip(distribution.clients, distribution.label_counts, strict=True)
    ):
        largest, n = int(counts.argmax()), int(counts.sum())
        share = f"{100 * counts[largest] / n:.0f} %" if n else "–"
        row: list[Value] = [name, n, *([int(validation[i])] if validation is not None else [])]
        row += [int(distribution.test_sizes[i]), int((counts > 0).sum())]
        row += [distribution.classes[largest], share]
        row += [int(balanced.train_sizes[i]), int(balanced.num_copies[i])] if balanced else []
        rows.append(row)
    return ResultTable.build(["client", *(Column(title, form="d") for title in titles)], rows)


def describe_sizes(distribution: LabelDistribution) -> str:
    """Describe in one sentence how many examples and classes a federation has."""
    train, classes = distribution.train_sizes, (distribution.label_counts > 0).sum(axis=1)
    sizes = distribution.validation_sizes
    validation = "" if sizes is None else f", {sizes.sum()} validation"
    return (
        f"{train.sum()} training{validation} and {distribution.test_sizes.sum()} test examples"
        f" of {len(distribution.classes)} classes; "
        f"{train.min()} to {train.max()} training examples and {classes.min()} to {classes.max()}"
        " classes per client."
    )


def describe_colors(distribution: LabelDistribution) -> str:
    """Explain the colours in the bars of client sizes."""
    if distribution.balanced is None:
        return "Grey: training examples."
    return (
        "Grey: the client's own training examples. Beside them: the set that FedReG balances to"
        f" {distribution.balanced.target_rule}. Blue: examples that are kept. Orange: augmented copies."
    )


def write_leaderboard_page(rankings: Sequence[Ranking], path: Path) -> None:
    """Write the page of a leaderboard as one HTML file."""
    write_atomically(path, render_leaderboard_page(rankings).encode())


def render_leaderboard_page(rankings: Sequence[Ranking]) -> str:
    """Render the page of a leaderboard."""
    entries = sum(len(ranking.rows) for ranking in rankings)
    settings = f"{len(rankings)} setting{'s' * (len(rankings) != 1)}"
    return render_page(
        "leaderboard.html",
        ("leaderboard.js", "elements.js"),
        {"measures": list(MEASURES), "settings": [describe_ranking(r) for r in rankings]},
        title="Leaderboard",
        summary=f"{entries} entries in {settings}, each with the hashes of its models, so that anyone can check it.",
    )


def describe_ranking(ranking: Ranking) -> dict[str, Any]:
    """Collect the page data of a leaderboard's setting: table, hashes and notes on entries."""
    table, entries = build_ranking_table(ranking), [row.entry for row in ranking.rows]
    hashes = (
        "\n".join(f"seed {seed}: {r.model_sha256}" for seed, r in e.seeds.items()) for e in entries
    )
    names = (str(row[0].value) for row in table.rows)
    return {
        "table": render_table_data(table),
        "hashes": dict(zip(names, hashes, strict=True)),
        "remarks": [f"{e.algorithm}: {e.remark}" for e in entries if e.remark],
    }
