"""Settings: dataclass fields with a type, a range and a description, checked when they are set."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from math import inf
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from .errors import ConfigError, suggest_or_list, suggest_similar

T = TypeVar("T")
LARGEST_INTEGER = 1 << 63  # TOML's integers have 64 bits
FINITE = "a finite number"
TYPE_DESCRIPTIONS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    dict: "a table",
    list: "a list",
}


def setting(
    default: Any = dataclasses.MISSING,
    doc: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    infinite: bool = False,
) -> Any:
    """Define a dataclass field with a default, a description and a range.

    ``above`` and ``below`` exclude their limits; ``low`` and ``high`` include them. ``infinite``
    allows inf.
    """
    if default is dataclasses.MISSING or not doc or not isinstance(doc, str):
        raise ConfigError(
            "setting: give a default and a description, as in setting(1.0, 'strength of the pull')"
        )
    bounds = {"low": low, "high": high, "above": above, "below": below, "infinite": infinite}
    return dataclasses.field(default=default, metadata={"doc": doc, **bounds})


def list_settings(cls: type) -> list[dataclasses.Field[Any]]:
    """List the fields of a class that users may set, in order."""
    return [f for f in dataclasses.fields(cls) if f.init and not f.metadata.get("own")]


def construct(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build a dataclass from a user's settings; errors start with the section ``where`` and the key."""
    check_keys(values, [f.name for f in list_settings(cls)], f"{where}.")
    missing = [f.name for f in list_settings(cls) if is_required(f) and f.name not in values]
    if missing:
        raise ConfigError(f"{where}.{missing[0]}: missing")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None


def check_keys(values: Mapping[str, Any], known: Collection[str], prefix: str = "") -> None:
    """Raise ConfigError for an unknown key of a configuration; suggest the nearest known key."""
    for key in values:
        if key not in known:
            raise ConfigError(f"{prefix}{key}: unknown key{suggest_or_list(key, known)}")


def check_settings(instance: Any) -> None:
    """Raise ConfigError unless all settings of a dataclass have their types and ranges."""
    cls: type = type(instance)
    hints = resolve_hints(cls)
    for f in list_settings(cls):
        value, hint = getattr(instance, f.name), hints[f.name]
        if not is_of_type(value, hint):
            raise ConfigError(
                f"{f.name}: {describe_type(hint)}, not {value!r}{suggest_choice(value, hint)}"
            )
        if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
            raise ConfigError(
                f"{f.name}: must be below 2**63, not a number of {len(str(value))} digits"
            )
        bounds = describe_range(f)
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and not is_in_range(value, f)
        ):
            finite = "" if value - value == 0 or bounds == FINITE else f"{FINITE}, "
            raise ConfigError(f"{f.name}: must be {finite}{bounds}, not {value!r}")


class CheckedSettings:
    """Base of a dataclass that checks its settings when they are set."""

    def __post_init__(self) -> None:
        check_settings(self)


@cache
def resolve_hints(cls: type) -> dict[str, Any]:
    """Resolve the type hints of a settings class, once per class because jobs copy settings often."""
    return get_type_hints(cls)


def is_required(f: dataclasses.Field[Any]) -> bool:
    """Return True if a setting has no default."""
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def is_of_type(value: object, hint: Any) -> bool:
    """Return True if a setting's value has the type of its hint; a whole number is also a valid float."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    kinds = list_admitted_types(hint)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, (*kinds, int) if float in kinds else kinds)  # 1 is a valid float


def list_admitted_types(hint: Any) -> tuple[type, ...]:
    """List the types that a setting's type hint admits."""
    alternatives = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return tuple(get_origin(a) or a for a in alternatives)


def describe_type(hint: Any) -> str:
    """Describe the values that a setting may have: ``must be a whole number``."""
    if get_origin(hint) is Literal:
        return "must be one of " + ", ".join(map(str, get_args(hint)))
    kinds = [k for k in list_admitted_types(hint) if k is not NoneType]
    return "must be " + " or ".join(TYPE_DESCRIPTIONS.get(k, k.__name__) for k in kinds)


def suggest_choice(value: object, hint: Any) -> str:
    """Suggest the choice of a setting that is most similar to a wrong value."""
    is_choice = get_origin(hint) is Literal and isinstance(value, str)
    return suggest_similar(str(value), map(str, get_args(hint))) if is_choice else ""


def is_in_range(value: float, f: dataclasses.Field[Any]) -> bool:
    """Return True if a number is within the limits of its setting."""
    low, high, above, below = (f.metadata.get(k) for k in ("low", "high", "above", "below"))
    return (
        (value - value == 0 or (value == inf and bool(f.metadata.get("infinite"))))  # rejects NaN
        and (low is None or value >= low)
        and (high is None or value <= high)
        and (above is None or value > above)
        and (below is None or value < below)
    )


def describe_range(f: dataclasses.Field[Any]) -> str:
    """Describe a setting's range in words: ``at least 0``; without limits, ``a finite number``."""
    low, high, above, below = (f.metadata.get(k) for k in ("low", "high", "above", "below"))
    words = [f"at least {low:g}"] if low is not None else []
    words += [f"above {above:g}"] if above is not None else []
    words += [f"at most {high:g}"] if high is not None else []
    words += [f"below {below:g}"] if below is not None else []
    return " and ".join(words) or FINITE


def describe_settings(cls: type) -> list[dict[str, Any]]:
    """Describe the settings of a class: name, default, allowed values and description."""
    hints, rows = get_type_hints(cls), []
    for f in list_settings(cls):
        hint = hints[f.name]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        choices = ("true", "false") if hint is bool else choices
        default = None if f.default is dataclasses.MISSING else f.default
        plain = {str: "a string", dict: "a table"}.get(get_origin(hint) or hint)
        allowed = " | ".join(map(str, choices)) or plain or describe_range(f)
        about = f.metadata.get("doc", "")
        rows.append({"name": f.name, "default": default, "allowed": allowed, "about": about})
    return rows


def flatten_config(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the settings of a configuration with their dotted keys, as used by ``-c``."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flatten_config(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
