"""The settings that a sweep varies: lists of values and ranges, combined in a grid or at random."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..config.reading import parse_toml_value
from ..core.errors import ConfigError
from ..core.fields import list_settings
from ..core.randomness import make_generator
from ..core.training import Training

Combination = dict[str, Any]  # a value for every key
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE_PATTERN = re.compile(rf"\s*({NUMBER})\s*\.\.\s*({NUMBER})\s*")
DRAWN_DIGITS = 4  # of a number drawn from a range: enough to choose by, short enough to read
MAX_REPEATS = 100  # draws in a row that are all known already: there is nothing else to draw


@dataclass(frozen=True)
class ValueRange:
    """A range to draw from: whole numbers evenly, positive numbers by their logarithm."""

    low: float
    high: float
    whole: bool

    def list_ends(self) -> tuple[float | int, float | int]:
        """Return the lowest and the highest number."""
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    def draw(self, generator: np.random.Generator) -> float | int:
        """Draw one number."""
        if self.whole:
            return int(generator.integers(int(self.low), int(self.high), endpoint=True))
        if self.low > 0:
            drawn = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        else:
            drawn = generator.uniform(self.low, self.high)
        return min(max(float(f"{drawn:.{DRAWN_DIGITS}g}"), self.low), self.high)


Values = tuple[Any, ...] | ValueRange


def parse_values(text: str, where: str) -> Values:
    """Parse ``0.005,0.01,0.05`` or the range ``0.001..0.1``; errors begin with ``where``."""
    if ends := RANGE_PATTERN.fullmatch(text):
        low, high = float(ends[1]), float(ends[2])
        if not low < high:
            raise ConfigError(f"{where}: a range goes from low to high, as in 0.001..0.1")
        return ValueRange(low, high, all(re.fullmatch(r"[-+]?\d+", end) for end in ends.groups()))
    try:
        values = tomllib.loads(f"v = [{text}]")["v"]
    except tomllib.TOMLDecodeError:  # bare words
        values = [parse_toml_value(part.strip()) for part in text.split(",")]
    return check_values(values, where)


def check_values(values: Iterable[Any], where: str) -> tuple[Any, ...]:
    """Drop repeated values; refuse none at all."""
    distinct: list[Any] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    if not distinct or "" in distinct:
        raise ConfigError(f"{where}: must list values, as in local.lr=0.005,0.01,0.05")
    return tuple(distinct)


def combine(swept: Mapping[str, Values], draws: int | None, seed: int) -> list[Combination]:
    """Combine the values: all with all, or ``draws`` times at random.

    More draws with the same seed begin with the same combinations, so a sweep can be extended.
    """
    if draws is None:
        for key, values in swept.items():
            if isinstance(values, ValueRange):
                raise ConfigError(f"{key}: a range needs random draws: --random N, or random=N")
        lists: Sequence[Any] = list(swept.values())
        return [dict(zip(swept, values, strict=True)) for values in product(*lists)]
    generator, repeats = make_generator(seed, "sweep", sorted(swept)), 0
    drawn: list[Combination] = []
    while len(drawn) < draws and repeats < MAX_REPEATS:
        one = {key: draw_value(swept[key], generator) for key in sorted(swept)}
        one = {key: one[key] for key in swept}
        repeats = repeats + 1 if one in drawn else 0
        drawn += [] if repeats else [one]
    return drawn


def draw_value(values: Values, generator: np.random.Generator) -> Any:
    if isinstance(values, ValueRange):
        return values.draw(generator)
    return values[int(generator.integers(len(values)))]


def format_value(value: Any) -> str:
    """Format a value as TOML, on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{k} = {format_value(v)}' for k, v in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    return json.dumps(value) if isinstance(value, bool | str) else repr(value)


def shorten_keys(keys: Iterable[str]) -> dict[str, str]:
    """Shorten keys to their last words where these differ: ``lr`` for ``local.lr``."""
    keys = list(keys)
    last = [k.rpartition(".")[2] for k in keys]
    unclear = len(set(last)) < len(last) or "name" in last or "kind" in last
    return {k: k if unclear else short for k, short in zip(keys, last, strict=True)}


def is_training_key(key: str) -> bool:
    """Tell whether a key is of the section [local], as ``local.lr``: an algorithm is called local, too."""
    section, _, setting = key.strip().partition(".")
    return section == "local" and setting in [f.name for f in list_settings(Training)]
