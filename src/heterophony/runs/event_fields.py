"""Optional fields of events: mypy accepts them in the middle of an event only from such types."""

from __future__ import annotations

from typing import TypedDict

from .event_parts import DeviceRound


class ValidationSizes(TypedDict, total=False):
    validation: list[int]


class TaskField(TypedDict, total=False):
    task: str


class RemarkField(TypedDict, total=False):
    data_remark: str


class FileDigests(TypedDict, total=False):
    files: dict[str, str]


class ComputeFields(TypedDict, total=False):
    device: str
    deterministic: bool
    precision: str


class PersonalBytes(TypedDict, total=False):
    personal_bytes: int


class DeviceFields(TypedDict, total=False):
    devices: dict[str, DeviceRound]


class FaultFields(TypedDict, total=False):
    asked: list[str]
    dropped: list[str]
    late: list[str]
    refused: list[str]
    void: bool
    simulated_seconds: float
    clock: float
