"""Read a configuration from a TOML file and ``-c`` overrides; errors name the file and the line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from types import NoneType
from typing import Any, get_args, get_origin

from ..algorithms import construct_algorithm, find_algorithm_name, get_algorithm_class
from ..core.errors import ConfigError, find_name, match_name, simplify_name
from ..core.files import TEXT_LIMIT
from ..core.settings import check_keys, construct, resolve_hints
from ..core.training import CHOICES, list_choice_settings
from ..data.sources import choose_default_training, find_named_clients
from ..population.attacks import Attack
from ..protection import PROTECTION_CLASSES, build_protections
from . import keys
from .config import Config, check_participation_kind, settle_protections
from .nets import check_model_name
from .sections import (
    SECTIONS,
    TopSection,
    drop_cluster_settings,
    fill_data_defaults,
    parse_participation,
)

# other settings formats by suffix: name, how to install the reading module, the module, its function
YAML = ("YAML", "pip install pyyaml && ", "yaml", "safe_load")
CONVERSIONS = {".yaml": YAML, ".yml": YAML, ".json": ("JSON", "", "json", "load")}
SHORT_NUMBER = re.compile(r"[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?", re.I)  # refused by TOML
NET_KEYS = ("name", "groups", "group")  # keys of [model]


def read_config(
    path: Path | None,
    overrides: Sequence[str] = (),
    note: Callable[[str], None] = keys.ignore_note,
    trust: bool = False,
) -> Config:
    """Read a configuration file, or start from the defaults without one, and apply ``key=value`` pairs.

    ``note`` is called with the meaning of each short key, and if the data set's training defaults do not
    apply. An algorithm or model of another package is imported only with ``trust``: set it if the user
    wrote the configuration, or trusts whoever wrote it.
    """
    text, raw = read_toml(path)
    overrides = keys.expand_overrides(raw, overrides, note=note, trust=trust)
    drop_replaced_settings(raw, overrides)
    overridden = [apply_override(raw, pair) for pair in overrides]
    try:
        config = resolve_config(raw, trust=trust)
    except ConfigError as error:
        key = str(error).split(":")[0]
        from_override = any(f"{key}.".startswith(f"{o}.") for o in overridden)
        line = None if from_override else find_line(text, key)
        if line is None and not from_override:  # the file may use the old name
            line = find_line(text, keys.restore_old_name(key))
        raise ConfigError(f"{path}:{line}: {error}" if line else str(error)) from None
    note_other_defaults(raw.get("training", {}), config, note)
    return config


def note_other_defaults(
    given: Mapping[str, Any], config: Config, note: Callable[[str], None]
) -> None:
    """Call ``note`` if setting a key of [training] has disabled the data set's defaults for other keys."""
    own = choose_default_training(config.data.name).to_settings()
    used = config.training.to_settings()
    changed = [k for k in own if k not in given and k in used and used[k] != own[k]]
    if given and changed:
        now, before = (", ".join(f"{k} = {of[k]}" for k in changed) for of in (used, own))
        keys = " and ".join(f"training.{key}" for key in given)
        note(
            f"{keys} {'is' if len(given) == 1 else 'are'} set, so clients train with {now}, not with"
            f" the defaults for {config.data.name} ({before})"
        )


def read_toml(path: Path | None) -> tuple[str, dict[str, Any]]:
    """Read a TOML configuration; return text and settings, with current names; both empty without a file."""
    if path is not None and path.suffix in CONVERSIONS and path.exists():
        name, install, module, read = CONVERSIONS[path.suffix]
        raise ConfigError(
            f"{path}: settings are TOML, not {name}; convert it: {install}python -c 'import sys,"
            f" {module}, tomli_w; print(tomli_w.dumps({module}.{read}(sys.stdin)))'"
            f" < {quote(str(path))} > {quote(str(path.with_suffix('.toml')))}"
        )
    try:
        text = "" if path is None else read_settings_text(path)
        return text, keys.rename_sections(tomllib.loads(text))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not valid TOML: it is not text (UTF-8)") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: too many brackets") from None


