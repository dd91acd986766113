"""Keys of ``-c``: short ones (``lr`` for ``training.lr``), and names that sections had before."""

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
FIXED_MEANINGS = {"clients": "data.clients"}  # even if the algorithm has a setting of that name
RENAMED = {"local": "training", "devices": "speeds"}  # sections by the names they had before
RENAMED_KEYS = {"device": "accelerator"}  # of [engine]


def ignore_note(text: str) -> None:
    """Ignore a note about the meaning of a short key."""


def rename_sections(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with today's names of sections and keys; both names are accepted."""
    out = dict[str, Any]()
    for key, value in raw.items():
        name = RENAMED.get(key, key)
        if name in out and isinstance(out[name], dict) and isinstance(value, dict):
            value = {**out[name], **value}
        out[name] = value
    if isinstance(engine := out.get("engine"), dict):
        out["engine"] = {RENAMED_KEYS.get(k, k): v for k, v in engine.items()}
    return out


def rename_key(key: str) -> str:
    """Return a dotted key under today's names, as in ``training.lr`` for ``local.lr``."""
    section, dot, rest = key.partition(".")
    if section == "engine":
        rest = RENAMED_KEYS.get(rest, rest)
    return f"{RENAMED.get(section, section)}{dot}{rest}" if dot else key


def restore_old_name(key: str) -> str:
    """Return a dotted key under the name that its section had before."""
    section, dot, rest = key.partition(".")
    old = {new: old for old, new in RENAMED.items()}
    keys = {new: old for old, new in RENAMED_KEYS.items()}
    return (
        f"{old.get(section, section)}{dot}{keys.get(rest, rest) if section == 'engine' else rest}"
    )


def expand_overrides(
    raw: Mapping[str, Any],
    overrides: Sequence[str],
    algorithms: Sequence[str] = (),
    note: Callable[[str], None] = ignore_note,
    trust: bool = False,
) -> list[str]:
    """Expand the short keys of ``key=value`` pairs; call ``note`` with the meaning of each.

    ``raw`` is the configuration to change. Short keys may name settings of ``algorithms``; by
    default, of the one that the pairs or ``raw`` choose. With ``trust``, an algorithm of another
    package may be imported.
    """
    if not overrides:
        return []
    named = [rename_pair(expand_section(pair)) for pair in overrides]
    names = algorithms or [find_choice(raw, named, "algorithm.name", "fedavg")]
    kind = find_choice(raw, named, "data.partition.kind", "dirichlet")
    known = list_keys(names, kind, trust)
    out = []
    for given, pair in zip(overrides, named, strict=True):
        key, sign, value = pair.partition("=")
        full = expand_key(key.strip(), known) if sign and key.strip() else key
        if full != rename_key(given.partition("=")[0].strip()):
            note(f"{given}: taken as {full}={value}")
        out.append(f"{full}{sign}{value}")
    return out


def rename_pair(pair: str) -> str:
    """Return a ``key=value`` pair with today's name of the key."""
    key, sign, value = pair.partition("=")
    name = rename_key(key.strip())
    return pair if name == key.strip() else f"{name}{sign}{value}"


def expand_section(pair: str) -> str:
    """Return ``data.name=fmnist`` for ``data=fmnist``; for ``data.partition=iid``, its kind."""
    key, sign, value = (part.strip() for part in pair.partition("="))
    if sign and key in NAMED_SECTIONS and not value.startswith("{"):
        return f"{key}.name={value}"
    if sign and key in ("partition", "data.partition") and value.strip("\"'")[:1].isalpha():
        return f"data.partition.kind={value}"
    return pair


def expand_key(key: str, known: Sequence[str]) -> str:
    """Return the full key of a short one; leave a key that begins with a section as it is."""
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
    """Return the value of a key, as text: that of the pairs, else of the configuration."""
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
    """Return the class of an algorithm; None if there is none, which is reported later."""
    try:
        return get_algorithm_class(name, trust)
    except ConfigError:
        return None


def list_class_keys(section: str, cls: type | None) -> list[str]:
    return [] if cls is None else [f"{section}.{f.name}" for f in list_settings(cls)]
