"""Run all algorithms on a small net, and write into docs/reference/scaling.md how each one trains it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import heterophony as hp
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.core import client, meeting

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "scaling.md"
BEGIN, END = "<!-- fast: written by scripts/generate -->\n", "<!-- /fast -->\n"
WAYS = {
    ("groups",): "all passes in groups",
    ("direct", "groups"): "the first pass in groups, others direct",
    ("direct",): "all passes direct",
    ("autograd", "groups"): "some passes in groups, others with autograd",
    ("autograd", "direct"): "some passes direct, others with autograd",
    ("autograd", "direct", "groups"): "some passes in groups, some direct, others with autograd",
    ("autograd",): "autograd only: losses or steps of the algorithm's own",
    (): "no call of `client.fit`",
}


@contextmanager
def count_passes() -> Iterator[Counter[str]]:
    """Count the passes of training in the block: in groups, direct or with autograd."""
    found = Counter[str]()
    run_passes, run_directly = meeting.run_passes, client.Client._run_directly

    def count_group(passes: list[Any], *more: Any) -> None:
        found["groups" if len(passes) > 1 else "direct"] += len(passes)
        run_passes(passes, *more)

    def count_autograd(*given: Any) -> list[float] | None:
        losses = run_directly(*given)
        found["autograd"] += losses is None
        return losses

    with (
        patch.object(meeting, "run_passes", count_group),
        patch.object(client.Client, "_run_directly", count_autograd),
    ):
        yield found


def try_algorithm(name: str) -> tuple[str, ...]:
    """Run two short rounds on four clients; return the ways in which they trained."""
    federation = hp.federate("digits", clients=4, partition=hp.IID(), seed=0)
    training = hp.Training(epochs=1, batch=40, lr=0.05)
    with count_passes() as found:
        how: dict[str, Any] = {"training": training, "participation": 1.0, "progress": False}
        hp.run(name, federation, model="mlp", rounds=2, **how)
    return tuple(sorted(way for way in found if found[way]))


def table(names: list[str], try_one: Callable[[str], tuple[str, ...]] = try_algorithm) -> str:
    by_way = defaultdict[tuple[str, ...], list[str]](list)
    for name in names:
        by_way[try_one(name)].append(f"`{name}`")
    rows = [f"| {words} | {', '.join(by_way[way])} |" for way, words in WAYS.items() if by_way[way]]
    return "\n".join(["| | algorithms |", "|---|---|", *rows]) + "\n"


def write() -> None:
    text = PAGE.read_text()
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}{table(sorted(ALGORITHM_CLASSES))}{END}{tail}")


def read_ways() -> dict[str, str]:
    """Read from the page how every algorithm trains."""
    block = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    rows = re.findall(r"^\| ([^|]+) \| (`.*`) \|$", block, re.M)
    return {name: way for way, names in rows for name in re.findall(r"`(\w+)`", names)}
