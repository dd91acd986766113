"""A page for every algorithm: rule, traffic, settings, tested identities, curves, cost."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class, get_display_name
from heterophony.core.algorithm import Algorithm
from heterophony.papers.leaderboard import Entry, RankedEntry, build_ranked_entry, read_leaderboard
from heterophony.tools.tables import list_algorithm_rows

from .curve_drawing import draw_curves
from .reference import write_default, write_table

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs" / "rules"  # NAME.md: the formula of an algorithm; a page needs none
BOARD = ROOT / "results" / "leaderboard"
DRAWN = "digits"  # the setting of the leaderboard whose curves are drawn
TESTS = ROOT / "tests" / "algorithms"
NOTATION = r"""*Notation.* $\theta$: the model, $b$: its base, $h$: its head; $f_k$: the loss of client $k$ on its mini-batches;
$S_t$: the $m$ clients of round $t$, of $N$ in all; $n_k$: training examples of client $k$; $p_k$: its share $n_k / \sum_{j \in S_t} n_j$
(with `aggregation.weights = "uniform"`, $1/m$); $E$: local epochs; $\eta$: the learning rate.
"""


def write_algorithm_pages() -> dict[str, str]:
    """Write the page of every algorithm, by its name."""
    return {row["name"]: write_algorithm_page(row) for row in list_algorithm_rows()}


def write_algorithm_page(row: dict[str, Any]) -> str:
    name = row["name"]
    cls = get_algorithm_class(name)
    rule = RULES / f"{name}.md"
    parts = [
        f"# {get_display_name(name)}\n\n{row['about']}\n\n*{row['paper']}.* In Python"
        f" `hp.{cls.__name__}`, on the command line `{name}`; the code is"
        f" [one file](../../../src/heterophony/algorithms/{name}.py).\n",
        f"## The rule\n\n{rule.read_text()}\n{NOTATION}" if rule.exists() else "",
        write_travel(row, cls),
        write_settings(row, cls),
        write_identities(name),
        write_measurements(name),
    ]
    return "\n".join(part for part in parts if part)


def write_travel(row: dict[str, Any], cls: type[Algorithm]) -> str:
    """Write which parameters are sent, and how many bytes."""
    words = {
        "nothing": "No parameter is personal: all are shared.",
        "everything": "All parameters are personal.",
        "parts of layers": "Some parameters of some layers are personal; they depend on the network.",
    }
    personal = words.get(
        row["stays"], f"Personal parameters, which never leave a client: `{row['stays']}`."
    )
    notes = [personal]
    if cls.pooled:
        notes.append("There is no federation: one model is trained on the data of all clients.")
    if cls.everybody:
        notes.append("All clients train in every round.")
    if not cls.common:
        notes.append("Clients have no model in common, so there is no G.")
    amount = (
        f"A client receives {row['bytes_down']:.4f} and sends {row['bytes_up']:.4f} of FedAvg's"
        " bytes in a round (`convnet` on CIFAR-10 shapes, default settings)."
    )
    return f"## What is sent\n\n{' '.join(notes)} {amount}\n"


def write_settings(row: dict[str, Any], cls: type[Algorithm]) -> str:
    """Write the settings, the refused ones, and the command that starts a run."""
    rows = [
        (f"`{s['name']}`", write_default(s["default"]), s["allowed"], s["about"])
        for s in row["settings"]
    ]
    table = write_table(["setting", "default", "allowed", "meaning"], rows) if rows else "None.\n"
    refused = [o for o in Algorithm.optimizers if o not in cls.optimizers]
    refused += [] if cls.allows_clipping else ["clip_norm"]
    notes = [f"Refused in `[training]`: {', '.join(refused)}."] if refused else []
    notes += ["For classification only."] if cls.needs_classes else []
    words = [row["name"], *(f"-c algorithm.{s['name']}={s['default']}" for s in row["settings"][:1]
             if isinstance(s["default"], str | float | int) and not isinstance(s["default"], bool))]  # fmt: skip
    command = f"```sh\nheterophony run {' '.join(words)}\n```\n"
    return "\n".join(["## Settings\n", table, *(f"{n}\n" for n in notes), command])


# Identities -------------------------------------------------------------------------------------


def write_identities(name: str) -> str:
    """List the tests of an algorithm that state an identity, as sentences."""
    found = [test for test in read_test_names() if concerns(test, name)]
    if not found:
        return ""
    lines = "\n".join(f"- {write_sentence(test)}" for test in found)
    return (
        "## Tested\n\nEach line is the name of a test that compares bits, counts or exact numbers:"
        f" in `tests/algorithms/test_limits.py` or `tests/algorithms/test_{name}.py`.\n\n{lines}\n"
        if (TESTS / f"test_{name}.py").exists() else
        "## Tested\n\nEach line is the name of a test in `tests/algorithms/test_limits.py` that"
        f" compares bits, counts or exact numbers.\n\n{lines}\n"
    )  # fmt: skip


@cache
def read_test_names() -> tuple[tuple[str, str], ...]:
    """Read the file and name of every test of algorithms."""
    return tuple(
        (file.stem, node.name.removeprefix("test_"))
        for file in sorted(TESTS.glob("test_*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def concerns(test: tuple[str, str], name: str) -> bool:
    file, words = test
    if file == f"test_{name}":
        return True
    return file == "test_limits" and f"_{name}_" in f"_{words}_"


def write_sentence(test: tuple[str, str]) -> str:
    """Write a test's name as a sentence with the names that papers use."""
    words = f" {test[1].replace('_', ' ')} "
    for name in sorted(ALGORITHM_CLASSES, key=len, reverse=True):
        shown = get_display_name(name)
        words = re.sub(rf" {name.replace('_', ' ')}(s?) ", rf" {shown}\1 ", words)
    for wrong, right in ((" g ", " G "), (" p ", " P "), (" batch norm", " BatchNorm")):
        words = words.replace(wrong, right)
    words = words.strip()
    return f"{words[:1].upper()}{words[1:]}."


