"""Where a method does worse than its paper says: which ones, by how much, and what was tried."""

from __future__ import annotations

from heterophony.algorithms import get_display_name

from .further_runs import FURTHER
from .numbers import Board, G, P, compare_with, is_one_model_for_all
from .plan import DATA, OWN_RATES, OWN_SETTINGS

BASELINES = ("centralized", "fedavg", "local")
HEAD = """\
## Where a method does worse than its paper says

Papers of one model for all say that its G is at least FedAvg's. Papers of personal models say that P is above the P of FedAvg, and of clients who train alone (*Local*). Listed is every
method whose mean is below one of these in some setting, with the paired difference in points; in bold where its 95 % interval excludes zero. Causes were not isolated.

"""


def write_behind(board: Board) -> str:
    """List every method that is behind, with what was tried."""
    lines = []
    for name in board.list_names():
        found = [] if name in BASELINES else list_deficits(board, name)
        if found:
            lines.append(
                f"- **{get_display_name(name)}**: {'; '.join(found)}. {describe_tried(name)}"
            )
    return HEAD + "\n".join(lines) + "\n" if lines else ""


def list_deficits(board: Board, name: str) -> list[str]:
    """Describe each setting in which a method is below what its paper compares it with."""
    out = []
    for other, measure in (("fedavg", P), ("local", P), ("fedavg", G)):
        below = []
        for key in board.complete:
            row = board.find_row(key, name)
            if is_one_model_for_all(row) != (measure == G):
                continue
            compared = compare_with(row, board.find_row(key, other), measure)
            if compared is not None and compared.interval is not None and compared.mean < 0:
                half = (compared.interval.high - compared.interval.low) / 2
                text = f"{100 * compared.mean:.1f}".replace("-", "−")
                text = f"**{text}**" if -compared.mean > half else text
                title = next(d.title for d in DATA if d.name == key[0])
                below.append(f"{text} ({title} {key[1]})")
        if below:
            out.append(f"{measure[0]} below {get_display_name(other)}'s by {', '.join(below)}")
    return [text.replace("by −", "by ").replace("**−", "**").replace(", −", ", ") for text in out]


def describe_tried(name: str) -> str:
    """Say what was tried: the search, and further runs if there were some."""
    if name in OWN_RATES:
        searched = "its own rates"
    elif name in OWN_SETTINGS:
        searched = f"three rates and two values of `{OWN_SETTINGS[name].partition('=')[0]}`"
    else:
        searched = "six rates"
    tried = f"Tried: {searched}"
    return f"{tried}; {FURTHER[name]}" if name in FURTHER else f"{tried}; nothing else."
