"""Write docs/reference/algorithms.md, and the table that `heterophony list algorithms` reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from heterophony.algorithms import get_algorithm_class
from heterophony.cli.lists import format_setting
from heterophony.core.algorithm import Algorithm
from heterophony.tools.tables import list_algorithm_rows, write_algorithm_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "algorithms.md"
HEAD = """\
# Algorithms

Written by `scripts/generate` from the code; `heterophony list algorithms` shows the same.
*Personal* parameters never leave a client. *Bytes* are what one client receives (down) and sends (up) in a round, relative to
FedAvg, measured with `convnet` on CIFAR-10 shapes and default settings. The client is alone there; with other clients, `apple` receives one more model
for each of them that has taken part, and `fedfomo` up to `downloads` more. `ifca` receives all of its models and sends one. `fedkd` sends at most this, because it compresses.

The README lists the algorithms [by kind](../../README.md#algorithms). Clustered methods are `ifca` and `cfl`: they train a model per cluster of clients.

| name | what it does | paper | personal | bytes down | bytes up |
|---|---|---|---|---|---|
"""


def row_start(name: str) -> str:
    return f"| [`{name}`](#{name}) |"


def list_names(page: str) -> list[str]:
    """List the algorithms that have a row on a page."""
    return re.findall(r"^\| \[`(\w+)`\]", page, re.M)


def row(a: dict[str, Any]) -> str:
    personal = a["stays"].replace("*", "\\*")
    cells = [a["about"], a["paper"], personal, f"{a['bytes_down']:.4f}", f"{a['bytes_up']:.4f}"]
    return f"{row_start(a['name'])} {' | '.join(cells)} |"


def section(a: dict[str, Any]) -> str:
    lines = [f"- `{format_setting(s)}`: {s['about']}" for s in a["settings"]]
    lines = [*(lines or ["No settings."]), *limits(a["name"])]
    return "\n".join([f"\n### {a['name']}", a["about"], "", *lines, ""])


def limits(name: str) -> list[str]:
    """Return the line that lists the settings of [training] that the algorithm refuses."""
    cls = get_algorithm_class(name)
    refused = [o for o in Algorithm.optimizers if o not in cls.optimizers]
    refused += [] if cls.allows_clipping else ["clip_norm"]
    return ["", f"Refused in `[training]`: {', '.join(refused)}."] if refused else []


def page() -> str:
    rows = list_algorithm_rows()
    table = "\n".join(map(row, rows))
    return f"{HEAD}{table}\n\n## Settings\n" + "".join(map(section, rows))


def write() -> None:
    write_algorithm_table()
    PAGE.write_text(page())
