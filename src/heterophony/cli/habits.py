"""Habits from other programs: ``--rounds 5`` and a bare ``lr=0.1`` are settings, as with ``-c``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand

from ..core.errors import ConfigError, simplify_name

BARE_SETTING = re.compile(r"[A-Za-z_][\w.-]*=.*", re.S)
NUMBER = re.compile(r"-[0-9.]+(e-?[0-9]+)?")
# what other platforms call a setting: the short key here
OTHER_NAMES = {
    "learning_rate": "lr",
    "local_learning_rate": "lr",
    "batch_size": "batch",
    "local_epochs": "epochs",
    "num_rounds": "rounds",
    "global_rounds": "rounds",
    "num_clients": "clients",
    "join_ratio": "participation.rate",
    "dataset": "data.name",
}


class SettingsCommand(TyperCommand):
    """A command with ``-c`` that also takes settings as options and as bare words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.parse_words(ctx, args))

    def parse_words(self, ctx: Any, words: list[str]) -> list[str]:
        """Return the words of the command line as the parser takes them."""
        takes_value = {
            name: not getattr(p, "is_flag", False)
            for p in self.get_params(ctx)
            if p.param_type_name == "option"
            for name in (*p.opts, *p.secondary_opts)
        }
        return translate_habits(words, takes_value)


def translate_habits(words: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Write settings that are given as options or bare words with ``-c``; leave all else as it is.

    ``takes_value`` has the options of the command, and whether a value follows each.
    """
    out: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, sign, value = word.partition("=")
        if word == "--":
            return [*out, word, *rest]
        if name in takes_value:
            out.append(word)
            if takes_value[name] and not sign and rest:
                out.append(rest.pop(0))
        elif word.startswith("--"):
            out += translate_option(name, value if sign else None, rest, takes_value)
        elif BARE_SETTING.fullmatch(word):
            out += ["-c", f"{get_own_name(name)}={value}"]
        else:
            out.append(word)
    return out


def translate_option(
    option: str, value: str | None, rest: list[str], takes_value: Mapping[str, bool]
) -> list[str]:
    """Return what an unknown option means; its value may be the first word of the rest."""
    key = get_own_name(option.removeprefix("--"))
    if key == "seed" and "--seeds" in takes_value:
        option, key = "--seeds", ""
    elif not is_setting(key):
        if near := get_close_matches(key, list_short_keys(), n=1, cutoff=0.75):
            raise ConfigError(f"{option}: no such option; did you mean -c {near[0]}=… ?")
        return [option if value is None else f"{option}={value}"]  # the parser refuses it
    if value is None and rest and (not rest[0].startswith("-") or NUMBER.fullmatch(rest[0])):
        value = rest.pop(0)
    if value is None:
        raise ConfigError(f"{option}: a value is missing, as in {option} 1")
    return ["-c", f"{key}={value}"] if key else [option, value]


def get_own_name(key: str) -> str:
    """Return our short key for what other platforms call a setting; another key as it is written."""
    key = key.replace("-", "_")
    return OTHER_NAMES.get(key, key)


def is_setting(key: str) -> bool:
    """Return True if a full or short key is one of a configuration, with any algorithm."""
    from ..config.short_keys import NAMED_SECTIONS

    if key in (*NAMED_SECTIONS, "partition"):  # their name or kind
        return True
    wanted = [simplify_name(part) for part in key.split(".")]
    known = ([simplify_name(part) for part in k.split(".")] for k in list_all_keys())
    return any(parts[-len(wanted) :] == wanted for parts in known)


def list_short_keys() -> list[str]:
    return list(dict.fromkeys(k.rpartition(".")[2] for k in list_all_keys()))


def list_all_keys() -> Iterable[str]:
    """List the keys of a configuration with every algorithm and partition."""
    from ..algorithms import ALGORITHM_CLASSES
    from ..config.short_keys import list_keys
    from ..data.partitions import PARTITIONS

    keys = (list_keys(ALGORITHM_CLASSES, kind) for kind in PARTITIONS)
    return dict.fromkeys(k for listed in keys for k in [*listed, "data.name", "model.name"])


# Completion of -c -------------------------------------------------------------------------------


def complete_setting(incomplete: str) -> list[str]:
    """List the keys that begin so or, after the equals sign, the values that a key can have."""
    key, sign, value = incomplete.partition("=")
    if not sign:
        keys = [k for k in list_all_keys() if k.startswith(key)]
        short = [k for k in list_all_keys() if k.rpartition(".")[2].startswith(key)]
        return [f"{k}=" for k in dict.fromkeys(keys or short)]
    return [f"{key}={v}" for v in list_values(key) if v.startswith(value)]


def list_values(key: str) -> list[str]:
    """List the values that a key can have, if there are few."""
    from ..algorithms import ALGORITHM_CLASSES
    from ..config.schema import find_setting
    from ..data.partitions import PARTITIONS
    from ..data.sources import SOURCES
    from ..models import MODEL_DESCRIPTIONS

    named: dict[str, Iterable[str]] = {
        "algorithm.name": ALGORITHM_CLASSES,
        "data.name": SOURCES,
        "data.partition.kind": PARTITIONS,
        "model.name": MODEL_DESCRIPTIONS,
    }
    full = [k for k in list_all_keys() if k == key or k.endswith(f".{key}")]
    for candidate in [key, *full]:
        for name in (candidate, f"{candidate}.name"):
            if name in named:
                return list(named[name])
        if found := find_setting(candidate):
            return [
                str(v).lower() if isinstance(v, bool) else str(v) for v in found.get("enum", [])
            ]
    return []
