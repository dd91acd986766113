"""Samplers of a search: propose the next settings to try, from the settings tried so far.

A proposal depends on the seed and on finished batches only, never on which trial ends first: a search
that is killed and continued, or that has more workers, proposes the same settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from ..core.errors import ConfigError
from ..core.randomness import derive_seed, make_generator
from .swept_settings import (
    DRAWN_DIGITS,
    MAX_REPEATS,
    Combination,
    ValueRange,
    Values,
    draw_value,
)

SamplerName = Literal["tpe", "random", "grid"]
SAMPLERS: tuple[SamplerName, ...] = ("tpe", "random", "grid")
BATCH = 4  # trials that are proposed together; fixed, so that workers do not change proposals
STARTUP_TRIALS = 8  # random ones, before TPE has something to learn from


@dataclass(frozen=True)
class Tried:
    """Settings that were tried, and their validation accuracy; None if the trial did not finish."""

    settings: Combination
    accuracy: float | None


def propose_batch(
    sampler: SamplerName,
    swept: Mapping[str, Values],
    tried: Sequence[Tried],
    count: int,
    seed: int,
) -> list[Combination]:
    """Propose up to ``count`` settings that were not tried yet; fewer if there are no others."""
    if sampler == "grid":
        return propose_from_grid(swept, tried, count, seed)
    known = [t.settings for t in tried]
    if sampler == "random" or len(tried) < STARTUP_TRIALS:
        generator = make_generator(seed, "tune", sorted(swept), len(tried))
        return draw_new(lambda: draw_settings(swept, generator), known, count)
    return propose_by_tpe(swept, tried, count, seed)


def draw_settings(swept: Mapping[str, Values], generator: Any) -> Combination:
    """Draw a value for every key; the order of the keys does not matter."""
    drawn = {key: draw_value(swept[key], generator) for key in sorted(swept)}
    return {key: drawn[key] for key in swept}


def draw_new(
    draw: Callable[[], Combination], known: Sequence[Combination], count: int
) -> list[Combination]:
    """Draw settings that differ from the known ones and from each other; give up after many repeats."""
    new: list[Combination] = []
    repeats = 0
    while len(new) < count and repeats < MAX_REPEATS:
        one = draw()
        repeats = repeats + 1 if one in known or one in new else 0
        new += [] if repeats else [one]
    return new


def propose_from_grid(
    swept: Mapping[str, Values], tried: Sequence[Tried], count: int, seed: int
) -> list[Combination]:
    """Propose the next combinations of the grid, in an order that the seed decides."""
    grid = list_grid(swept)
    order = make_generator(seed, "tune", "grid", sorted(swept)).permutation(len(grid))
    known = [t.settings for t in tried]
    return [grid[i] for i in order if grid[i] not in known][:count]


def list_grid(swept: Mapping[str, Values]) -> list[Combination]:
    """List all combinations of values; a range has none."""
    for key, values in swept.items():
        if isinstance(values, ValueRange):
            raise ConfigError(f"{key}: a range has no grid; list its values, or use --sampler tpe")
    lists: list[Any] = list(swept.values())
    return [dict(zip(swept, values, strict=True)) for values in product(*lists)]


# TPE --------------------------------------------------------------------------------------------


def propose_by_tpe(
    swept: Mapping[str, Values], tried: Sequence[Tried], count: int, seed: int
) -> list[Combination]:
    """Propose settings by Optuna's tree-structured Parzen estimator."""
    optuna = import_optuna()
    space = {key: make_distribution(optuna, swept[key]) for key in sorted(swept)}
    sampler = optuna.samplers.TPESampler(
        seed=derive_seed(seed, "tune", sorted(swept), len(tried)) % 2**32,
        n_startup_trials=0,
        constant_liar=True,  # trials of one batch keep away from each other
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for one in tried:
        study.add_trial(make_known_trial(optuna, swept, space, one))

    def ask() -> Combination:
        parameters = study.ask(fixed_distributions=space).params
        return {key: decode_value(swept[key], parameters[key]) for key in swept}

    return draw_new(ask, [t.settings for t in tried], count)


def import_optuna() -> Any:
    """Import Optuna, which is an extra."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            "the sampler tpe needs Optuna; install it with pip install 'heterophony[tune]', or choose"
            " random or grid"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def make_distribution(optuna: Any, values: Values) -> Any:
    """Describe values to Optuna; those of a list by their place in it."""
    if not isinstance(values, ValueRange):
        return optuna.distributions.CategoricalDistribution(tuple(range(len(values))))
    if values.whole:
        return optuna.distributions.IntDistribution(int(values.low), int(values.high))
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.low > 0)


def make_known_trial(
    optuna: Any, swept: Mapping[str, Values], space: Mapping[str, Any], one: Tried
) -> Any:
    """Tell Optuna a trial; one without a result counts as worse than all others."""
    states = optuna.trial.TrialState
    return optuna.trial.create_trial(
        state=states.PRUNED if one.accuracy is None else states.COMPLETE,
        value=one.accuracy,
        params={key: encode_value(swept[key], one.settings[key]) for key in space},
        distributions=dict(space),
    )


def encode_value(values: Values, value: Any) -> Any:
    return value if isinstance(values, ValueRange) else values.index(value)


def decode_value(values: Values, parameter: Any) -> Any:
    """Return the value that Optuna chose, with as many digits as random draws have."""
    if not isinstance(values, ValueRange):
        return values[parameter]
    if values.whole:
        return int(parameter)
    return min(max(float(f"{parameter:.{DRAWN_DIGITS}g}"), values.low), values.high)


def describe_space(swept: Mapping[str, Values]) -> dict[str, Any]:
    """Describe what is searched as plain data, as JSON gives it back."""
    plain = {
        key: {"low": v.low, "high": v.high, "whole": v.whole}
        if isinstance(v, ValueRange)
        else list(v)
        for key, v in swept.items()
    }
    return dict(json.loads(json.dumps(plain)))
