"""One HTML file that shows runs to people: self-contained, safe against its data, for offline use."""

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
from ...core.files import write_atomically as write_file
from .page_data import build_page_data

SCRIPTS = (  # one script in the end; the first makes it strict
    "report.js",
    "elements.js",
    "drawing.js",
    "saving.js",
    "legend.js",
    "curves.js",
    "scatter.js",
    "tables.js",
    "statistics.js",
    "target.js",
    "clients.js",
    "participation.js",
    "audit.js",
    "devices.js",
    "label_distribution.js",
)


def write_report(runs: Sequence[Run], path: Path) -> None:
    """The page of these runs, as one file."""
    write_file(path, render_report(runs).encode())


def render_report(runs: Sequence[Run], live: bool = False) -> str:
    """The page as text: no request leaves it, and only its own script may run in it.

    A live page also asks where it came from, and nobody else, for news.
    """
    data = build_page_data(runs)
    html, css = (
        read_asset("report.html"),
        read_asset("page.css") + (read_asset("dashboard.css") if live else ""),
    )
    js = "\n".join(read_asset(name) for name in (*SCRIPTS, *(["live_updates.js"] if live else [])))
    return Template(html).substitute(
        title=escape(data["title"]),
        policy=build_security_policy(css, js, live),
        css=css,
        js=js,
        data=dump_safe_json(data),
    )


def build_security_policy(css: str, js: str, live: bool = False) -> str:
    """What the page may do, for the browser to hold it to."""
    own = f"default-src 'none'; style-src '{compute_csp_hash(css)}'; script-src '{compute_csp_hash(js)}'"
    return f"{own}; connect-src 'self'" if live else own


def dump_safe_json(data: Any) -> str:
    """Data that no script can be hidden in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def read_asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def compute_csp_hash(text: str) -> str:
    """The name under which a content security policy knows an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
