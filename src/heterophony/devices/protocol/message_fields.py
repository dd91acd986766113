"""What a field of a message may hold: each rule takes a value from JSON and gives it, or refuses."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

from ...core.errors import CodecError
from .topics import TOPIC_NAME

FieldRule = Callable[[Any], Any]  # raises ValueError with words
T = TypeVar("T")
MAX_TEXT_LENGTH = 1000


def matching(pattern: re.Pattern[str], what: str) -> FieldRule:
    """A string of one form."""

    def rule(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"is not {what}")
        return value

    return rule


def text(limit: int) -> FieldRule:
    """Words for people; nothing in them moves a cursor or hides."""

    def rule(value: Any) -> str:
        if not isinstance(value, str) or len(value) > limit or not value.isprintable():
            raise ValueError(f"is not a line of at most {limit} characters")
        return value

    return rule


def integer(low: int = 0, high: int = 1 << 53) -> FieldRule:
    """A whole number in a range."""

    def rule(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"is not a whole number from {low} to {high}")
        return value

    return rule


def check_finite(value: Any) -> float:
    """A finite number; a whole one stays whole."""
    if type(value) not in (int, float) or abs(value) > 1e300 or math.isnan(value):
        raise ValueError("is not a finite number")
    return value  # type: ignore[no-any-return]


def check_boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("is not true or false")
    return value


def one_of(*words: str) -> FieldRule:
    def rule(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"is not one of {', '.join(words)}")
        return value

    return rule


def list_of(each: FieldRule, limit: int, least: int = 0) -> FieldRule:
    """A list, of a length that is checked before its elements."""

    def rule(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not least <= len(value) <= limit:
            raise ValueError(f"is not a list of {least} to {limit}")
        return tuple(each(v) for v in value)

    return rule


def mapping_of(key: FieldRule, each: FieldRule, limit: int) -> FieldRule:
    """An object whose keys are free, within a form."""

    def rule(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > limit:
            raise ValueError(f"is not an object of at most {limit} entries")
        return {key(k): each(v) for k, v in value.items()}

    return rule


def record_of(cls: type[T]) -> FieldRule:
    """An object with exactly the fields of a dataclass, each by its own rule."""

    def rule(value: Any) -> T:
        rules = read_field_rules(cls)  # type: ignore[arg-type]
        if isinstance(value, cls):
            value = {name: getattr(value, name) for name in rules}
        if not isinstance(value, dict) or value.keys() != rules.keys():
            raise ValueError(f"does not have exactly the fields {', '.join(rules)}")
        return cls(**{name: apply_rule(name, rules[name], value[name]) for name in rules})

    return rule


@cache
def read_field_rules(cls: type) -> dict[str, FieldRule]:
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name].__metadata__[0] for f in fields(cls)}


def apply_rule(name: str, rule: FieldRule, value: Any) -> Any:
    try:
        return rule(value)
    except ValueError as error:
        raise ValueError(f"'{name}' {error}") from None


def parse_record(cls: type[T], content: dict[str, Any], what: str) -> T:
    """The record, or a ``CodecError`` that says what is wrong with it."""
    try:
        return record_of(cls)(content)  # type: ignore[no-any-return]
    except ValueError as error:
        raise CodecError(f"{what}: {error}"[:400]) from None


def to_single_line(words: object) -> str:
    """Any words as a line that may travel: cut, without control signs."""
    return "".join(c if c.isprintable() else " " for c in str(words)[:MAX_TEXT_LENGTH])


KEY_RULE = matching(re.compile(r"[A-Za-z0-9_./ -]{1,128}"), "a name of a fact or number")
Sha256 = Annotated[str, matching(re.compile("[0-9a-f]{64}"), "a sha256")]
TopicName = Annotated[str, matching(TOPIC_NAME, "a name for topics")]
ClientName = Annotated[str, text(256)]
Text = Annotated[str, text(MAX_TEXT_LENGTH)]
Count = Annotated[int, integer()]
Boolean = Annotated[bool, check_boolean]
FiniteNumber = Annotated[float, check_finite]
NumberMap = Annotated[Mapping[str, float], mapping_of(KEY_RULE, check_finite, 256)]
TextMap = Annotated[Mapping[str, str], mapping_of(KEY_RULE, text(200), 32)]
Integers = Annotated[tuple[int, ...], list_of(integer(), 1000)]


@dataclass(frozen=True)
class BlobRef:
    """Bytes by their content: what is pulled in chunks."""

    sha256: Sha256
    size: Annotated[int, integer(1, 1 << 40)]

    @staticmethod
    def from_bytes(content: bytes) -> BlobRef:
        return BlobRef(hashlib.sha256(content).hexdigest(), len(content))


BlobRefField = Annotated[BlobRef, record_of(BlobRef)]
