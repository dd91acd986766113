"""All errors that users can meet, and their exit codes. Messages state what is wrong, where, and what to do.

HeterophonyError            1   anything below
├── OptionError             2   a command has no such option, or its value is missing
├── ConfigError             3   a setting is unknown, of the wrong type or out of range
├── DataError               3   data cannot be found, read or partitioned
├── FolderError             3   a run folder is damaged, not a run folder, or already used
├── BusyError               1   another process uses this run folder or this port
├── CodecError              1   received or stored bytes are invalid
│   └── NotFiniteError      1   a received or stored tensor holds NaN or infinity
├── DivergedError           1   a loss or a parameter became NaN or infinite
├── EngineError             1   an engine cannot run a job
├── BrokerError             1   the MQTT broker does not start, answer or stop
├── StorageError           74   the disk is full, read-only or broken; committed rounds are intact
└── StoppedError           75   stopped from outside; ``resume`` continues the run
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import ClassVar, TypeVar

T = TypeVar("T")
IGNORED_LETTERS = str.maketrans("", "", "-_ ")  # ignored in names, as spellings differ


class HeterophonyError(Exception):
    """Base class of all errors with a one-line message that says what the user can do."""

    exit_code: ClassVar[int] = 1


class OptionError(HeterophonyError):
    """Raised when a command has no such option, or an option lacks its value."""

    exit_code = 2


class ConfigError(HeterophonyError):
    """Raised when a setting is unknown, of the wrong type or out of range."""

    exit_code = 3


class DataError(HeterophonyError):
    """Raised when data cannot be found, read or partitioned."""

    exit_code = 3


class FolderError(HeterophonyError):
    """Raised when a folder is a damaged run folder, no run folder, or already used."""

    exit_code = 3


class BusyError(HeterophonyError):
    """Raised when another process uses this run folder or this port."""


class CodecError(HeterophonyError):
    """Raised when received or stored bytes are invalid."""


class NotFiniteError(CodecError):
    """Raised when a received or stored tensor holds NaN or infinity."""


class DivergedError(HeterophonyError):
    """Raised when a loss or a parameter becomes NaN or infinite."""


class EngineError(HeterophonyError):
    """Raised when an engine cannot run a job."""


class BrokerError(HeterophonyError):
    """Raised when the MQTT broker does not start, answer or stop."""


class StorageError(HeterophonyError):
    """Raised when the disk is full, read-only or broken; committed rounds are intact."""

    exit_code = 74


class StoppedError(HeterophonyError):
    """Raised when a run is stopped from outside; it can be resumed."""

    exit_code = 75


def get_first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    return str(error).strip().split("\n")[0].strip() or type(error).__name__


def describe_failure(error: Exception) -> str:
    """Describe an error of a user's function in one line: its type and the start of its message."""
    name, line = type(error).__name__, get_first_line(error)
    return line if line == name else f"{name}: {line}"


def choose(choices: Mapping[str, T], name: str, where: str) -> T:
    """Return the choice with this name; for an unknown one, raise ConfigError, which suggests the nearest."""
    return choices[find_name(choices, name, where)]


def find_name(known: Iterable[str], name: str, where: str) -> str:
    """Return the registered name that a user's name matches, as ``fedreg`` for ``Fed-ReG``, or raise ConfigError."""
    names = list(known)
    if (found := match_name(names, name)) is None:
        raise ConfigError(f"{where}: unknown name '{name}'{suggest_or_list(name, names)}")
    return found


def match_name(known: Iterable[str], name: str) -> str | None:
    """Return the registered name that a user's name matches; None if none match or several do."""
    names = list(known)
    if name in names:
        return name
    alike = [k for k in names if simplify_name(k) == simplify_name(name)]
    return alike[0] if len(alike) == 1 else None


def simplify_name(name: str) -> str:
    """Return a name in lower case, without hyphens, underscores and spaces."""
    return name.casefold().translate(IGNORED_LETTERS)


def suggest_or_list(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` or, if no word is similar, all known words."""
    choices = sorted(known)
    return suggest_similar(word, choices) or (
        f"; choose from: {', '.join(choices)}" if choices else ""
    )


def suggest_similar(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` or, if no word is similar, an empty string."""
    choices = {simplify_name(k): k for k in sorted(known)}
    near = get_close_matches(simplify_name(word), choices, n=1, cutoff=0.5)
    return f"; did you mean '{choices[near[0]]}'?" if near else ""
