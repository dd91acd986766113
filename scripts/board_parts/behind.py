"""Where a method does worse than its paper says: which ones, by how much, and which remedies were tried."""

from __future__ import annotations

from heterophony.algorithms import get_display_name

from .numbers import Board, G, P, compare_with, is_one_model_for_all
from .plan import DATA, OWN_RATES, OWN_SETTINGS, SEARCHED_MOMENTUM, SEEDS, TUNED_ALPHA

BASELINES = ("centralized", "fedavg", "local")
FACTOR = 4  # rounds of the longer runs over those of the board
HEAD = """\
## Where a method does worse than its paper says

Papers that train one model for all clients claim that its G is at least FedAvg's. Papers on personal models claim that P is above the P of FedAvg, and of clients that train alone (*Local*). The list has every
method whose mean is below one of these in some setting, with the paired difference in points, in bold where its 95 % interval excludes zero. G is judged only where all clients use one model. What was tried: {tried} Causes were not isolated.

"""
SEARCH_ONLY = "the search, and nothing else."
LONGER = """\
the search, and, where a
line gives its numbers, one longer run: digits, α = {alpha}, seed {seed}, {rounds} rounds instead of {before}, with the same settings; the mean of the last ten evaluations. There, FedAvg's G is
{fedavg} and Local's P is {local}. Nothing else was tried."""


def write_behind(board: Board) -> str:
    """List every method that is behind, with the remedies that were tried."""
    lines = []
    for name in list_behind(board):
        found = "; ".join(list_deficits(board, name))
        lines.append(f"- **{get_display_name(name)}**: {found}. {describe_tried(board, name)}")
    return write_head(board) + "\n".join(lines) + "\n" if lines else ""


def write_head(board: Board) -> str:
    if not {"fedavg", "local"} <= set(board.longer):
        return HEAD.format(tried=SEARCH_ONLY)
    rounds = DATA[0].rounds
    tried = LONGER.format(
        alpha=TUNED_ALPHA,
        seed=SEEDS[0],
        rounds=FACTOR * rounds,
        before=rounds,
        fedavg=percent(board.longer["fedavg"][G]),
        local=percent(board.longer["local"][P]),
    )
    return HEAD.format(tried=tried)


def list_behind(board: Board) -> list[str]:
    """List the algorithms that are below what their papers claim in some setting."""
    names = [name for name in board.list_names() if name not in BASELINES]
    return [name for name in names if list_deficits(board, name)]


def list_deficits(board: Board, name: str) -> list[str]:
    """Describe the settings in which a method is below the baselines of its paper."""
    out = []
    for other, measure in (("fedavg", P), ("local", P), ("fedavg", G)):
        found = [describe_deficit(board, key, name, other, measure) for key in board.complete]
        below = [text for text in found if text]
        if below:
            out.append(f"{measure[0]} below {get_display_name(other)}'s by {', '.join(below)}")
    return out


def describe_deficit(
    board: Board, key: tuple[str, str], name: str, other: str, measure: str
) -> str:
    """Describe by how much a method is below another one; empty if it is not."""
    row = board.find_row(key, name)
    if is_one_model_for_all(row) != (measure == G):
        return ""
    compared = compare_with(row, board.find_row(key, other), measure)
    if compared is None or compared.interval is None or compared.mean >= 0:
        return ""
    half = (compared.interval.high - compared.interval.low) / 2
    text = f"{-100 * compared.mean:.1f}"
    title = next(d.title for d in DATA if d.name == key[0])
    return f"{f'**{text}**' if -compared.mean > half else text} ({title} {key[1]})"


def describe_tried(board: Board, name: str) -> str:
    """Describe the remedies that were tried: the search, and a longer run if there was one."""
    if name in OWN_RATES:
        searched = "its own rates"
    elif name in SEARCHED_MOMENTUM:
        searched = "three rates, with momentum and without"
    elif name in OWN_SETTINGS:
        searched = f"three rates and two values of `{OWN_SETTINGS[name].partition('=')[0]}`"
    else:
        searched = "six rates"
    longer = board.longer.get(name)
    if longer is None:
        return f"Tried: {searched}."
    if "diverged" in longer:
        return f"Tried: {searched}. The longer run diverged."
    found = [f"{key[0]} is {percent(longer[key])}" for key in (P, G) if key in longer]
    numbers = found[1:] if longer.get(P) == longer.get(G) else found
    return f"Tried: {searched}. In the longer run {' and '.join(numbers)}."


def percent(share: float) -> str:
    return f"{100 * share:.1f}"
