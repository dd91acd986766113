"""Text from files and devices, made harmless for a terminal and for a spreadsheet."""

from __future__ import annotations

import re

# control characters but line breaks and tabs; marks that reverse the direction of text; half characters
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
REPLACEMENT = "\ufffd"
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def clean_text(text: str) -> str:
    """Replace what a terminal would obey instead of print, such as escape sequences."""
    return UNPRINTABLE.sub(REPLACEMENT, text)


def clean_line(text: str) -> str:
    """Do the same, and make one line of it."""
    return clean_text(" ".join(text.split("\n")))


def quote_formula(cell: object) -> object:
    """Begin text with an apostrophe if a spreadsheet would compute it; numbers stay numbers."""
    if isinstance(cell, str) and cell.lstrip(" ").startswith(FORMULA_SIGNS):
        return f"'{cell}"
    return cell