def read_settings_text(path: Path) -> str:
    """Read a configuration's text from a file or a pipe; raise ConfigError if it is too long."""
    with open(path, encoding="utf-8") as file:
        text = file.read(TEXT_LIMIT + 1)
    if len(text) > TEXT_LIMIT:
        raise ConfigError(f"{path}: not settings: it is longer than {TEXT_LIMIT} characters")
    return text


def resolve_config(raw: Mapping[str, Any], settled: bool = False, trust: bool = False) -> Config:
    """Build the configuration from nested plain data; check it and fill in the defaults.

    Pass ``settled`` if another process has done the privacy accounting, and ``trust`` if an
    algorithm or a model of another package may be imported.
    """
    raw = keys.rename_sections(raw)
    if "objects" in raw:
        raise ConfigError(
            "objects: the run was started from Python with your own objects"
            f" ({', '.join(raw['objects'])}); continue it there with hp.run(…, resume=True)"
        )
    check_keys(raw, keys.ROOTS)
    for key, value in raw.items():
        if key not in (*keys.TOP_KEYS, "protection") and not isinstance(value, dict):
            raise ConfigError(f"{key}: must be a section, as in [{key}]")
    settings = dict(raw.get("algorithm", {}))
    name = find_algorithm_name(str(settings.pop("name", "fedavg")))
    raw = {**raw, "data": adopt_named_clients(raw.get("data", {}))}
    sections: dict[str, Any] = {k: construct(c, raw.get(k, {}), k) for k, c in SECTIONS.items()}
    sections["data"] = fill_data_defaults(sections["data"])
    if not raw.get("training"):  # setting any key of [training] selects the general defaults
        sections["training"] = choose_default_training(sections["data"].name)
    if (model := sections["model"]).name is not None:  # report a wrong name before reading data
        sections["model"] = replace(model, name=check_model_name(model.name, trust))
    participation, faults = parse_participation(raw.get("participation", {}))
    protections = build_protections(raw.get("protection", ()))
    check_participation_kind(protections, raw.get("participation"))
    config = Config(
        top=TopSection(**{k: v for k, v in raw.items() if k in keys.TOP_KEYS}),
        algorithm=construct_algorithm(get_algorithm_class(name, trust), settings),
        algorithm_name=name,
        participation=participation,
        faults=faults,
        protections=protections,
        attack=construct(Attack, raw.get("attack", {}), "attack"),
        **sections,
    )
    return config if settled else settle_protections(config)