# Measurements -----------------------------------------------------------------------------------


@cache
def read_entries(board: Path) -> tuple[Entry, ...]:
    return tuple(read_leaderboard(board)) if board.exists() else ()


def write_measurements(name: str) -> str:
    """Write the numbers of the leaderboard, and draw the curves."""
    curves, parts = read_curves(BOARD), []
    if name in curves:
        parts.append(
            "Digits, 20 clients, Dirichlet(0.5), all clients in each round, seeds 0 to 4: the"
            " mean as a line, from the lowest to the highest seed as a band. The"
            " [comparison](../comparison-digits.md) has the settings, and compares all"
            f" methods.\n\n{draw_curves(name, curves)}\n"
        )
    own = [e for e in read_entries(BOARD) if e.config["algorithm"]["name"] == name]
    if own:
        titles = [
            "setting",
            "P %",
            "G %",
            "P of the worst tenth %",
            "MB, both ways",
            "work, × FedAvg",
        ]
        parts.append(
            write_table(titles, [list_cells(build_ranked_entry(entry, {})) for entry in own])
        )
        parts.append(
            "Means with half of the 95 % interval over five seeds; the"
            " [comparison](../comparison.md) says how they were tuned and measured.\n"
        )
    return "## Measured\n\n" + "\n".join(parts) if parts else ""


@cache
def read_curves(board: Path) -> dict[str, dict[str, Any]]:
    """Read the curves of all algorithms in one setting: by measure the rounds, and a curve per seed, in %."""
    out: dict[str, dict[str, Any]] = {}
    for entry in read_entries(board):
        name = entry.algorithm_name
        if entry.folder.name != f"{DRAWN}-{name}":
            continue
        seeds = [seed.curves for seed in entry.seeds.values()]
        out[name] = {"rounds": {m: [t for t, _ in curve] for m, curve in seeds[0].items()}}
        for measure in seeds[0]:
            out[name][measure] = [[100 * v for _, v in curves[measure]] for curves in seeds]
    return out


def list_cells(row: RankedEntry) -> tuple[str, ...]:
    """List the cells of one setting."""
    travelled = row.means["MB_up"] + row.means["MB_down"]
    measures = ("P.last10", "G.last10", "worst10")
    work = f"{row.means['work']:.2f}" if "work" in row.means else "–"
    return (row.entry.setting, *(percent(row, m) for m in measures), f"{travelled:.1f}", work)


def percent(row: RankedEntry, measure: str) -> str:
    """Format a mean with half of its 95 % interval."""
    if measure not in row.means:
        return "–"
    found = row.intervals[measure]
    half = f" ± {50 * (found[1] - found[0]):.1f}" if found else ""
    return f"{100 * row.means[measure]:.1f}{half}"
