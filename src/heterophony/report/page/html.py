"""The HTML page of runs: one self-contained file that works offline and is safe against its data."""

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

from ...analysis.runs import Run
from ...core.files import write_atomically
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
    "devices.js",
    "gantt.js",
)
RUN_LIST_SCRIPTS = ("run_list.js", "elements.js", "run_rows.js", "sparkline.js", "devices.js")


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write the page of these runs as one file."""
    write_atomically(path, render_report(runs).encode())


def render_report(runs: Sequence[Run], live: bool = False) -> str:
    """Render the page of these runs as text; a live page also follows the dashboard."""
    data = build_page_data(runs)
    return render_page("report.html", REPORT_SCRIPTS, data, live, title=data["title"])


def render_page(
    template: str, scripts: Sequence[str], data: Any, live: bool = False, **texts: str
) -> str:
    """Fill a template with style, script, data and escaped texts.

    The page sends no request, and the browser runs no script in it but its own. A live page may
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
    """Allow exactly this style and this script, and a live page its own server."""
    own = f"default-src 'none'; style-src '{compute_csp_hash(css)}'; script-src '{compute_csp_hash(js)}'"
    return f"{own}; connect-src 'self'" if live else own


def dump_safe_json(data: Any) -> str:
    """Serialise data so that it cannot close the script element that holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def read_asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def compute_csp_hash(text: str) -> str:
    """Hash an inline script or style as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