def adopt_named_clients(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section [data] with the clients that the data set names, unless a partition is set."""
    name, users = data.get("name"), data.get("users")
    if "partition" in data or not isinstance(name, str) or not isinstance(users, str | None):
        return data
    named = find_named_clients(name, users)
    if not named.names:
        return data
    split = {"split": "official"} if named.has_split else {}
    return {"clients": len(named.names), **split, **data, "partition": {"kind": "natural"}}


def drop_replaced_settings(raw: dict[str, Any], overrides: Sequence[str]) -> None:
    """Remove the file's settings of an algorithm, partition or skew that ``-c`` replaces with another."""
    data = raw["data"] if isinstance(raw.get("data"), dict) else {}
    sections = {
        "algorithm.name": raw.get("algorithm"),
        "data.partition.kind": data.get("partition"),
        "data.feature_skew.kind": data.get("feature_skew"),
    }
    for key, section in sections.items():
        pairs, name = (p.partition("=") for p in overrides), key.split(".")[-1]
        chosen = [parse_toml_value(value.strip()) for k, _, value in pairs if k.strip() == key]
        if chosen and isinstance(section, dict) and name in section:
            before, after = (simplify_name(str(v)) for v in (section[name], chosen[-1]))
            if before != after:
                section.clear()
    drop_unused_training_settings(raw, overrides)


def drop_unused_training_settings(raw: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Remove the file's training settings that the optimiser or schedule chosen by ``-c`` does not use."""
    training = raw.get("training")
    for key, choices in CHOICES.items():
        before = keys.find_choice(raw, [], f"training.{key}", next(iter(choices)))
        chosen = keys.find_choice(raw, overrides, f"training.{key}", before)
        if isinstance(training, dict) and chosen in choices and chosen != before:
            for name in set(list_choice_settings(choices)) - set(choices[chosen]):
                training.pop(name, None)


def apply_override(raw: dict[str, Any], pair: str) -> str:
    """Write one ``-c key=value`` into the raw configuration; return the key under its current name."""
    key, sign, value = pair.partition("=")
    key = keys.rename_key(key.strip())
    if not sign or not key:
        raise ConfigError(f"-c {pair}: must be key=value, as in -c training.lr=0.01")
    *path, last = key.split(".")
    if path[:1] == ["protection"]:
        if len(path) != 2:
            raise ConfigError(
                f"-c {pair}: must be protection.KIND.KEY, as in protection.top_k.ratio"
            )
        set_protection(raw, (path[1], last), parse_toml_value(value.strip()))
        return key
    section = raw
    for step in path:
        section = section.setdefault(step, {})
        if not isinstance(section, dict):
            raise ConfigError(f"-c {pair}: '{step}' is not a section")
    if path == ["participation"]:  # rate and count exclude each other: the later one wins
        section.pop({"rate": "count", "count": "rate"}.get(last, ""), None)
    if path == ["model"] and last in NET_KEYS:  # these keys exclude each other, too
        for other in NET_KEYS:
            section.pop(other, None)
    section[last] = parse_as_list(key, parse_toml_value(value.strip()))
    if key == "engine.name" and section[last] != "ray":  # the run leaves its cluster
        drop_cluster_settings(section)
    return key


def set_protection(raw: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Apply ``-c protection.KIND.KEY=VALUE``: change the entry of that kind, or append one."""
    kind, key = path
    entries = raw.setdefault("protection", [])
    if isinstance(entries, str):  # -c protection=median
        entries = raw["protection"] = [{"kind": k.strip()} for k in entries.split(",")]
    if not isinstance(entries, list):
        raise ConfigError("protection: must be a list of tables, as in [[protection]]")
    name = find_name(PROTECTION_CLASSES, kind, "protection.kind")
    tables = [e for e in entries if isinstance(e, dict)]
    found = [e for e in tables if match_name(PROTECTION_CLASSES, str(e.get("kind"))) == name]
    if not found:
        found = [{"kind": name}]
        entries += found
    found[0][key] = value


def parse_toml_value(text: str) -> Any:
    """Parse the value of a ``-c`` pair as TOML, or as a number such as ``.1``; a bare word is a string."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return float(text) if SHORT_NUMBER.fullmatch(text) else text


def parse_as_list(key: str, value: Any) -> Any:
    """Return the ``-c`` value ``a,b``, or a single value, as a list if the setting is a list; else unchanged.

    A single value stays as it is if the setting may also be something other than a list.
    """
    section, _, name = key.partition(".")
    hint = resolve_hints(SECTIONS[section]).get(name) if section in SECTIONS else None
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    lists = [kind for kind in kinds if get_origin(kind) in (list, tuple)]
    several = isinstance(value, str) and "," in value
    if not lists or value == "" or (kinds != lists and not several):
        return value
    element = get_args(lists[0])[0]
    if not isinstance(value, str):
        return [value] if type(value) is element else value
    parts = [part.strip().strip("\"'") for part in value.strip("[]").split(",")]
    return parts if element is str else [parse_toml_value(part) for part in parts]


def find_line(text: str, key: str) -> int | None:
    """Find the line of a TOML configuration that sets a dotted key, or else its nearest enclosing table."""
    section, line, length = "", None, 0
    for number, content in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\]]+)\]", content):
            section = header[1].strip("[ ")  # also matches [[protection]]
            here = section
        elif pair := re.match(r"\s*([\w.\"'-]+)\s*=", content):
            here = ".".join(filter(None, [section, pair[1].strip("\"'")]))
        else:
            continue
        if (key == here or key.startswith(f"{here}.")) and len(here) > length:
            line, length = number, len(here)
    return line
