"""Short keys of ``-c``: ``lr=0.1`` means ``local.lr=0.1``, as only one setting has that name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..algorithms import get_algorithm_class
from ..core.errors import ConfigError, match_name, simplify_name, suggest_similar
from ..core.settings import list_settings
from ..data.partitions import PARTITIONS
from ..population.faults import Faults
from ..population.participation import Uniform
from .sections import SECTIONS, ParticipationSkew, TopSection

TOP_KEYS = tuple(f.name for f in list_settings(TopSection))
NAMED_SECTIONS = ("data", "model", "algorithm", "engine")
ROOTS = (*TOP_KEYS, *SECTIONS, "algorithm", "participation", "protection", "attack")
FIXED_MEANINGS = {"clients": "data.clients"}  # also where a setting of the algorithm is called so


def ignore_note(text: str) -> None:
    """Tell nobody how a short key was understood."""


def expand_overrides(
    raw: Mapping[str, Any],
    overrides: Sequence[str],
    algorithms: Sequence[str] = (),
    note: Callable[[str], None] = ignore_note,
    trust: bool = False,
) -> list[str]:
    """Complete short keys of ``key=value`` pairs; ``note`` is told what each was taken for.

    ``raw`` is the configuration that they will change. ``algorithms`` are the names whose settings
    can be meant; by default, the one that the pairs or ``raw`` choose. With ``trust``, one from
    outside may be imported.
    """
    if not overrides:
        return []
    named = [expand_section(pair) for pair in overrides]
    names = algorithms or [find_choice(raw, named, "algorithm.name", "fedavg")]
    kind = find_choice(raw, named, "data.partition.kind", "dirichlet")
    known = list_keys(names, kind, trust)
    out = []
    for given, pair in zip(overrides, named, strict=True):
        key, sign, value = pair.partition("=")
        full = expand_key(key.strip(), known) if sign and key.strip() else key
        if full != given.partition("=")[0].strip():
            note(f"{given}: taken as {full}={value}")
        out.append(f"{full}{sign}{value}")
    return out


def expand_section(pair: str) -> str:
    """Return ``data.name=fmnist`` for ``data=fmnist``; for ``data.partition=iid``, its kind."""
    key, sign, value = (part.strip() for part in pair.partition("="))
    if sign and key in NAMED_SECTIONS and not value.startswith("{"):
        return f"{key}.name={value}"
    if sign and key in ("partition", "data.partition") and value.strip("\"'")[:1].isalpha():
        return f"data.partition.kind={value}"
    return pair


def expand_key(key: str, known: Sequence[str]) -> str:
    """Return the full key that a short one means; a key that begins with a section stays as it is."""
    if key.split(".")[0] in ROOTS:
        return key
    wanted = simplify_path(key)
    if len(wanted) == 1 and wanted[0] in FIXED_MEANINGS:
        return FIXED_MEANINGS[wanted[0]]
    found = [k for k in known if simplify_path(k)[-len(wanted) :] == wanted]
    if len(found) > 1:
        raise ConfigError(f"{key}: can be {' or '.join(found)}; write one of them")
    if not found and "." not in key:
        short = {k.rpartition(".")[2] for k in known}
        near = suggest_similar(key, TOP_KEYS) or suggest_similar(key, [*short, *ROOTS])
        raise ConfigError(
            f"{key}: unknown key{near or '; docs/reference/configuration.md lists all keys'}"
        )
    return found[0] if found else key


def simplify_path(key: str) -> list[str]:
    return [simplify_name(part) for part in key.split(".")]


def find_choice(raw: Mapping[str, Any], overrides: Sequence[str], key: str, default: str) -> str:
    """Find what the pairs or the configuration choose for a key."""
    pairs = (pair.partition("=") for pair in overrides)
    chosen = [value.strip().strip("\"'") for k, _, value in pairs if k.strip() == key]
    if chosen:
        return chosen[-1]
    value: Any = raw
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return default if value is None else str(value)


def list_keys(algorithms: Iterable[str], partition: str, trust: bool = False) -> list[str]:
    """List every key of a configuration with these algorithms and this kind of partition."""
    known = [*TOP_KEYS, "algorithm.name"]
    for name in algorithms:
        known += list_class_keys("algorithm", find_class(name, trust))
    for section, cls in SECTIONS.items():
        known += list_class_keys(section, cls)
    known += list_class_keys("participation", Uniform) + list_class_keys("participation", Faults)
    known += list_class_keys("participation.skew", ParticipationSkew)
    known += ["data.partition.kind", "data.feature_skew.kind"]
    known += list_class_keys(
        "data.partition", PARTITIONS.get(match_name(PARTITIONS, partition) or "")
    )
    return list(dict.fromkeys(known))


def find_class(name: str, trust: bool) -> type | None:
    """Return the class of an algorithm; None for a wrong name, which is reported later."""
    try:
        return get_algorithm_class(name, trust)
    except ConfigError:
        return None


def list_class_keys(section: str, cls: type | None) -> list[str]:
    return [] if cls is None else [f"{section}.{f.name}" for f in list_settings(cls)]
