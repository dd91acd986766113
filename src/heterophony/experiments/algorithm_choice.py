"""The algorithm of ``hp.run``: a name, a class or an instance, and its settings as keywords."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from inspect import signature
from typing import Any

from ..algorithms import (
    construct_algorithm,
    find_algorithm_name,
    get_algorithm_class,
    get_class_name,
)
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, suggest_or_list
from ..core.fields import list_settings
from ..core.training import Training
from .federate import federate


def choose_algorithm(
    algorithm: str | Algorithm | type[Algorithm],
    settings: Mapping[str, Any],
    keywords: Collection[str],
) -> tuple[Algorithm, str]:
    """Return the algorithm with these settings, and its name.

    ``keywords`` are those of the caller; they are suggested where a setting is misspelt.
    """
    if isinstance(algorithm, Algorithm):
        name = type(algorithm).__name__
        for key, value in settings.items():
            raise ConfigError(f"{key}: give it to the instance, as in {name}({key}={value!r})")
        return algorithm, get_class_name(type(algorithm))
    if isinstance(algorithm, str):
        name, cls = find_algorithm_name(algorithm), get_algorithm_class(algorithm, trust=True)
    elif isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        name, cls = get_class_name(algorithm), algorithm
    else:
        raise ConfigError(
            f"algorithm: must be a name, or a class or an instance of hp.Algorithm,"
            f" not {algorithm!r}"
        )
    check_keywords(settings, cls, keywords)
    return construct_algorithm(cls, settings), name


def check_keywords(
    settings: Mapping[str, Any], cls: type[Algorithm], keywords: Collection[str]
) -> None:
    """Refuse a keyword that is no setting of the algorithm, and say what is meant or where it goes."""
    known = [f.name for f in list_settings(cls)]
    for key, value in settings.items():
        if key in known:
            continue
        if key in (f.name for f in list_settings(Training)):
            raise ConfigError(f"{key}: write training=hp.Training({key}={value!r})")
        if key in signature(federate).parameters:
            raise ConfigError(f"{key}: give it to hp.federate, as in {key}={value!r}")
        near = suggest_or_list(key, [*known, *keywords])
        raise ConfigError(f"{key}: no keyword of hp.run and no setting of {cls.__name__}{near}")
