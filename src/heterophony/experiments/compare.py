"""Comparisons: several algorithms and seeds on the same clients, a run folder each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..algorithms import find_algorithm_name, shorten_name
from ..config.config import Config
from ..config.old_settings import parse_settings_text
from ..config.reading import read_config, read_toml
from ..config.short_keys import expand_overrides, ignore_note
from ..core.errors import FolderError
from ..core.files import write_json
from ..runs.store import RunFolder
from .tasks import FederationCache


def build_comparison(
    algorithms: Sequence[str],
    seeds: Sequence[int] | None,
    file: Path | None,
    overrides: Sequence[str],
    note: Callable[[str], None] = ignore_note,
) -> dict[str, Config]:
    """Build the configuration of every run, by label; without seeds, use the configuration's own.

    ``note`` is told how short keys were understood. The caller's algorithms are trusted.
    """
    algorithms = [find_algorithm_name(name) for name in algorithms]
    labels, configs = label_algorithms(algorithms), {}
    overrides = expand_overrides(read_toml(file)[1], overrides, algorithms, note, True)
    for seed in [None] if seeds is None else seeds:
        for name in algorithms:
            own = [f'algorithm.name="{name}"', *([] if seed is None else [f"seed={seed}"])]
            config = read_config(file, [*overrides, *own], trust=True)
            configs[f"{labels[name]}-{config.top.seed}"] = config
    return configs


def label_algorithms(names: Sequence[str]) -> dict[str, str]:
    """Give every algorithm a label that is a folder's name; classes of the same name get longer ones."""
    names = list(dict.fromkeys(names))
    uses = Counter(map(shorten_name, names))
    return {n: s if uses[s := shorten_name(n)] == 1 else n.replace(":", ".") for n in names}


def prepare_run_folders(parent: Path, configs: Mapping[str, Config]) -> list[RunFolder]:
    """Write every configuration to its folder before any run begins, so that all can be resumed."""
    if (parent / "config.toml").exists():
        raise FolderError(f"{parent} is a single run; choose another --out")
    federations, folders = FederationCache(), []
    for label, config in configs.items():
        federation = federations.get(config)
        config.build_plan(federation)  # raises if the model does not fit the data
        text, folder = config.fill_model_defaults(federation).to_toml(), RunFolder(parent / label)
        if not folder.config_file.exists():
            folder.create(text)
            folder.close()
        elif not has_same_settings(folder.read_config_text(), text):
            raise FolderError(
                f"{folder.path} holds a run with other settings; choose another --out"
            )
        folders.append(folder)
    write_json(parent / "compare.json", {"runs": list(configs)})
    return folders


def has_same_settings(text: str, other: str) -> bool:
    """Do two configurations agree in everything but the section [engine]?"""
    return parse_non_engine_settings(text) == parse_non_engine_settings(other)


def parse_non_engine_settings(text: str) -> dict[str, Any]:
    """Parse all settings but those of the section [engine]; of a damaged text, none."""
    return {k: v for k, v in parse_settings_text(text).items() if k != "engine"}
