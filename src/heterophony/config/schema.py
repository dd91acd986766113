"""A JSON Schema of the configuration, so that editors complete and check a file of settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import isfinite
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..algorithms import ALGORITHM_CLASSES, get_algorithm_class
from ..core.settings import list_admitted_types, list_settings
from ..data.partitions import PARTITIONS
from ..data.transforms import SKEWS
from ..population.attacks import Attack
from ..population.faults import Faults
from ..population.participation import Uniform
from ..protection import PROTECTION_CLASSES, get_protection_class
from .sections import SECTIONS, ParticipationSkew, TopSection

DIALECT = "http://json-schema.org/draft-07/schema#"
SCHEMA_FILE = "heterophony.schema.json"  # beside a file of settings that names it
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
    """Return the schema of a whole configuration."""
    properties = describe_class(TopSection)
    properties |= {name: make_table(describe_class(cls)) for name, cls in SECTIONS.items()}
    properties["data"]["properties"] |= {
        "partition": make_choice("kind", PARTITIONS),
        "feature_skew": make_choice("kind", SKEWS),
    }
    algorithms = {name: get_algorithm_class(name) for name in ALGORITHM_CLASSES}
    properties["algorithm"] = make_choice("name", algorithms, open_ended=True)
    properties["participation"] = make_table(
        describe_class(Uniform)
        | describe_class(Faults)
        | {
            "kind": {"enum": ["uniform", "poisson"]},
            "skew": make_table(describe_class(ParticipationSkew)),
            "availability": {"type": ["number", "object"]},
        }
    )
    protections = {kind: get_protection_class(kind) for kind in PROTECTION_CLASSES}
    properties["protection"] = {"type": "array", "items": make_choice("kind", protections)}
    properties["attack"] = make_table(describe_class(Attack))
    return {"$schema": DIALECT, "title": "heterophony", **make_table(properties)}


def make_table(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def make_choice(key: str, classes: Mapping[str, type], open_ended: bool = False) -> Schema:
    """Return the schema of a table whose other keys depend on the class that one key names.

    ``open_ended``: the key may also name a class of the user's own.
    """
    names: Schema = {"enum": list(classes)}
    rules = []
    for name, cls in classes.items():
        allowed = make_table({key: {}, **describe_class(cls)})
        chosen = {"properties": {key: {"const": name}}, "required": [key]}
        rules.append({"if": chosen, "then": allowed})
    how: Schema = {"anyOf": [names, {"type": "string"}]} if open_ended else names
    return {"type": "object", "properties": {key: how}, "allOf": rules}


def describe_class(cls: type) -> Schema:
    """Return the schema of every setting of a class."""
    if not dataclasses.is_dataclass(cls):
        return {}
    hints = get_type_hints(cls)
    return {f.name: describe_setting(f, hints[f.name]) for f in list_settings(cls)}


def describe_setting(f: dataclasses.Field[Any], hint: Any) -> Schema:
    """Return the schema of one setting: its type or choices, range, default and description."""
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


def find_setting(key: str) -> Schema | None:
    """Return the schema of one setting by its dotted key; None if there is none, or it depends."""
    found: Any = build_schema()
    for part in key.split("."):
        found = found.get("properties", {}).get(part)
        if found is None:
            return None
    return dict(found)
