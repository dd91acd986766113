"""Keys of the configuration: short spellings, old names, and the JSON Schema that editors read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..algorithms import ALGORITHM_CLASSES, get_algorithm_class
from ..core.adapters import ADAPTERS
from ..core.errors import ConfigError, match_name, simplify_name, suggest_similar
from ..core.settings import list_admitted_types, list_settings
from ..data.partitions import PARTITIONS
from ..data.transforms import SKEWS
from ..population.attacks import Attack, Faults
from ..population.participation import Uniform
from ..protection import PROTECTION_CLASSES, get_protection_class
from .sections import SECTIONS, NetGroup, ParticipationSkew, TopSection

TOP_KEYS = tuple(f.name for f in list_settings(TopSection))
NAMED_SECTIONS = ("data", "model", "algorithm", "engine")
ROOTS = (*TOP_KEYS, *SECTIONS, "algorithm", "participation", "protection", "attack")
FIXED_MEANINGS = {"clients": "data.clients"}  # even if the algorithm has a setting with that name
RENAMED = {"local": "training", "devices": "speeds"}  # former names of sections
RENAMED_KEYS = {"device": "accelerator"}  # former keys of [engine]


def ignore_note(text: str) -> None:
    """Ignore a note about a short key's meaning: the default of ``note``."""


