"""Completion in shells: algorithms, settings files, and the keys and values of ``-c``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

from .habits import list_all_keys, list_short_keys

# stands for a value; with two candidates, shells add no space after the equals sign
ANY_VALUE = "..."


def complete_algorithm(incomplete: str) -> list[str]:
    """Complete the name of an algorithm."""
    from ..algorithms import ALGORITHM_CLASSES

    return [name for name in ALGORITHM_CLASSES if name.startswith(incomplete.lower())]


def complete_run_argument(incomplete: str) -> list[str]:
    """Complete the argument of ``run``: algorithms, and settings files in the current folder."""
    files = sorted(path.name for path in Path.cwd().glob("*.toml"))
    return [*complete_algorithm(incomplete), *(f for f in files if f.startswith(incomplete))]


def complete_setting(incomplete: str) -> list[str]:
    """Complete an argument of ``-c``: keys or, after the equals sign, values.

    A single key is listed with its values.
    """
    key, sign, value = incomplete.partition("=")
    if sign:
        return [f"{key}={v}" for v in list_possible_values(key) if v.startswith(value)]
    keys = [k for k in list_all_keys() if k.startswith(key)]
    keys = keys or [k for k in list_short_keys() if k.startswith(key)]
    if len(keys) == 1:
        return [f"{keys[0]}={v}" for v in list_possible_values(keys[0]) or ("", ANY_VALUE)]
    return [f"{k}=" for k in keys]


def list_possible_values(key: str) -> list[str]:
    """List the possible values of a configuration key, if they are few."""
    from ..algorithms import ALGORITHM_CLASSES
    from ..config.keys import find_setting_schema
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
        if found := find_setting_schema(candidate):
            return [
                str(v).lower() if isinstance(v, bool) else str(v) for v in found.get("enum", [])
            ]
    return []


# Bash splits words at equals signs --------------------------------------------------------------

COMPLETION = "_HETEROPHONY_COMPLETE"  # set by the shells' completion functions


@contextmanager
def join_words_of_bash() -> Iterator[None]:
    """When bash asks for completions, join the words that it split at ``=``, and remove their prefix.

    Bash replaces only the text after the equals sign. It does not split words there if the user
    removed the equals sign from COMP_WORDBREAKS.
    """
    if os.environ.get(COMPLETION) != "complete_bash" or "COMP_WORDS" not in os.environ:
        yield
        return
    text, last = os.environ["COMP_WORDS"], int(os.environ["COMP_CWORD"])
    words, prefix = join_split_words(text.split("\n" if "\n" in text else None)[: last + 1])
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        lines = printed.getvalue().splitlines()
        sys.stdout.writelines(f"{line.removeprefix(prefix)}\n" for line in lines)


def join_split_words(words: list[str]) -> tuple[list[str], str]:
    """Join words that bash split at ``=``; also return the part of the last word that bash keeps."""
    joined, kept = list[str](), ""
    for i, word in enumerate(words):
        if i and word and "=" in (word, words[i - 1]):
            kept = joined[-1] if word != "=" else f"{joined[-1]}="
            joined[-1] += word
        else:
            kept = ""
            joined.append(word)
    return joined, kept
