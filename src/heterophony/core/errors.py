"""Every error a user can meet: what went wrong, where, and what to do; each knows its exit code.

HeterophonyError            1   anything below
├── ConfigError             3   a setting is unknown, of the wrong type or out of range
├── DataError               3   data cannot be found, read or dealt
├── FolderError             3   a run folder is torn, foreign or already used
├── BusyError               1   another process works in this run folder, or has this port
├── CodecError              1   bytes that are not what they should be were refused
│   └── NonFiniteError      1   a tensor holds NaN or infinity
├── DivergedError           1   training left the finite numbers
├── EngineError             1   a job cannot be carried out where it was sent
├── BrokerError             1   the MQTT broker does not start, answer or end
├── StorageError           74   the disk is full, read-only or broken; what was committed is intact
└── StoppedError           75   stopped from outside; ``resume`` goes on
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


class HeterophonyError(Exception):
    """Base of all errors that have a clear answer; the message is one line for people."""

    exit_code: ClassVar[int] = 1


class ConfigError(HeterophonyError):
    """A setting is unknown, of the wrong type or out of range."""

    exit_code = 3


class DataError(HeterophonyError):
    """Data cannot be found, read or dealt to the clients."""

    exit_code = 3


class FolderError(HeterophonyError):
    """A run folder is torn, foreign or already used."""

    exit_code = 3


class BusyError(HeterophonyError):
    """Another process works in this run folder, or has this port."""


class CodecError(HeterophonyError):
    """Bytes that are not what they should be were refused."""


class NonFiniteError(CodecError):
    """A tensor holds NaN or infinity."""


class DivergedError(HeterophonyError):
    """Training left the finite numbers."""


class EngineError(HeterophonyError):
    """A job cannot be carried out where it was sent."""


class BrokerError(HeterophonyError):
    """The MQTT broker does not start, answer or end."""


class StorageError(HeterophonyError):
    """The disk is full, read-only or broken; what was committed before is intact."""

    exit_code = 74


class StoppedError(HeterophonyError):
    """Stopped from outside; the run can be resumed."""

    exit_code = 75


def suggest_or_list(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` or, with nothing near, the list of what there is."""
    choices = sorted(known)
    return suggest_similar(word, choices) or (
        f"; there is: {', '.join(choices)}" if choices else ""
    )


def suggest_similar(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` or, with nothing near, nothing."""
    near = get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""
