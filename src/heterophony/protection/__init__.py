"""The registry of protections: one line for each class, which configurations name by ``kind``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError, find_name
from ..core.settings import construct, list_settings

if TYPE_CHECKING:
    from .base import Protection


PROTECTION_CLASSES = {  # the kind that users write: its module and class
    "client_dp": "client_dp.ClientDP",
    "example_dp": "private_client.ExampleDP",
    "krum": "robust.Krum",
    "masked_sum": "masked_sum.MaskedSum",
    "median": "robust.Median",
    "norm_bound": "robust.NormBound",
    "quantize": "compression.Quantize",
    "top_k": "compression.TopK",
    "trimmed_mean": "robust.TrimmedMean",
}


def get_protection_class(kind: str) -> type[Protection]:
    """Return the class of a protection, given the ``kind`` that configurations use."""
    name = find_name(PROTECTION_CLASSES, kind, "protection.kind")
    module, class_name = PROTECTION_CLASSES[name].split(".")
    cls: type[Protection] = getattr(import_module(f".{module}", __name__), class_name)
    return cls


def get_kind(protection: Protection) -> str:
    """Return the ``kind`` of a protection, as configurations name it."""
    cls = type(protection)
    path = f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
    return next((k for k, p in PROTECTION_CLASSES.items() if p == path), cls.__name__)


def build_protections(given: object) -> tuple[Protection, ...]:
    """Build the protections of a configuration from its list of tables with a ``kind``."""
    if isinstance(given, str):  # -c protection=median
        given = [{"kind": kind.strip()} for kind in given.split(",")]
    if not isinstance(given, Sequence) or not all(isinstance(v, Mapping) for v in given):
        raise ConfigError(
            "protection: must be a list of tables, as in [[protection]] with kind = 'top_k'"
        )
    return tuple(build_protection(table) for table in given)


def build_protection(table: Mapping[str, Any]) -> Protection:
    """Build one protection from its table in a configuration."""
    settings = dict(table)
    kind = settings.pop("kind", None)
    if kind is None:
        raise ConfigError(f"protection.kind: missing; choose {', '.join(PROTECTION_CLASSES)}")
    cls = get_protection_class(str(kind))
    return construct(cls, settings, f"protection.{find_name(PROTECTION_CLASSES, str(kind), '')}")


def describe_protection(protection: Protection) -> dict[str, Any]:
    """Return a protection's table for a configuration, without None, which TOML cannot express."""
    values = {f.name: getattr(protection, f.name) for f in list_settings(type(protection))}
    return {"kind": get_kind(protection), **{k: v for k, v in values.items() if v is not None}}


def describe_protections(protections: Sequence[Protection]) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of all protections under the key ``protection``; empty if there are none."""
    return {"protection": [describe_protection(p) for p in protections]} if protections else {}