def rename_sections(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Rename a configuration's sections and keys that have former names."""
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
    """Return a dotted key under its current name, as in ``training.lr`` for ``local.lr``."""
    section, dot, rest = key.partition(".")
    if section == "engine":
        rest = RENAMED_KEYS.get(rest, rest)
    return f"{RENAMED.get(section, section)}{dot}{rest}" if dot else key


def restore_old_name(key: str) -> str:
    """Return a dotted key under the former name of its section."""
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
    default, of the algorithm that the pairs or ``raw`` choose. With ``trust``, an algorithm of
    another package may be imported.
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
            note(f"{given}: read as {full}={value}")
        out.append(f"{full}{sign}{value}")
    return out


def rename_pair(pair: str) -> str:
    """Return a ``key=value`` pair with the current name of the key."""
    key, sign, value = pair.partition("=")
    name = rename_key(key.strip())
    return pair if name == key.strip() else f"{name}{sign}{value}"


def expand_section(pair: str) -> str:
    """Expand ``data=fmnist`` to ``data.name=fmnist``, and ``partition=iid`` to ``data.partition.kind=iid``."""
    key, sign, value = (part.strip() for part in pair.partition("="))
    if sign and key in NAMED_SECTIONS and not value.startswith("{"):
        return f"{key}.name={value}"
    if sign and key in ("partition", "data.partition") and value.strip("\"'")[:1].isalpha():
        return f"data.partition.kind={value}"
    return pair


def expand_key(key: str, known: Sequence[str]) -> str:
    """Return the full dotted key of a short key; a key that starts with a section is returned unchanged."""
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
    """Return the parts of a dotted key in lower case without separators, for comparison."""
    return [simplify_name(part) for part in key.split(".")]


def find_choice(raw: Mapping[str, Any], overrides: Sequence[str], key: str, default: str) -> str:
    """Return the value of a configuration key as text: from the ``-c`` pairs, else from ``raw``."""
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
        known += list_class_keys("algorithm", find_algorithm_class(name, trust))
    for section, cls in SECTIONS.items():
        known += list_class_keys(section, cls)
    known += list_class_keys("participation", Uniform) + list_class_keys("participation", Faults)
    known += list_class_keys("participation.skew", ParticipationSkew)
    known += ["data.partition.kind", "data.feature_skew.kind"]
    known += list_class_keys(
        "data.partition", PARTITIONS.get(match_name(PARTITIONS, partition) or "")
    )
    return list(dict.fromkeys(known))


def find_algorithm_class(name: str, trust: bool) -> type | None:
    """Return an algorithm's class; None if it does not exist, which is reported later."""
    try:
        return get_algorithm_class(name, trust)
    except ConfigError:
        return None


def list_class_keys(section: str, cls: type | None) -> list[str]:
    """List the dotted keys of a section whose settings a class defines."""
    return [] if cls is None else [f"{section}.{f.name}" for f in list_settings(cls)]


DIALECT = "http://json-schema.org/draft-07/schema#"
SCHEMA_FILE = "heterophony.schema.json"  # written next to a settings file, which names the schema
JSON_TYPES = {
    int: "integer",
    float: "number",
    bool: "boolean",
    str: "string",
    list: "array",
    tuple: "array",
    dict: "object",
}
LIMITS = {
    "low": "minimum",
    "high": "maximum",
    "above": "exclusiveMinimum",
    "below": "exclusiveMaximum",
}
Schema = dict[str, Any]


def build_schema() -> Schema:
    """Build the JSON Schema of a whole configuration, for editors."""
    properties = make_class_schema(TopSection)
    properties |= {
        name: make_table_schema(make_class_schema(cls)) for name, cls in SECTIONS.items()
    }
    properties["data"]["properties"] |= {
        "partition": make_choice_schema("kind", PARTITIONS),
        "feature_skew": make_choice_schema("kind", SKEWS),
    }
    properties["model"]["properties"] |= {
        "adapter": make_choice_schema("kind", ADAPTERS),
        "group": {
            "type": "array",
            "items": make_table_schema(make_class_schema(NetGroup)),
            "minItems": 1,
        },
    }
    algorithms = {name: get_algorithm_class(name) for name in ALGORITHM_CLASSES}
    properties["algorithm"] = make_choice_schema("name", algorithms, open_ended=True)
    properties["participation"] = make_table_schema(
        make_class_schema(Uniform)
        | make_class_schema(Faults)
        | {
            "kind": {"enum": ["uniform", "poisson"]},
            "skew": make_table_schema(make_class_schema(ParticipationSkew)),
            "availability": {"type": ["number", "object"]},
        }
    )
    protections = {kind: get_protection_class(kind) for kind in PROTECTION_CLASSES}
    properties["protection"] = {"type": "array", "items": make_choice_schema("kind", protections)}
    properties["attack"] = make_table_schema(make_class_schema(Attack))
    return {"$schema": DIALECT, "title": "heterophony", **make_table_schema(properties)}


def make_table_schema(properties: Schema) -> Schema:
    """Make the JSON Schema of a TOML table that has only these keys."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def make_choice_schema(key: str, classes: Mapping[str, type], open_ended: bool = False) -> Schema:
    """Make the JSON Schema of a table in which one key names the class that defines the other keys.

    With ``open_ended``, that key may also name a user's class.
    """
    names: Schema = {"enum": list(classes)}
    rules = []
    for name, cls in classes.items():
        allowed = make_table_schema({key: {}, **make_class_schema(cls)})
        chosen = {"properties": {key: {"const": name}}, "required": [key]}
        rules.append({"if": chosen, "then": allowed})
    how: Schema = {"anyOf": [names, {"type": "string"}]} if open_ended else names
    return {"type": "object", "properties": {key: how}, "allOf": rules}


def make_class_schema(cls: type) -> Schema:
    """Make the JSON Schema of every setting of a class."""
    if not dataclasses.is_dataclass(cls):
        return {}
    hints = get_type_hints(cls)
    return {f.name: make_setting_schema(f, hints[f.name]) for f in list_settings(cls)}


def make_setting_schema(f: dataclasses.Field[Any], hint: Any) -> Schema:
    """Make the JSON Schema of one setting: type or choices, range, default and description."""
    about: Schema = {"description": f.metadata["doc"]} if f.metadata.get("doc") else {}
    if isinstance(f.default, bool | int | str) or (
        isinstance(f.default, float) and isfinite(f.default)
    ):
        about["default"] = f.default
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint)), **about}
    if hint is bool:
        return {"enum": [True, False], **about}
    kinds = [k for k in list_admitted_types(hint) if k is not NoneType]
    names = [JSON_TYPES[k] for k in kinds if k in JSON_TYPES]
    if names and len(names) == len(kinds):
        about["type"] = names if len(names) > 1 else names[0]
    for limit, word in LIMITS.items():
        if f.metadata.get(limit) is not None:
            about[word] = f.metadata[limit]
    return about


def find_setting_schema(key: str) -> Schema | None:
    """Find a setting's JSON Schema by its dotted key; None if it does not exist or depends on others."""
    found: Any = build_schema()
    for part in key.split("."):
        found = found.get("properties", {}).get(part)
        if found is None:
            return None
    return dict(found)
