"""Validate messages, replies, enrolments and the server's record of boards, field by field.

Each is a dataclass whose fields are annotated with rules. A rule receives a value from JSON or TOML
and returns it, or raises a ValueError that says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

from ...core.errors import CodecError
from ...core.files import NAME_PATTERN

FieldRule = Callable[[Any], Any]
T = TypeVar("T")
MAX_TEXT_LENGTH = 1000
MAX_SECONDS = 1e9  # 30 years


# Rules --------------------------------------------------------------------------------------
def make_rule(is_valid: Callable[[Any], bool], what: str) -> FieldRule:
    """Return a rule that accepts a message field if ``is_valid`` does; ``what`` describes valid values in errors."""

    def rule(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(f"is not {what}")
        return value

    return rule


def make_pattern_rule(pattern: re.Pattern[str], what: str) -> FieldRule:
    """Return the rule for a message field that is a string and matches a pattern."""
    return make_rule(lambda v: isinstance(v, str) and bool(pattern.fullmatch(v)), what)


def make_text_rule(max_length: int) -> FieldRule:
    """Return the rule for a message field that is one line without control characters."""
    return make_rule(
        lambda v: isinstance(v, str) and len(v) <= max_length and v.isprintable(),
        f"a line of at most {max_length} characters",
    )


def make_integer_rule(low: int = 0, high: int = 1 << 53) -> FieldRule:
    """Return the rule for a message field that is a whole number in a range."""
    what = f"a whole number from {low} to {high}"
    return make_rule(lambda v: type(v) is int and low <= v <= high, what)


def make_choice_rule(*words: str) -> FieldRule:
    """Return the rule for a message field that is one of these words."""
    return make_rule(lambda v: isinstance(v, str) and v in words, f"one of {', '.join(words)}")


def is_finite(value: Any) -> bool:
    """Return True if the value of a message field is a finite number."""
    return type(value) in (int, float) and abs(value) <= 1e300


def make_list_rule(element: FieldRule, max_length: int, min_length: int = 0) -> FieldRule:
    """Return the rule for a message field that is a list; its length is checked before its elements."""

    def rule(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not min_length <= len(value) <= max_length:
            raise ValueError(f"is not a list of {min_length} to {max_length}")
        return tuple(element(v) for v in value)

    return rule


def make_object_rule(key: FieldRule, element: FieldRule, max_length: int) -> FieldRule:
    """Return the rule for a message field that is an object whose keys and values follow these rules."""

    def rule(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > max_length:
            raise ValueError(f"is not an object of at most {max_length} entries")
        return {key(k): element(v) for k, v in value.items()}

    return rule


def make_record_rule(cls: type[T]) -> FieldRule:
    """Return the rule for a message field that is itself an object with exactly the fields of ``cls``."""

    def rule(value: Any) -> T:
        return parse_fields(cls, value)

    return rule


# Records ------------------------------------------------------------------------------------
def parse_fields(cls: type[T], content: Any) -> T:
    """Build an instance of ``cls`` from a decoded object; raise ValueError if a field breaks its rule."""
    rules = read_field_rules(cls)  # type: ignore[arg-type]
    if isinstance(content, cls):
        content = {name: getattr(content, name) for name in rules}
    if not isinstance(content, dict) or content.keys() != rules.keys():
        raise ValueError(f"does not have exactly the fields {', '.join(rules)}")
    return cls(**{name: apply_rule(name, rules[name], content[name]) for name in rules})


@cache
def read_field_rules(cls: type) -> dict[str, FieldRule]:
    """Return the rules with which the fields of a message class are annotated."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name].__metadata__[0] for f in fields(cls)}


def apply_rule(name: str, rule: FieldRule, value: Any) -> Any:
    """Apply the rule of a message field; raise ValueError with the field's name if it fails."""
    try:
        return rule(value)
    except ValueError as error:
        raise ValueError(f"'{name}' {error}") from None


def parse_record(cls: type[T], content: dict[str, Any], what: str) -> T:
    """Build a message from a decoded object; raise CodecError if a field breaks its rule."""
    try:
        return parse_fields(cls, content)
    except ValueError as error:
        raise CodecError(f"{what}: {error}"[:400]) from None


def to_single_line(words: object) -> str:
    """Convert any object to one printable line that fits into a ``Text`` field of a message."""
    return "".join(c if c.isprintable() else " " for c in str(words)[:MAX_TEXT_LENGTH])


# Types of fields ----------------------------------------------------------------------------
KEY_RULE = make_pattern_rule(re.compile(r"[A-Za-z0-9_./ -]{1,128}"), "a name of a fact or number")
Sha256 = Annotated[str, make_pattern_rule(re.compile("[0-9a-f]{64}"), "a sha256")]
OptionalSha256 = Annotated[
    str, make_pattern_rule(re.compile("([0-9a-f]{64})?"), "a sha256 or an empty string")
]
TopicName = Annotated[str, make_pattern_rule(NAME_PATTERN, "a name for topics")]
ClientName = Annotated[str, make_text_rule(256)]
Text = Annotated[str, make_text_rule(MAX_TEXT_LENGTH)]
AnyString = Annotated[str, make_rule(lambda v: isinstance(v, str), "text")]
Count = Annotated[int, make_integer_rule()]
Port = Annotated[int, make_integer_rule(1, 65535)]
Date = Annotated[
    datetime,
    make_rule(
        lambda v: type(v) is datetime and v.tzinfo is not None, "a date and time with a time zone"
    ),
]
Boolean = Annotated[bool, make_rule(lambda v: type(v) is bool, "true or false")]
FINITE_RULE = make_rule(is_finite, "a finite number")
FiniteNumber = Annotated[float, FINITE_RULE]
Seconds = Annotated[
    float,
    make_rule(
        lambda v: is_finite(v) and 0 <= v <= MAX_SECONDS,
        f"a number of seconds from 0 to {MAX_SECONDS:g}",
    ),
]
NumberMap = Annotated[Mapping[str, float], make_object_rule(KEY_RULE, FINITE_RULE, 256)]
TextMap = Annotated[Mapping[str, str], make_object_rule(KEY_RULE, make_text_rule(200), 32)]
Integers = Annotated[tuple[int, ...], make_list_rule(make_integer_rule(), 1000)]
JobKind = Annotated[str, make_choice_rule("train", "evaluate", "join")]
