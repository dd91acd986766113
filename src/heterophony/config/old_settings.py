"""Settings of earlier versions: how they are read, and what keeps runs of before continuable."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, simplify_name
from ..population.faults import Faults
from ..population.participation import Uniform
from .sections import DataSection, parse_participation

# Settings that are newer than the first runs, with what runs did before them. They are left out of
# a run's file at that value, so that the file is the same as of a run begun before.
VALUES_BEFORE: dict[tuple[str, str], Any] = {
    ("fedreg", "phases"): "sequential",
    ("fedreg", "own_phase"): "own_head",
    ("fedreg", "magnitude"): 1.0,
    ("fedreg", "proximal"): 0.0,
    ("fedreg", "dynamic"): 0.0,
    ("local", "clients"): "all",
}
# settings that every file written by a run has, and hardly a file written by hand
ALWAYS_WRITTEN = (
    *(("model", "buffers"), ("local", "drop_last"), ("local", "momentum_state")),
    *(("aggregation", "weights"), ("evaluation", "every")),
)


def describe_algorithm(name: str, algorithm: Algorithm) -> dict[str, Any]:
    """Return the section [algorithm] of a run's file."""
    settings = asdict(algorithm)
    kept = {k: v for k, v in settings.items() if VALUES_BEFORE.get((name, k), ...) != v}
    return {"name": name, **kept}


def translate_old_settings(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration with the settings of today in place of those that are gone."""
    algorithm = raw.get("algorithm")
    if not isinstance(algorithm, Mapping):
        return raw
    name = simplify_name(str(algorithm.get("name")))
    if name == "pfakd" and "lr_decay" in algorithm:
        return replace_learning_rate_decay(raw, algorithm)
    if not all(key in (raw.get(section) or {}) for section, key in ALWAYS_WRITTEN):
        return raw
    if name == "local":
        return {**raw, "algorithm": {"clients": "all", **algorithm}}
    epochs, own = raw["local"].get("epochs"), algorithm.get("own_epochs")
    if name == "feddecomp" and own and epochs is not None and own > epochs:
        return {**raw, "algorithm": {**algorithm, "own_epochs": epochs}}  # as many as there were
    return raw


def parse_settings_text(text: str) -> Mapping[str, Any]:
    """Parse the file of a run, of this version or an earlier one; of a damaged text, nothing."""
    try:
        return translate_old_settings(tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        return {}


def replace_learning_rate_decay(
    raw: Mapping[str, Any], algorithm: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Replace PFAKD's decay by the schedule of all algorithms, if both are the same."""
    rest, decay = {k: v for k, v in algorithm.items() if k != "lr_decay"}, algorithm["lr_decay"]
    if decay == 1:
        return {**raw, "algorithm": rest}
    local = raw.get("local") or {}
    if not has_everybody_in_every_round(raw) or not local or "schedule" in local:
        raise ConfigError(
            f"algorithm.lr_decay: is gone; set local.schedule = 'exponential' and local.decay_factor"
            f" = {decay}, which count the rounds of the run and not those of the client"
        )
    schedule = {"schedule": "exponential", "decay_factor": decay}
    return {**raw, "algorithm": rest, "local": {**local, **schedule}}


def has_everybody_in_every_round(raw: Mapping[str, Any]) -> bool:
    """Tell whether every client trains in every round, so that both count the same rounds."""
    rule, faults = parse_participation(raw.get("participation") or {})
    clients = (raw.get("data") or {}).get("clients", DataSection().clients)
    once = isinstance(rule, Uniform) and not rule.replacement
    return once and rule.compute_sample_size(clients) == clients and faults == Faults()
